package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The expected figures are exact binomial sums, computed apart from this code.

func TestNeedsN(t *testing.T) {
	for _, test := range []struct {
		q    float64
		want int
	}{{0.5, 5}, {0.95, 59}, {0.99, 299}, {0.999, 2995}, {0.9999, 29956}} {
		if got := NeedsN(test.q, 0.95); got != test.want {
			t.Errorf("NeedsN(%v) = %d, want %d", test.q, got, test.want)
		}
	}
}

func TestRanks(t *testing.T) {
	for _, test := range []struct {
		n    int
		q    float64
		l, u int
	}{
		{1000, 0.5, 469, 532},
		{1000, 0.95, 936, 964},
		{1000, 0.99, 983, 997},
		{6, 0.5, 1, 6}, // the least n with an end on both sides
		{5, 0.5, 0, 6},
		{72, 0.95, 64, 72},
		{71, 0.95, 63, 72},
		{368, 0.99, 360, 368},
		{367, 0.99, 359, 368},
		{1, 0.99, 1, 2},
		{0, 0.5, 0, 1},
	} {
		if l, u := Ranks(test.n, test.q, 0.95); l != test.l || u != test.u {
			t.Errorf("Ranks(%d, %v) = %d, %d, want %d, %d", test.n, test.q, l, u, test.l, test.u)
		}
	}
}

// TestRanksSum checks the definition against binomial sums made from integer
// arithmetic as far as that goes.
func TestRanksSum(t *testing.T) {
	cdf := func(k, n int, q float64) float64 {
		sum, choose := 0.0, 1.0
		for i := 0; i <= k; i++ {
			sum += choose * math.Pow(q, float64(i)) * math.Pow(1-q, float64(n-i))
			choose = choose * float64(n-i) / float64(i+1)
		}
		return sum
	}
	for n := 1; n <= 60; n++ {
		for _, q := range []float64{0.05, 0.5, 0.9, 0.95} {
			l, u := Ranks(n, q, 0.95)
			if l > 0 && cdf(l-1, n, q) > 0.025 || cdf(l, n, q) <= 0.025 {
				t.Errorf("n %d, q %v: low rank %d", n, q, l)
			}
			if u <= n && cdf(u-1, n, q) < 0.975-1e-9 || u > 1 && cdf(u-2, n, q) >= 0.975 {
				t.Errorf("n %d, q %v: high rank %d", n, q, u)
			}
		}
	}
	// Large samples must come out at the normal approximation.
	l, u := Ranks(100_000_000, 0.99, 0.95)
	half := 1.959964 * math.Sqrt(100_000_000*0.99*0.01)
	if math.Abs(float64(l)-(99_000_000-half)) > 10 || math.Abs(float64(u)-(99_000_001+half)) > 10 {
		t.Errorf("ranks %d, %d of 1e8", l, u)
	}
}

// TestIntervalHolds draws from a distribution with a heavy tail.
func TestIntervalHolds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const rounds, n = 2000, 400
	for _, q := range []float64{0.5, 0.95, 0.99} {
		truth := int64(1000 / math.Pow(1-q, 1/1.5)) // Pareto
		held := 0
		for range rounds {
			var s Sample
			for range n {
				s.Add(int64(1000 / math.Pow(1-rnd.Float64(), 1/1.5)))
			}
			if r := s.Quantile(q, 0.95); (r.LowOpen || r.Low <= truth) && (r.HighOpen || truth <= r.High) {
				held++
			}
		}
		if held < rounds*94/100 {
			t.Errorf("q %v: held %d of %d", q, held, rounds)
		}
	}
}

func TestQuantile(t *testing.T) {
	var s Sample
	if q := s.Quantile(0.5, 0.95); q.N != 0 || q.Value != 0 || !q.LowOpen || !q.HighOpen || q.Enough() {
		t.Errorf("empty: %+v", q)
	}
	for i := range int64(100) {
		s.Add(100 - i)
	}
	want := Quantile{Q: 0.95, N: 100, Value: 95, Low: 90, High: 100, Needs: 59}
	if q := s.Quantile(0.95, 0.95); q != want || !q.Enough() {
		t.Errorf("%+v, want %+v", q, want)
	}
	want = Quantile{Q: 0.99, N: 100, Value: 99, Low: 97, High: 100, HighOpen: true, Needs: 299}
	if q := s.Quantile(0.99, 0.95); q != want || q.Enough() {
		t.Errorf("%+v, want %+v", q, want)
	}
	s.Add(1000) // after a sort
	if q := s.Quantile(0.99, 0.95); q.High != 1000 {
		t.Errorf("%+v does not know the latest sample", q)
	}
	if s.Min() != 1 || s.Max() != 1000 || math.Abs(s.Mean()-6050.0/101) > 1e-9 || s.N() != 101 {
		t.Errorf("min %d, max %d, mean %v, n %d", s.Min(), s.Max(), s.Mean(), s.N())
	}
}

// TestSketch compares a sketch with the truth, for values over many decades
// and for many zeros.
func TestSketch(t *testing.T) {
	for name, draw := range map[string]func(*rand.Rand) int64{
		"lognormal": func(r *rand.Rand) int64 { return int64(math.Exp(16 + 2*r.NormFloat64())) },
		"zeros":     func(r *rand.Rand) int64 { return max(0, int64(r.NormFloat64()*1e6)) },
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(3, 4))
			var s Sample
			all := make([]int64, 0, 3*ExactLimit)
			for range 3 * ExactLimit {
				v := draw(rnd)
				all = append(all, v)
				s.Add(v)
			}
			if s.Exact() || len(s.values) != 0 {
				t.Fatalf("keeps %d values of %d", len(s.values), s.N())
			}
			slices.Sort(all)
			for _, q := range []float64{0.01, 0.3, 0.5, 0.95, 0.99, 0.99999} {
				got := s.Quantile(q, 0.95)
				l, u := Ranks(len(all), q, 0.95)
				low, value, high := all[l-1], all[int(math.Ceil(q*float64(len(all))))-1], all[min(u, len(all))-1]
				if e := math.Abs(float64(got.Value - value)); e > SketchError*math.Abs(float64(value))+1 {
					t.Errorf("q %v: value %d, want %d", q, got.Value, value)
				}
				if got.Low > low || got.High < high {
					t.Errorf("q %v: [%d, %d] does not hold [%d, %d]", q, got.Low, got.High, low, high)
				}
				if wide := float64(got.High-got.Low) - float64(high-low); wide > 0.011*(math.Abs(float64(low))+math.Abs(float64(high)))+4 {
					t.Errorf("q %v: [%d, %d] is much wider than [%d, %d]", q, got.Low, got.High, low, high)
				}
			}
			if s.Min() != all[0] || s.Max() != all[len(all)-1] {
				t.Errorf("min %d, max %d", s.Min(), s.Max())
			}
		})
	}
}

// TestExtremes: values of any size, and a sketch of them, must not panic.
func TestExtremes(t *testing.T) {
	var s Sample
	for range ExactLimit/4 + 1 {
		for _, v := range []int64{math.MinInt64, 0, 1, math.MaxInt64} {
			s.Add(v)
		}
	}
	if s.Exact() {
		t.Fatal("no sketch")
	}
	for _, q := range []float64{1e-9, 0.2, 0.5, 0.99, 1 - 1e-9} {
		if r := s.Quantile(q, 0.95); r.Low > r.Value || r.Value > r.High {
			t.Errorf("%+v", r)
		}
	}
}

func BenchmarkQuantile(b *testing.B) {
	var s Sample
	rnd := rand.New(rand.NewPCG(1, 1))
	for range ExactLimit {
		s.Add(rnd.Int64N(1e9))
	}
	for b.Loop() {
		s.Quantile(0.99, 0.95)
	}
}

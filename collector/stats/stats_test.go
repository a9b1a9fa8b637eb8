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
			var s []int64
			for range n {
				s = append(s, int64(1000/math.Pow(1-rnd.Float64(), 1/1.5)))
			}
			slices.Sort(s)
			l, u := Ranks(n, q, 0.95)
			if (l == 0 || s[l-1] <= truth) && (u > n || truth <= s[u-1]) {
				held++
			}
		}
		if held < rounds*94/100 {
			t.Errorf("q %v: held %d of %d", q, held, rounds)
		}
	}
}

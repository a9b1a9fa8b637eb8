// Package stats holds samples and says what they tell about a distribution,
// and with which certainty. It knows nothing of exchanges.
//
// Quantiles come with exact order-statistic intervals, which assume nothing of
// the distribution but that samples are independent; exchanges on the same
// connection are not quite.
package stats

import (
	"fmt"
	"math"
	"slices"

	"github.com/DataDog/sketches-go/ddsketch"
)

const (
	// ExactLimit is how many samples a Sample keeps as they are (800 kB).
	ExactLimit = 100_000

	// SketchError is the relative error of what a Sample says once it had to
	// make a sketch of more samples.
	SketchError = 0.005

	// sketchBins at that error span fifteen decades, one nanosecond to eleven
	// days; below, the smallest would be merged first.
	sketchBins = 3500
)

// Sample is a set of durations, sizes or counts, in bounded memory: exact up to
// ExactLimit, a sketch beyond. The zero value is empty. It is not safe for
// concurrent use.
type Sample struct {
	values   []int64
	sorted   bool
	sketch   *ddsketch.DDSketch
	n        int
	min, max int64
	sum      float64
}

// Add adds v; a negative one counts as 0.
func (s *Sample) Add(v int64) {
	v = max(v, 0)
	if s.n == 0 {
		s.min, s.max = v, v
	}
	s.n++
	s.min, s.max = min(s.min, v), max(s.max, v)
	s.sum += float64(v)
	if s.sketch == nil && len(s.values) < ExactLimit {
		s.values = append(s.values, v)
		s.sorted = false
		return
	}
	if s.sketch == nil {
		s.condense()
	}
	s.toSketch(v)
}

// condense turns the values into a sketch.
func (s *Sample) condense() {
	sketch, err := ddsketch.LogCollapsingLowestDenseDDSketch(SketchError, sketchBins)
	if err != nil {
		panic(fmt.Sprintf("making a sketch of constant accuracy: %v", err))
	}
	s.sketch = sketch
	for _, v := range s.values {
		s.toSketch(v)
	}
	s.values = nil
}

func (s *Sample) toSketch(v int64) {
	if err := s.sketch.Add(float64(v)); err != nil {
		panic(fmt.Sprintf("adding %d to a sketch that holds all integers: %v", v, err))
	}
}

// N returns how many values were added.
func (s *Sample) N() int { return s.n }

// Min returns the smallest value, 0 if there is none.
func (s *Sample) Min() int64 { return s.min }

// Max returns the largest value, 0 if there is none.
func (s *Sample) Max() int64 { return s.max }

// Mean returns the arithmetic mean, 0 if there are no values.
func (s *Sample) Mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.sum / float64(s.n)
}

// Exact reports whether what Quantile says is exact, not a sketch's.
func (s *Sample) Exact() bool { return s.sketch == nil }

// Quantile estimates the q-quantile, 0 < q < 1, with an interval of the given
// confidence. A sketch's interval is wider by SketchError on each side.
func (s *Sample) Quantile(q, confidence float64) Quantile {
	result := Quantile{Q: q, N: s.n, Needs: NeedsN(q, confidence), LowOpen: true, HighOpen: true}
	if s.n == 0 {
		return result
	}
	l, u := Ranks(s.n, q, confidence)
	result.LowOpen, result.HighOpen = l < 1, u > s.n
	result.Value = s.at(int(math.Ceil(q*float64(s.n))), 0)
	result.Low = s.at(l, -1)
	result.High = s.at(u, +1)
	return result
}

// at returns the value of a rank from 1 to n, and the nearest of those for
// another. side is -1 or +1 to get the least or the most that the value may be
// where only a sketch is left.
func (s *Sample) at(rank int, side float64) int64 {
	rank = min(max(rank, 1), s.n)
	if s.sketch == nil {
		if !s.sorted {
			slices.Sort(s.values)
			s.sorted = true
		}
		return s.values[rank-1]
	}
	switch rank {
	case 1:
		return s.min
	case s.n:
		return s.max
	}
	// The sketch returns the value of rank 1 + ⌊q·(n−1)⌋; half a rank more
	// keeps rounding away.
	v, err := s.sketch.GetValueAtQuantile((float64(rank) - 0.5) / float64(s.n-1))
	if err != nil {
		panic(fmt.Sprintf("asking a sketch of %d values for rank %d: %v", s.n, rank, err))
	}
	// The true value x has |v − x| ≤ SketchError·|x|.
	v /= 1 - side*SketchError
	switch {
	case v <= float64(s.min):
		return s.min
	case v >= float64(s.max):
		return s.max
	}
	return int64(math.Round(v))
}

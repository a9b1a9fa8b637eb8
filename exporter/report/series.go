package report

import (
	"math"
	"math/bits"
	"slices"

	"github.com/peel-dev/peel/collector/stats"
)

const (
	// exactMost is how many values a series keeps as they are; beyond, it
	// keeps counts in buckets 1/128 of their value wide, few enough to stay in
	// the CPU's cache.
	exactMost  = 1 << 14
	bucketBits = 7
	numBuckets = (64 - bucketBits) << bucketBits

	// confidence is that of either end of an interval.
	confidence = 0.95
)

// series is the order statistics of times in nanoseconds, in bounded memory.
// Its zero value is empty.
type series struct {
	n, sum  int64
	exact   []int64
	sorted  bool
	buckets []int64 // nil while exact holds all
	max     int64
}

// addPaid adds a time, unless it is none: the exchange did not pay for it.
func (s *series) addPaid(v int64) {
	if v <= 0 {
		return
	}
	s.n++
	s.sum += v
	s.max = max(s.max, v)
	if s.buckets == nil && len(s.exact) < exactMost {
		s.exact = append(s.exact, v)
		s.sorted = false
		return
	}
	if s.buckets == nil {
		s.buckets = make([]int64, numBuckets)
		for _, v := range s.exact {
			s.buckets[bucket(v)]++
		}
		s.exact = nil
	}
	s.buckets[bucket(v)]++
}

// bucket is exact below 256, then 128 buckets for every doubling.
func bucket(v int64) int {
	shift := max(bits.Len64(uint64(v))-bucketBits-1, 0)
	return shift<<bucketBits + int(v>>shift)
}

// middle is the middle of a bucket.
func middle(b int) int64 {
	shift := max(b>>bucketBits-1, 0)
	v := int64(b-shift<<bucketBits) << shift
	return v + int64(1)<<shift/2
}

// rank is the k-th smallest value, k from 1 to n.
func (s *series) rank(k int64) int64 {
	if s.buckets == nil {
		if !s.sorted {
			slices.Sort(s.exact)
			s.sorted = true
		}
		return s.exact[k-1]
	}
	for b, n := range s.buckets {
		if k -= n; k <= 0 {
			return min(middle(b), s.max)
		}
	}
	return s.max
}

// estimate is a quantile; bounded says that there are enough values for both
// bounds.
type estimate struct {
	value, low, high int64
	bounded          bool
}

// interval writes the bounds in the value's unit.
func (e estimate) interval(st Style) string {
	u := unitOf(e.value, st)
	digits := u.digits(e.value)
	return "[" + u.number(e.low, digits, -1) + st.dash() + u.number(e.high, digits, 1) + "]"
}

func (s *series) quantile(q float64) estimate {
	if s.n == 0 {
		return estimate{}
	}
	at := min(max(int64(math.Ceil(q*float64(s.n))), 1), s.n)
	e := estimate{value: s.rank(at)}
	if low, high, ok := ranks(s.n, q); ok {
		e.low, e.high, e.bounded = s.rank(low), s.rank(high), true
	}
	return e
}

// needs is how many values give q an upper bound.
func needs(q float64) int64 { return int64(stats.NeedsN(q, confidence)) }

// ranks are the order statistics that bound the q-quantile of n values, each
// at the confidence above.
func ranks(n int64, q float64) (low, high int64, ok bool) {
	l, u := stats.Ranks(int(n), q, 2*confidence-1)
	if u > int(n) {
		return 0, 0, false
	}
	return max(int64(l), 1), int64(u), true
}

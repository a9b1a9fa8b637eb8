package delayline

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// steps a power of two: values are rounded up by at most 1/steps.
const (
	stepBits = 4
	steps    = 1 << stepBits
	buckets  = (64 - stepBits) * steps
)

// histogram counts nanoseconds. One goroutine adds, others may read.
type histogram struct {
	count [buckets]atomic.Int64
}

func bucket(v int64) int {
	u := uint64(max(v, 0))
	if u < steps {
		return int(u)
	}
	shift := bits.Len64(u) - stepBits - 1
	return shift*steps + int(u>>shift)
}

// upper is the largest value of bucket i.
func upper(i int) int64 {
	if i < 2*steps {
		return int64(i)
	}
	shift := i/steps - 1
	return int64(uint64(i%steps+steps+1)<<shift) - 1
}

func (h *histogram) add(v int64) { h.count[bucket(v)].Add(1) }

func (h *histogram) reset() {
	for i := range h.count {
		h.count[i].Store(0)
	}
}

func (h *histogram) counts() []int64 {
	out := make([]int64, buckets)
	for i := range out {
		out[i] = h.count[i].Load()
	}
	return out
}

// quantile returns the smallest value that at least the share q of what was
// counted does not exceed; 0 when there is nothing.
func quantile(counts []int64, q float64) int64 {
	var total int64
	for _, n := range counts {
		total += n
	}
	rank := int64(math.Ceil(q * float64(total)))
	for i, n := range counts {
		if rank -= n; rank <= 0 && total > 0 {
			return upper(i)
		}
	}
	return 0
}

package delayline

import (
	"math"
	"testing"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for _, v := range []int64{-1, 0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 1000, 12345, 1e6, 1e9, math.MaxInt64} {
		i := bucket(v)
		if i < last || i >= buckets {
			t.Fatalf("bucket(%d) = %d, after %d", v, i, last)
		}
		last = i
		v = max(v, 0)
		if u := upper(i); u < v || float64(u-v) > float64(v)/steps {
			t.Errorf("upper(bucket(%d)) = %d", v, u)
		}
	}
}

func TestQuantile(t *testing.T) {
	var h histogram
	for v := range int64(100) {
		h.add(v * 1000)
	}
	for _, tt := range []struct {
		q    float64
		want int64
	}{{0.01, 0}, {0.5, 49000}, {0.99, 98000}, {1, 99000}} {
		got := quantile(h.counts(), tt.q)
		if got < tt.want || got > tt.want+tt.want/steps {
			t.Errorf("quantile %v = %d, want %d up to 1/%d more", tt.q, got, tt.want, steps)
		}
	}
	h.reset()
	if got := quantile(h.counts(), 0.5); got != 0 {
		t.Errorf("quantile of nothing = %d", got)
	}
}

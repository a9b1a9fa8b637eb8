// Package stats says what samples tell about a distribution, and with which
// certainty. It knows nothing of exchanges.
//
// Quantiles have exact order-statistic intervals, which assume nothing of the
// distribution but that samples are independent; exchanges on the same
// connection are not quite.
package stats

import "math"

// NeedsN returns the least n at which the largest of n samples is at or above
// the q-quantile with the given confidence: the least n with 1 − qⁿ ≥
// confidence. At 0.95 that is 5 for the median, 59 for P95, 299 for P99. q and
// confidence are within (0, 1).
func NeedsN(q, confidence float64) int {
	return int(math.Ceil(math.Log1p(-confidence) / math.Log(q)))
}

// Ranks returns the ranks l ≤ u, counted from 1, of the samples that bound the
// q-quantile of n samples: the interval [X(l), X(u)] holds it with at least
// the given confidence, as B(u−1; n, q) − B(l−1; n, q) does, where B is the
// binomial distribution function; each side misses with at most half of the
// rest (Hahn and Meeker, Statistical Intervals, section 5.2). l is 0 and u is
// n + 1 where no sample bounds that side.
func Ranks(n int, q, confidence float64) (l, u int) {
	miss := (1 - confidence) / 2
	// The largest l with B(l−1) ≤ miss; the smallest u with B(u−1) ≥ 1−miss,
	// which is the same question about the other tail.
	return lowerRank(n, q, miss), n + 1 - lowerRank(n, 1-q, miss)
}

// lowerRank returns the largest l ≤ n with P(X ≤ l−1) ≤ miss, X binomial with
// n trials of probability p; 0 if there is none.
func lowerRank(n int, p, miss float64) int {
	if n <= 0 {
		return 0
	}
	// Begin so far below the mean that what lies before does not matter: ten
	// standard deviations and more.
	mean := float64(n) * p
	k := max(0, int(mean-10*math.Sqrt(mean*(1-p))-10))
	term := math.Exp(logBinomial(n, k, p))
	odds := p / (1 - p)
	for sum := 0.0; k < n; k++ {
		if sum += term; sum > miss {
			return k
		}
		term *= float64(n-k) / float64(k+1) * odds
	}
	return n
}

// logBinomial is the logarithm of the binomial probability of k in n.
func logBinomial(n, k int, p float64) float64 {
	choose := lgamma(n+1) - lgamma(k+1) - lgamma(n-k+1)
	return choose + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p)
}

func lgamma(x int) float64 {
	v, _ := math.Lgamma(float64(x))
	return v
}

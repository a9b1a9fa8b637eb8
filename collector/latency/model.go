package latency

import (
	"math"
	"slices"

	"github.com/peel-dev/peel/collector/exchange"
)

// Everything that can be tuned is here. Times are nanoseconds. The figures
// come from a delay line between two network namespaces of a virtual machine,
// 1–50 ms one way, with hooks on both ends (see the package comment).
const (
	microsecond int64 = 1000
	millisecond       = 1000 * microsecond
	second            = 1000 * millisecond

	// maxRTT: a larger round trip is taken for a broken sample.
	maxRTT = 60 * second

	// sampleAge: samples older than the kernel's own window for its minimum
	// (tcp_min_rtt_wlen) say nothing about the path of today.
	sampleAge = 300 * second

	// maxSamples of each list are looked at; the contract allows no more.
	maxSamples = 32

	// medianOf the latest samples stands for a path that jitters: few enough
	// to follow its queues, enough to ignore one stall.
	medianOf = 16

	// lastFew of the samples of an upload show the queue that it made; the
	// earlier ones a shorter one.
	lastFew = 3

	// enough samples of the connection itself, so that those of other
	// connections to the same address (perhaps another route) are left out,
	// and so that a calm path can be told from one not yet seen.
	enough = 8

	// delayedACK: a pure ACK that much over the path's minimum waited for the
	// receiver's delayed-ACK timer (40 ms in Linux, at times part of it), or
	// might have. Long paths get an eighth of their minimum more, short of 40.
	delayedACK    = 20 * millisecond
	delayedACKMax = 38 * millisecond

	// lowSlack and a thousandth of the round trip: how much less than the
	// smallest sample a round trip was seen to be. The kernel's sample is p50
	// 10, p99 42 µs longer than the hooks'; responses came up to 43 µs sooner than
	// that minimum.
	lowSlack = 50 * microsecond

	// coldSlack over the number of samples that agree: the first packets of a
	// connection are slower than later ones (SYN samples by up to 250 µs), and
	// the smallest of few samples is not yet the smallest.
	coldSlack = 400 * microsecond

	// highSlack and nine thousandths of the round trip: what a round trip on a
	// calm path stays within, above the smallest sample (p90 52–158 µs). With
	// lowSlack, bounds are 180 µs and 1 % of the round trip wide.
	highSlack = 130 * microsecond

	// calmSlack more: pure ACKs are up to 100 µs slower than the responses
	// whose network time they stand for.
	calmSlack = 100 * microsecond

	// steadySlack and a two hundredth of the round trip: a median further above
	// the minimum than this means jitter, or a path that got longer. On steady paths it was 92 µs (2 ms) to 224 µs (100 ms).
	steadySlack = 250 * microsecond

	// agreeSlack and a five hundredth of the round trip: samples this close
	// confirm each other. It is less than a stall (half a millisecond and more)
	// that hits one of them less the cold start of the other.
	agreeSlack = 200 * microsecond

	// stall: the longest of the pauses of a machine, scheduler or hypervisor
	// that hit about one exchange in a hundred (p99 of the error 0.5–3 ms).
	// Where no samples show that the path is calm, a bound allows for one.
	stall = 3 * millisecond

	// reachLow, reachHigh over the square root of the number of samples: how
	// far beyond the extremes of a path that is not calm the bounds go, in
	// units of median − minimum and maximum − median. Above it goes further,
	// as a stall may come on top of jitter.
	reachLow  = 3.0
	reachHigh = 5.0

	// usualNear of the recent waits must be as long as this one to call it
	// usual, and at most stallRatio times as many such that a stall would have
	// made them so: a stall hits one in a hundred, and is rarely just as long
	// as two servers' times differ.
	usualNear  = 4
	stallRatio = 2

	// clusterReach: recent waits at most so much shorter than this one are
	// taken for the same work of the server. What this wait is longer than
	// the quicker quarter of them may have been the network's.
	clusterReach = 800 * microsecond

	// uploadSlack: the last segment of a request of many may queue behind the
	// others, and no ACK of its own tells for how long (p99 3.5–4.3 ms for
	// 100 kB).
	uploadSlack = 4 * millisecond

	// lossyShare: a connection that retransmitted once in so many exchanges
	// loses packets; rarer losses are within what bounds may miss.
	lossyShare = 500

	// rtoMin and rtoSlack: an answer of one segment that is lost comes again
	// after the sender's retransmission timeout: at least 200 ms in Linux, and
	// at most its smoothed round trip (which may hold a delayed ACK of 40 ms)
	// and as much variation more.
	rtoMin   = 200 * millisecond
	rtoSlack = 300 * millisecond
)

// The values of Quality.RTTSource.
const (
	SourceMin    = "rtt_min"    // the smallest round trip seen lately, the kernel's as a rule
	SourceMedian = "ack_median" // the median of recent clean ACKs
	SourceOwn    = "own_ack"    // the ACK of the request itself
	SourceSYN    = "syn"        // SYN to SYN-ACK, and nothing else
	SourceNone   = "none"       // no sample at all
)

// roundTrip is what one round trip took at a certain time.
type roundTrip struct {
	value, low, high int64
	source           string
}

// question says which round trip is wanted.
type question struct {
	from, to int64 // the packets left at or after from; the answer came at to
	own      int64 // their own pure ACK, 0 if none came before the answer
	segments int   // packets sent in one go
	resent   bool  // own may answer an earlier copy
	lossy    bool  // the path lost packets lately
	wait     int64 // how long the server's answer took, 0 for a handshake
}

// estimate chooses the best evidence for the value and lets all of it speak
// in the bounds.
func estimate(ev *exchange.Evidence, q question) roundTrip {
	own := valid(q.own)
	if q.resent {
		own = 0
	}
	syn, hello := valid(ev.SYNRTT), valid(ev.HelloACK)
	floor := least(least(valid(ev.KernelMinRTT), syn), least(hello, own))

	var s samples
	s.add(ev.CleanACKs, q.to)
	if s.n < enough {
		s.add(ev.PathACKs, q.to)
	}
	floor = least(floor, s.min)
	if floor == 0 {
		return roundTrip{high: math.MaxInt64, source: SourceNone}
	}
	highest, agree := s.keepPrompt(floor)
	for _, v := range [...]int64{syn, hello, own} {
		if agrees(v, floor) {
			agree++
		}
	}
	if own == hello && agrees(own, floor) {
		agree-- // asked about the handshake: it is one sample
	}

	rt := roundTrip{value: floor, source: SourceMin}
	if s.n == 0 && own == 0 && hello == 0 && syn > 0 {
		rt.source = SourceSYN
	}

	rt.low = floor - lowSlack - floor/1000
	if agree < 2 {
		rt.low -= stall
	} else {
		rt.low -= coldSlack / int64(agree)
	}
	steady := highSlack + floor*9/1000
	rt.high = floor + steady
	near, stalled := compare(q.wait, ev.Waits, steady)
	suspicious := stalled >= usualNear && stalled > stallRatio*near
	loud := s.n < enough || highest > rt.high+calmSlack || q.lossy || suspicious
	median := floor
	if loud && s.n > 1 {
		median = s.median()
	}
	jitter := median > floor+steadySlack+floor/200
	usual := near >= usualNear && stalled <= stallRatio*near
	if loud && (!usual || jitter || q.lossy) {
		rt.high += stall
		if s.n > 1 {
			root := math.Sqrt(float64(s.n))
			rt.low = min(rt.low, floor-lowSlack-int64(reachLow/root*float64(median-floor)))
			rt.high = max(rt.high, highest+int64(reachHigh/root*float64(highest-median)))
		}
	}

	if quick, ok := quickest(q.wait, ev.Waits, steady); ok {
		rt.high = max(rt.high, floor+calmSlack+floor*9/1000+q.wait-quick)
	}

	prompt := own > 0 && own <= floor+delayed(floor)
	if prompt {
		// It holds the way there; the way back is another packet's.
		rt.high = max(rt.high, own+steady)
	}
	switch {
	case q.segments > 1 && prompt:
		rt.value, rt.source = own, SourceOwn
		rt.high = max(rt.high, own+steady+stall)
	case q.segments > 1:
		if m := medianSince(ev.CleanACKs, q.from); m > 0 {
			rt.value, rt.source = m, SourceMedian
			rt.high = max(rt.high, m+steady+stall)
		} else {
			if jitter {
				rt.value, rt.source = median, SourceMedian
			}
			rt.high = max(rt.high, rt.value) + uploadSlack
		}
	case jitter && prompt:
		// The way back of the answer is another packet's: half of what is
		// unusual about the ACK is to be expected again.
		rt.value, rt.source = own/2+median/2, SourceOwn
	case jitter:
		rt.value, rt.source = median, SourceMedian
	}
	rt.low = max(0, min(rt.low, rt.value))
	rt.high = max(rt.high, rt.value)
	return rt
}

// compare counts the recent waits that were as long as this one, within
// steady, and those that would have been if a stall had hit them.
func compare(wait int64, waits []int64, steady int64) (near, stalled int) {
	if wait <= 0 {
		return 0, 0
	}
	for _, w := range waits[:min(len(waits), maxSamples)] {
		switch shorter := wait - max(w, 0); {
		case w <= 0 || shorter > stall+steady || shorter < -steady:
		case shorter <= steady:
			near++
		default:
			stalled++
		}
	}
	return near, stalled
}

// quickest returns how long the quicker quarter of the recent waits like this
// one took, if there are enough of them.
func quickest(wait int64, waits []int64, steady int64) (int64, bool) {
	var like [maxSamples]int64
	n := 0
	for _, w := range waits[:min(len(waits), maxSamples)] {
		if w > 0 && wait-w <= clusterReach && w-wait <= steady {
			like[n] = w
			n++
		}
	}
	if wait <= 0 || n < usualNear {
		return 0, false
	}
	slices.Sort(like[:n])
	return like[n/4], true
}

// delayed is how far above a path's minimum a pure ACK counts as prompt.
func delayed(floor int64) int64 { return min(delayedACK+floor/8, delayedACKMax) }

// agrees reports whether v confirms floor.
func agrees(v, floor int64) bool { return v > 0 && v <= floor+agreeSlack+floor/500 }

// samples are round trips that can be trusted, latest first.
type samples struct {
	n   int
	min int64 // 0: there is none
	v   [2 * maxSamples]int64
}

// add appends what is valid and not too old at the time to.
func (s *samples) add(list []exchange.RTTSample, to int64) {
	for i := range min(len(list), maxSamples) {
		rtt, at := valid(list[i].RTT), list[i].At
		if rtt == 0 || at <= 0 || to-at > sampleAge {
			continue
		}
		s.v[s.n] = rtt
		s.n++
		s.min = least(s.min, rtt)
	}
}

// keepPrompt drops what a delayed ACK may have made longer. It returns the
// longest that is left, and how many confirm floor.
func (s *samples) keepPrompt(floor int64) (highest int64, agree int) {
	limit := floor + delayed(floor)
	n := 0
	for _, v := range s.v[:s.n] {
		if v > limit {
			continue
		}
		s.v[n] = v
		n++
		highest = max(highest, v)
		if agrees(v, floor) {
			agree++
		}
	}
	s.n = n
	return highest, agree
}

// median returns that of the latest.
func (s *samples) median() int64 {
	n := min(s.n, medianOf)
	var v [medianOf]int64
	copy(v[:], s.v[:n])
	return middle(v[:n])
}

// medianSince returns the median of the last few samples of packets that left
// at or after from, 0 if there is none.
func medianSince(list []exchange.RTTSample, from int64) int64 {
	var v [lastFew]int64
	n := 0
	for i := range min(len(list), maxSamples) {
		rtt := valid(list[i].RTT)
		if n == len(v) || list[i].At <= 0 || list[i].At-rtt < from {
			break
		}
		if rtt > 0 {
			v[n] = rtt
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return middle(v[:n])
}

// middle sorts v and returns its median.
func middle(v []int64) int64 {
	slices.Sort(v)
	n := len(v)
	return v[(n-1)/2]/2 + v[n/2]/2
}

// valid returns a round trip as it is, or 0 where it cannot be one.
func valid(rtt int64) int64 {
	if rtt < 0 || rtt > maxRTT {
		return 0
	}
	return rtt
}

// least returns the smaller of two times, of which 0 is not known.
func least(a, b int64) int64 {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}

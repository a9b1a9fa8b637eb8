package latency

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
)

// line is a path between two hosts with known delays. Times are nanoseconds.
type line struct {
	delay, jitter int64   // one way; jitter is the most that a packet is late
	noise         int64   // mean lateness of any packet: scheduling, interrupts
	stalls        float64 // share of round trips that a pause of a machine hits
	loss          float64 // share of packets lost, each way
	cold          int64   // the most that a connection's first packets are late
}

// load is what the client asks for over it.
type load struct {
	name   string
	line   line
	server []int64 // what the server sleeps, one of them at random
	upload bool    // 100 kB of request
	fresh  bool    // a new connection each, others to the same address before
	plain  bool    // no TLS: a new connection has its SYN only
	alone  bool    // one connection, no samples of others
	single bool    // the answer is one packet, so that its loss is silent
	want   limits
}

// limits are generous: they fail when the model breaks, not when it gets a
// little worse. Errors and widths are nanoseconds, 0 for no limit.
type limits struct {
	median, p99, width int64
	coverage           float64
}

// packets go one way, in order.
type packets struct {
	line *line
	rnd  *rand.Rand
	last int64
}

func (p *packets) send(at int64, extra int64) (arrives int64) {
	l := p.line
	late := extra + int64(p.rnd.ExpFloat64()*float64(l.noise))
	if l.jitter > 0 {
		late += p.rnd.Int64N(l.jitter)
	}
	if p.rnd.Float64() < l.stalls/2 {
		late += stallOf(p.rnd)
	}
	p.last = max(p.last, at+l.delay+late)
	return p.last
}

func (p *packets) lost() bool { return p.rnd.Float64() < p.line.loss }

// stallOf is as long as pauses were measured to be.
func stallOf(rnd *rand.Rand) int64 { return between(rnd, 500*microsecond, 3*millisecond) }

func between(rnd *rand.Rand, low, high int64) int64 { return low + rnd.Int64N(high-low) }

// host is a client with one connection, and what it knows of the path.
type host struct {
	load     *load
	rnd      *rand.Rand
	now      int64
	out      packets
	back     packets
	ev       exchange.Evidence
	resent   int
	others   []exchange.RTTSample
	waits    []int64
	sequence int
}

func (h *host) connect() {
	l := &h.load.line
	h.now += between(h.rnd, 5*millisecond, 30*millisecond)
	h.out, h.back = packets{line: l, rnd: h.rnd}, packets{line: l, rnd: h.rnd}
	if !h.load.alone {
		h.others = append(slices.Clone(h.ev.CleanACKs), h.others...)
		h.others = h.others[:min(len(h.others), maxSamples)]
	}
	h.ev = exchange.Evidence{PathACKs: h.others}
	h.resent, h.sequence = 0, 0
	cold := func() int64 { return h.rnd.Int64N(max(l.cold, 1)) }
	in := h.back.send(h.out.send(h.now, cold())+20*microsecond, 0)
	h.ev.SYNRTT = in - h.now
	h.kernel(in - h.now)
	h.now = in + 200*microsecond
	if h.load.plain {
		return
	}
	in = h.back.send(h.out.send(h.now, cold()/2)+20*microsecond, 0)
	h.ev.HelloACK = in - h.now
	h.kernel(in - h.now)
	h.now = in + 900*microsecond
}

// kernel takes a round trip as the kernel does: a little later than the hooks,
// in microseconds.
func (h *host) kernel(rtt int64) {
	rtt = (rtt + 8*microsecond + int64(h.rnd.ExpFloat64()*4000)) / microsecond * microsecond
	h.ev.KernelMinRTT = least(h.ev.KernelMinRTT, rtt)
}

func (h *host) sample(at, rtt int64) {
	h.ev.CleanACKs = slices.Insert(h.ev.CleanACKs, 0, exchange.RTTSample{At: at, RTT: rtt})
	h.ev.CleanACKs = h.ev.CleanACKs[:min(len(h.ev.CleanACKs), maxSamples)]
}

// exchange makes one, and returns what the server really took.
func (h *host) exchange() (*exchange.Record, int64) {
	rnd := h.rnd
	h.now += between(rnd, 1*millisecond, 20*millisecond)
	r := &exchange.Record{TLS: &exchange.TLSInfo{}}
	h.sequence++
	r.Connection.Reused, r.Connection.Sequence = h.sequence > 1, h.sequence
	ev := h.ev
	ev.CleanACKs = slices.Clone(ev.CleanACKs)
	ev.RequestSegments = 1
	t := exchange.Timeline{Need: h.now, FirstOut: h.now + 30*microsecond, Written: h.now}
	t.LastOut = t.FirstOut
	var queue int64
	if h.load.upload {
		ev.RequestSegments = 70
		t.LastOut += between(rnd, 200*microsecond, millisecond)
		queue = between(rnd, 200*microsecond, 3*millisecond)
		for i := range int64(8) {
			at := t.FirstOut + (t.LastOut-t.FirstOut)*i/8
			rtt := h.back.send(h.out.send(at, queue*i/8)+20*microsecond, 0) - at
			ev.CleanACKs = slices.Insert(ev.CleanACKs, 0, exchange.RTTSample{At: at + rtt, RTT: rtt})
		}
		ev.CleanACKs = ev.CleanACKs[:min(len(ev.CleanACKs), maxSamples)]
	}
	t.LastOutFirst = t.LastOut
	smoothed := ev.KernelMinRTT + between(rnd, 0, 5*millisecond)
	for wait := 200*millisecond + smoothed; h.out.lost(); wait *= 2 {
		t.LastOut += wait
		ev.RequestResent = true
		h.resent++
	}
	in := h.out.send(t.LastOut, queue)
	sleep := between(rnd, 300*millisecond, 3*second)
	if n := len(h.load.server); n > 0 {
		sleep = h.load.server[rnd.IntN(n)]
	}
	serves := sleep + between(rnd, 100*microsecond, 400*microsecond)

	// The ACK: at once when the server was idle, in 40 ms when it took part in
	// a dialogue, at times in a part of that; with the answer if that is first.
	ack := in + 20*microsecond
	switch {
	case sleep > 200*millisecond, sleep == 0:
		if rnd.Float64() < 0.02 {
			ack += between(rnd, 0, 40*millisecond)
		}
	default:
		ack += between(rnd, 40*millisecond, 44*millisecond)
	}
	answer := in + serves
	if ack < answer {
		acked := h.back.send(ack, 0)
		if !h.out.lost() {
			t.Acked, ev.OwnACK = acked, acked-t.LastOut
			if h.load.upload || !ev.RequestResent {
				h.kernel(ev.OwnACK)
			}
		} else if again := t.LastOut + 2*smoothed + 200*millisecond; again < answer {
			// It was not needed, but the client sent it once more.
			t.LastOut, ev.RequestResent = again, true
			h.resent++
		}
	}
	arrives := h.back.send(answer, 0)
	for timeout := 200*millisecond + smoothed; h.load.single && h.back.lost(); timeout *= 2 {
		arrives = h.back.send(answer+timeout, 0)
	}
	t.FirstIn = max(arrives, t.LastOut)
	if t.Acked == 0 {
		h.kernel(arrives - t.LastOut)
		t.Acked = arrives
	} else if !ev.RequestResent {
		h.sample(t.Acked, ev.OwnACK)
	}
	t.LastIn = t.FirstIn + 20*microsecond
	t.FirstRead = t.LastIn + 60*microsecond
	t.LastRead = t.FirstRead + 10*microsecond
	h.now = t.LastRead
	if rnd.IntN(3) == 0 {
		// The client confirms a setting or opens a window: nothing but a late
		// ACK answers that.
		h.sample(h.now+50*millisecond, 2*h.load.line.delay+between(rnd, 40*millisecond, 44*millisecond))
	}
	ev.KernelMinRTT = h.ev.KernelMinRTT
	ev.Waits = slices.Clone(h.waits)
	if !ev.RequestResent {
		h.waits = slices.Insert(h.waits, 0, t.FirstIn-t.LastOut)
		h.waits = h.waits[:min(len(h.waits), maxSamples)]
	}
	r.Timeline, r.Evidence, r.Connection.Retransmits = t, ev, h.resent
	return r, serves
}

// outcome of a load.
type outcome struct {
	errors, widths []int64
	held           int
	above, below   int // how often the truth was
}

func (o *outcome) add(r *exchange.Record, truth int64) {
	send, wait := r.Phases[exchange.Send].Parts[exchange.Server], r.Phases[exchange.Wait].Parts[exchange.Server]
	low, high := wait.Low, send.High+wait.High
	e := wait.Value - truth
	o.errors = append(o.errors, max(e, -e))
	o.widths = append(o.widths, high-low)
	switch {
	case truth < low:
		o.below++
	case truth > high:
		o.above++
	default:
		o.held++
	}
}

func (o *outcome) coverage() float64 { return float64(o.held) / float64(len(o.errors)) }

func at(v []int64, q float64) int64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(math.Ceil(q*float64(len(v))))-1]
}

// TestModel runs the estimator on paths whose truth is known.
func TestModel(t *testing.T) {
	mixed := []int64{0, millisecond, 8 * millisecond, 50 * millisecond, 300 * millisecond}
	steady := func(d int64) line {
		return line{delay: d * millisecond, noise: 15 * microsecond, stalls: 0.01, cold: 250 * microsecond}
	}
	calm := func(d int64) line { l := steady(d); l.stalls = 0.001; return l }
	jitter := func(d, j int64) line { l := steady(d); l.jitter = j * millisecond; return l }
	lossy := func(d int64, p float64) line { l := steady(d); l.loss = p; return l }
	local := line{delay: 15 * microsecond, noise: 8 * microsecond, stalls: 0.01, cold: 50 * microsecond}
	only := func(ms int64) []int64 { return []int64{ms * millisecond} }

	narrow := func(d int64) limits {
		return limits{median: 60 * microsecond, p99: 2 * millisecond, width: 3 * budget(d*millisecond) / 2, coverage: 0.995}
	}
	// All samples are of the connection's first packets.
	usual := func(d int64) limits {
		return limits{median: 100 * microsecond, width: 2 * budget(d*millisecond), coverage: 0.995}
	}
	thin := limits{median: 150 * microsecond, p99: 2 * millisecond, width: 5 * millisecond, coverage: 0.998}
	loose := func(median, width int64, coverage float64) limits {
		return limits{median: median * microsecond, width: width * millisecond, coverage: coverage}
	}

	loads := []load{
		{name: "1ms", line: steady(1), server: mixed, want: narrow(1)},
		{name: "5ms", line: steady(5), server: mixed, want: narrow(5)},
		{name: "20ms", line: steady(20), server: mixed, want: narrow(20)},
		{name: "50ms", line: steady(50), server: mixed, want: narrow(50)},
		{name: "5ms calm", line: calm(5), server: mixed, want: limits{60 * microsecond, 300 * microsecond, 5 * budget(5*millisecond) / 4, 0.998}},
		{name: "5ms server 0", line: steady(5), server: only(0), want: narrow(5)},
		{name: "20ms server 300ms", line: steady(20), server: only(300), want: narrow(20)},
		{name: "5ms server 1ms", line: steady(5), server: only(1), want: usual(5)},
		{name: "20ms server 8ms", line: steady(20), server: only(8), want: usual(20)},
		{name: "5ms new conn", line: steady(5), server: mixed, fresh: true, want: narrow(5)},
		{name: "5ms new conn plain", line: steady(5), server: mixed, fresh: true, plain: true, want: narrow(5)},
		{name: "5ms first conn", line: steady(5), server: mixed, fresh: true, alone: true, want: thin},
		{name: "5ms first plain", line: steady(5), server: mixed, fresh: true, alone: true, plain: true, want: thin},
		{name: "1ms jitter 2ms", line: jitter(1, 2), server: mixed, want: loose(700, 8, 0.99)},
		{name: "10ms jitter 5ms", line: jitter(10, 5), server: mixed, want: loose(1600, 17, 0.99)},
		{name: "10ms jitter 5ms new", line: jitter(10, 5), server: mixed, fresh: true, want: loose(1600, 17, 0.99)},
		{name: "10ms loss 1%", line: lossy(10, 0.01), server: mixed, want: loose(60, 4, 0.998)},
		{name: "10ms loss 3%", line: lossy(10, 0.03), server: mixed, want: loose(60, 4, 0.998)},
		{name: "10ms loss 3% single", line: lossy(10, 0.03), server: mixed, single: true, want: loose(60, 4, 0.995)},
		{name: "5ms upload", line: steady(5), server: mixed, upload: true, want: loose(300, 8, 0.995)},
		{name: "20ms upload", line: steady(20), server: mixed, upload: true, want: loose(300, 8, 0.995)},
		{name: "5ms server varies", line: steady(5), want: narrow(5)},
		{name: "loopback", line: local, server: mixed, want: narrow(0)},
	}
	t.Logf("%-20s %7s %7s %7s %7s %8s %5s %5s", "server part, µs", "median", "p99", "width", "wanted", "held", "below", "above")
	for i, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			o := l.run(t, rand.New(rand.NewPCG(1, uint64(i))))
			median, p99, width := at(o.errors, 0.5), at(o.errors, 0.99), at(o.widths, 0.5)
			t.Logf("%-20s %7d %7d %7d %7d %7.2f%% %5d %5d", l.name, median/1000, p99/1000, width/1000,
				budget(l.line.delay)/1000, 100*o.coverage(), o.below, o.above)
			exceeds := func(what string, got, limit int64) {
				if limit > 0 && got > limit {
					t.Errorf("%s %d ns, want at most %d", what, got, limit)
				}
			}
			exceeds("median error", median, l.want.median)
			exceeds("p99 error", p99, l.want.p99)
			exceeds("median width", width, l.want.width)
			if o.coverage() < l.want.coverage {
				t.Errorf("bounds hold %.2f %% of truths, want %.1f", 100*o.coverage(), 100*l.want.coverage)
			}
		})
	}
}

// budget is how wide bounds should be at most on a steady path: 200 µs and a
// hundredth of the round trip.
func budget(delay int64) int64 { return 200*microsecond + 2*delay/100 }

// run makes 20 000 exchanges.
func (l *load) run(t *testing.T, rnd *rand.Rand) *outcome {
	h := &host{load: l, rnd: rnd, now: second}
	var o outcome
	for n := range 20000 {
		if l.fresh || n%500 == 0 {
			h.connect()
		}
		r, truth := h.exchange()
		Split(r)
		if err := Check(r); err != nil {
			t.Fatal(err)
		}
		o.add(r, truth)
	}
	return &o
}

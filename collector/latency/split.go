package latency

import (
	"cmp"
	"math"
	"slices"

	"github.com/peel-dev/peel/collector/exchange"
)

// What a record's notes say about its split.
const (
	noteStart     = "start not observed: counted from the first mark"
	noteDNS       = "dns not observed"
	noteConnect   = "connect not observed"
	noteNoSYNACK  = "connect not answered"
	noteSYNAgain  = "syn sent again: its timeout is in connect"
	noteTLS       = "tls not observed"
	noteNoTLS     = "tls handshake not completed"
	noteFlight    = "server's handshake flight not observed: tls parties only bounded"
	noteSend      = "request not observed"
	noteNoAnswer  = "no answer"
	noteReceive   = "end of response not observed"
	noteRead      = "reads not observed"
	noteRTT       = "no round trip known: network and server only bounded"
	noteEarlyData = "request left within the tls handshake"
	noteResent    = "request sent again: server may have had it earlier"
	noteLost      = "path lost packets: a lost answer may hide in wait"
)

// Split fills Phases, Components, TTFB, Total and Quality.RTTSource of r from
// its Timeline and Evidence, and adds to Quality.Notes what could not be told.
// It takes any marks: those that are missing or out of order shift time
// between phases, but the phases always add up to Total, and the parts of each
// to it. Splitting again gives the same.
func Split(r *exchange.Record) {
	r.Phases = [exchange.NumPhases]exchange.Split{}
	s := splitter{r: r, ev: &r.Evidence, t: plausible(r.Timeline)}
	s.clock = clock(s.t.Need)
	if s.t.Need == 0 {
		if s.clock = clock(first(&s.t)); s.clock != 0 {
			s.note(noteStart)
		}
	}
	start := int64(s.clock)

	s.setUp()
	s.request()
	s.answer()

	r.Total = int64(s.clock) - start
	r.TTFB = 0
	if in := s.firstIn(); in > start {
		r.TTFB = in - start
	}
	s.blocked()
	r.Components = components(r)
}

// clock walks along the marks.
type clock int64

// to goes on to mark and returns the time that took: 0 for a mark that is
// missing or lies behind.
func (c *clock) to(mark int64) int64 {
	d := mark - int64(*c)
	if d <= 0 {
		return 0
	}
	*c = clock(mark)
	return d
}

type splitter struct {
	r     *exchange.Record
	ev    *exchange.Evidence
	t     exchange.Timeline
	clock clock

	between int64 // time between phases
	unseen  int64 // the same where a phase that was not seen may lie in it
	hidden  bool  // such a phase comes before the next mark
}

func (s *splitter) phase(p exchange.Phase) *exchange.Split { return &s.r.Phases[p] }

// note adds n once.
func (s *splitter) note(n string) {
	if !slices.Contains(s.r.Quality.Notes, n) {
		s.r.Quality.Notes = append(s.r.Quality.Notes, n)
	}
}

// gap goes on to the start of a phase, if there is such a mark.
func (s *splitter) gap(mark int64) {
	if mark == 0 {
		return
	}
	if s.hidden {
		s.unseen += s.clock.to(mark)
	} else {
		s.between += s.clock.to(mark)
	}
	s.hidden = false
}

// missing marks a phase as not seen.
func (s *splitter) missing(n string) {
	s.note(n)
	s.hidden = true
}

// firstIn is the arrival of the answer's first byte, 0 if none came.
func (s *splitter) firstIn() int64 {
	if s.t.FirstIn == 0 {
		return s.t.LastIn
	}
	return s.t.FirstIn
}

// setUp splits dns, connect and tls.
func (s *splitter) setUp() {
	t, reused := &s.t, s.r.Connection.Reused
	syn := cmp.Or(t.FirstSYN, t.SYN)
	dns, connect, tls := s.phase(exchange.DNS), s.phase(exchange.Connect), s.phase(exchange.TLS)

	switch {
	case syn > 0:
		s.note(noteDNS)
		s.gap(syn)
		connect.Seen = true
		connect.Total = s.clock.to(max(t.SYN, t.SYNACK))
		connect.Parts[exchange.Network] = exact(connect.Total)
		if t.SYN > syn {
			s.note(noteSYNAgain)
		}
		if t.SYNACK == 0 {
			s.note(noteNoSYNACK)
		}
	case reused:
		dns.Seen, connect.Seen = true, true
	default:
		s.missing(noteConnect)
	}

	switch {
	case t.Hello > 0:
		s.gap(t.Hello)
		tls.Seen = true
		s.handshake(tls)
	case reused || s.r.TLS == nil || (syn > 0 && t.SYNACK == 0):
		tls.Seen = true
	default:
		s.missing(noteTLS)
	}
}

// handshake splits tls, from Hello on. The server's part is what its flight
// took longer than a round trip; the flight's own length is network, unless
// the server computed between its segments; from then to Finished is the
// client's. The second round trip of a HelloRetryRequest and of a full TLS
// 1.2 handshake are network.
func (s *splitter) handshake(tls *exchange.Split) {
	t := &s.t
	if t.Secured == 0 {
		s.note(noteNoTLS)
	}
	rt := estimate(s.ev, question{from: t.Hello, to: max(t.ServerFlight, t.Secured), own: s.ev.HelloACK, segments: 1})
	parts := &tls.Parts
	if t.ServerFlight == 0 {
		tls.Total = s.clock.to(t.Secured)
		if tls.Total > 0 {
			s.note(noteFlight)
		}
		parts[exchange.Network], parts[exchange.Server] = share(tls.Total, rt, 0)
		// Any of the rest may be the client's computing.
		parts[exchange.Server].Low = 0
		parts[exchange.Client] = exchange.Bounded{High: parts[exchange.Server].High}
		return
	}
	flight := s.clock.to(t.ServerFlight)
	var segments int64
	if !s.ev.FullHandshake12 || t.FlightEnd < t.Secured {
		// Else it is the end of the second flight; the first's is not known.
		segments = s.clock.to(t.FlightEnd)
	}
	rest := s.clock.to(t.Secured)
	tls.Total = flight + segments + rest

	if s.ev.HelloRetry {
		rt2 := roundTrip{value: 2 * rt.value, low: 2 * rt.low, high: sat(rt.high, rt.high)}
		network, server := share(flight, rt2, 0)
		parts[exchange.Network], parts[exchange.Server] = network, server
		// The client computed its second hello in it.
		parts[exchange.Server].Low = 0
		parts[exchange.Client].High = server.High
	} else {
		parts[exchange.Network], parts[exchange.Server] = share(flight, rt, 0)
	}

	add(&parts[exchange.Network], exchange.Bounded{Value: segments, High: segments})
	add(&parts[exchange.Server], exchange.Bounded{High: segments})

	if !s.ev.FullHandshake12 {
		add(&parts[exchange.Client], exact(rest))
		return
	}
	// Both compute around the second round trip, and no mark tells them apart:
	// the values are the middle.
	network, both := share(rest, rt, 0)
	add(&parts[exchange.Network], network)
	add(&parts[exchange.Client], exchange.Bounded{Value: both.Value - both.Value/2, High: both.High})
	add(&parts[exchange.Server], exchange.Bounded{Value: both.Value / 2, High: both.High})
}

// request splits send.
func (s *splitter) request() {
	t, send := &s.t, s.phase(exchange.Send)
	if t.FirstOut == 0 || t.LastOut == 0 {
		s.gap(t.FirstOut)
		s.missing(noteSend)
		return
	}
	if t.Hello > 0 && t.FirstOut < t.FlightEnd {
		s.note(noteEarlyData)
	}
	s.gap(t.FirstOut)
	end := t.LastOut
	if in := s.firstIn(); in > 0 {
		end = min(end, in) // answered early: the rest is not what took time
	}
	send.Seen = true
	send.Total = s.clock.to(end)

	left := send.Total
	network := take(&left, s.ev.SendNetwork)
	server := take(&left, s.ev.SendWindow)
	client := take(&left, s.ev.SendClient)
	again := s.ev.RequestResent && t.LastOutFirst > 0 && t.LastOutFirst < t.LastOut
	if again {
		// From the first copy of the last byte to the last is recovery.
		recovery := min(t.LastOut-t.LastOutFirst, send.Total)
		if more := recovery - network; more > 0 {
			more = min(more, left+client)
			network += more
			client -= max(0, more-left)
			left -= min(left, more)
		}
	}
	// What is left nobody accounts for: this host's stack, or a queue.
	send.Parts[exchange.Client] = bounded(client+left, client, client+left)
	send.Parts[exchange.Network] = bounded(network, network, network+left)
	send.Parts[exchange.Server] = exact(server)
	if again {
		// The first copy may have come through and only its ACK been lost:
		// then the server worked all this time.
		s.note(noteResent)
		send.Parts[exchange.Network].Low = 0
		send.Parts[exchange.Server].High = server + network
	}
}

// answer splits wait, receive and read.
func (s *splitter) answer() {
	t := &s.t
	rt := s.wait()

	in := s.firstIn()
	receive := s.phase(exchange.Receive)
	switch {
	case in == 0:
		// wait has said so.
	case t.LastIn == 0:
		s.missing(noteReceive)
	default:
		receive.Seen = true
		receive.Total = s.clock.to(t.LastIn)
		s.receive(receive, rt)
	}

	read := s.phase(exchange.Read)
	switch {
	case t.LastRead == 0:
		if in > 0 {
			s.note(noteRead)
		}
	case s.hidden:
		s.gap(t.LastRead)
	default:
		read.Seen = true
		read.Total = s.clock.to(t.LastRead)
		read.Parts[exchange.Client] = exact(read.Total)
	}
}

// wait splits wait: one round trip is network, the rest the server's.
func (s *splitter) wait() roundTrip {
	t, ev, wait := &s.t, s.ev, s.phase(exchange.Wait)
	in := s.firstIn()
	end := in
	if in == 0 {
		s.note(noteNoAnswer)
		end = t.Acked
	}
	lossy := ev.RequestResent || ev.ResponseRecovery || (t.FirstSYN > 0 && t.FirstSYN < t.SYN) ||
		losesPackets(&s.r.Connection)
	rt := estimate(ev, question{
		from: t.FirstOut, to: max(end, int64(s.clock)), own: ev.OwnACK,
		segments: ev.RequestSegments, resent: ev.RequestResent, lossy: lossy,
		wait: end - max(t.LastOut, int64(s.clock)),
	})
	s.r.Quality.RTTSource = rt.source
	if s.hidden || end == 0 {
		// Where the request ended is not known, or nothing came back.
		s.gap(in)
		return rt
	}
	// Part of the round trip may be over before wait begins (early data).
	over := max(0, int64(s.clock)-t.LastOut)
	wait.Seen = true
	wait.Total = s.clock.to(end)
	if rt.source == SourceNone && wait.Total > 0 {
		s.note(noteRTT)
	}
	network, server := share(wait.Total, rt, over)
	if in == 0 {
		// Only an ACK came; it may have been delayed.
		network.Value, network.High = wait.Total, wait.Total
		server.Value, server.Low = 0, 0
	}

	hole := ev.RequestResent && ev.RequestSegments > 1
	if lossy && (hole || server.Low >= rtoMin) {
		// The answer's only packet was lost and came again after a timeout, or
		// an earlier byte of the request did: a round trip and a timeout.
		if !hole {
			s.note(noteLost)
		}
		server.Low = max(0, server.Low-sat(rt.high, rtoSlack))
		network.High = wait.Total - server.Low
	}
	if ev.RequestResent {
		// It may be the answer to an earlier copy.
		network.Low, server.High = 0, wait.Total
	}
	wait.Parts[exchange.Network], wait.Parts[exchange.Server] = network, server
	return rt
}

// losesPackets reports whether losses on the connection are frequent enough to
// matter to the bounds.
func losesPackets(c *exchange.Connection) bool {
	return c.Retransmits > 0 && c.Retransmits >= c.Sequence/lossyShare
}

// receive splits receive by what came before each gap between arrivals.
func (s *splitter) receive(receive *exchange.Split, rt roundTrip) {
	left := receive.Total
	recovery := take(&left, s.ev.ReceiveRecovery)
	window := take(&left, s.ev.ReceiveWindow)
	idle := take(&left, s.ev.ReceiveIdle)
	// The gaps within a record or burst, and those without a reason: the
	// sender's window, pacing and the wire as a rule, but a server that
	// computes looks the same from here.
	mid := left

	// The way of the first and of the last packet may differ by what round
	// trips differ by.
	drift := min(idle, rt.high-rt.low)
	receive.Parts[exchange.Client] = exact(window)
	receive.Parts[exchange.Network] = bounded(recovery+mid, 0, recovery+mid+drift)
	receive.Parts[exchange.Server] = bounded(idle, idle-drift, idle+recovery+mid)
}

// blocked gathers what lies between the phases: the client's, but for the
// time a window was closed, and for what a phase that was not seen hides.
func (s *splitter) blocked() {
	b := s.phase(exchange.Blocked)
	b.Seen = true
	b.Total = s.between + s.unseen
	left := s.between
	network := take(&left, s.ev.BlockedNetwork)
	server := take(&left, s.ev.BlockedServer)
	b.Parts[exchange.Client] = bounded(left+s.unseen, left, left+s.unseen)
	b.Parts[exchange.Network] = bounded(network, network, network+s.unseen)
	b.Parts[exchange.Server] = bounded(server, server, server+s.unseen)
}

// components sums the parts. What handshake and dns took is known exactly
// where it was seen, whoever spent it.
func components(r *exchange.Record) (c [exchange.NumComponents]exchange.Bounded) {
	c[exchange.CompDNS] = exact(r.Phases[exchange.DNS].Total)
	c[exchange.CompHandshake] = exact(r.Phases[exchange.Connect].Total + r.Phases[exchange.TLS].Total)
	for p := exchange.Blocked; p < exchange.NumPhases; p++ {
		parts := &r.Phases[p].Parts
		add(&c[exchange.CompNetwork], parts[exchange.Network])
		add(&c[exchange.CompServer], parts[exchange.Server])
		add(&c[exchange.CompClient], parts[exchange.Client])
	}
	for i := range c {
		c[i].High = min(c[i].High, r.Total)
	}
	return c
}

// plausible drops what cannot be a mark. No difference of what it leaves can
// overflow, and no sum of parts either, as they do not overlap.
func plausible(t exchange.Timeline) exchange.Timeline {
	for _, m := range [...]*int64{
		&t.Need, &t.SYN, &t.FirstSYN, &t.SYNACK, &t.Hello, &t.ServerFlight, &t.FlightEnd, &t.Secured, &t.Written,
		&t.FirstOut, &t.LastOut, &t.LastOutFirst, &t.Acked, &t.FirstIn, &t.LastIn, &t.FirstRead, &t.LastRead,
	} {
		*m = max(*m, 0)
	}
	return t
}

// first returns the earliest mark.
func first(t *exchange.Timeline) int64 {
	return least(least(least(t.FirstSYN, t.SYN), least(t.Hello, t.Written)), least(least(t.FirstOut, t.LastOut), least(t.FirstIn, t.LastIn)))
}

// share splits total between the network, which has one round trip of which
// over is already past, and the server, which has the rest.
func share(total int64, rt roundTrip, over int64) (network, server exchange.Bounded) {
	of := func(v int64) int64 { return min(max(v-over, 0), total) }
	network = exchange.Bounded{Value: of(rt.value), Low: of(rt.low), High: of(rt.high)}
	server = exchange.Bounded{Value: total - network.Value, Low: total - network.High, High: total - network.Low}
	return network, server
}

// take returns want, at most what is left, and takes it away from there.
func take(left *int64, want int64) int64 {
	v := min(max(want, 0), *left)
	*left -= v
	return v
}

func exact(v int64) exchange.Bounded { return exchange.Bounded{Value: v, Low: v, High: v} }

func bounded(value, low, high int64) exchange.Bounded {
	return exchange.Bounded{Value: value, Low: low, High: high}
}

// add adds more to b.
func add(b *exchange.Bounded, more exchange.Bounded) {
	b.Value += more.Value
	b.Low += more.Low
	b.High += more.High
}

// sat adds two times without overflow.
func sat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

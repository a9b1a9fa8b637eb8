package conn

import (
	"slices"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
)

const (
	maxWrites = 4

	// A request that waits longer than this behind bytes in flight waits
	// for the window; less is what a system call and a busy CPU take.
	blockedFrom = 1e6
	// The kernel sends what an ACK allows within this time.
	ackClock = 100e3
	// Below this a held-back part is not worth a note.
	nagleFrom = 5e6
	// What the least usual congestion window lets out at once (RFC 6928
	// section 2: ten segments): less in flight, and it is not the window
	// that holds a segment back.
	initialWindow = 10 * 1200
)

// bundle keeps a record and its parts in one allocation.
type bundle struct {
	record exchange.Record
	http   exchange.HTTP
}

// write is a stretch of the request that is written but not accounted for.
type write struct{ lo, hi, enter int64 }

// active is an open exchange.
type active struct {
	conn       *conn
	prev, next *active
	bundle     *bundle
	record     *exchange.Record
	id         uint32 // HTTP/2 stream

	reqLo, reqHi int64 // TCP bytes that carry the request so far
	enter        int64 // of the write that holds its first byte
	writes       [maxWrites]write
	pending      int
	cursorOut    int64 // first transmission of the last byte accounted for
	counted      int64 // where the last segment that was counted begins
	behind       bool  // earlier bytes were in flight when it was written
	paid         bool  // it waited for the connection's set-up

	reqDone, sealed  bool
	resHead, resDone bool
	length           int64 // of the answer's body, as its head states; 0: not stated
	inLo, inHi       int64 // TCP bytes that carry the answer so far
	cursorIn         int64
	connect          bool // CONNECT, or a request to change the protocol

	lost  uint32 // the connection's lost events when it began
	taint int    // losses beside those
	seen  int64  // last event of it
}

func (a *active) http() *exchange.HTTP { return a.record.HTTP }

func (a *active) note(s string) {
	if !slices.Contains(a.record.Quality.Notes, s) {
		a.record.Quality.Notes = append(a.record.Quality.Notes, s)
	}
}

func (a *active) spoil(s string) {
	a.taint++
	a.note(s)
}

// wrote adds the TCP bytes [lo, hi), which a call entered at enter wrote, to
// the request.
func (a *active) wrote(lo, hi, enter int64) {
	if a.reqHi == 0 {
		a.reqLo, a.enter = lo, enter
		a.behind = a.conn.tcp.una < lo
	}
	lo = max(lo, a.reqHi)
	if hi <= lo {
		return
	}
	a.reqHi = hi
	if a.pending == maxWrites {
		a.account()
	}
	if a.pending == maxWrites {
		a.writes[maxWrites-1].hi = hi
		return
	}
	a.writes[a.pending] = write{lo, hi, enter}
	a.pending++
}

// account charges the time up to the transmission of what was written.
func (a *active) account() {
	o := &a.conn.tcp.out
	done := 0
	for ; done < a.pending; done++ {
		w := &a.writes[done]
		if w.lo < o.evicted {
			a.spoil(NoteSegments)
		}
		for i := o.find(w.lo); i < o.n; i++ {
			s := o.at(i)
			if s.lo >= w.hi {
				break
			}
			if s.lo > w.lo {
				a.note(NoteSegments)
			}
			if s.lo != a.counted {
				a.counted = s.lo
				a.record.Evidence.RequestSegments++
			}
			a.left(s, w)
			w.lo = s.hi
		}
		if w.lo < w.hi {
			if o.next < w.hi {
				break // not sent yet
			}
			a.note(NoteSegments)
		}
	}
	copy(a.writes[:], a.writes[done:a.pending])
	a.pending -= done
}

// left charges the time until s left to what kept it: the application, which
// had not written it, the peer's window, or the rest of the network.
func (a *active) left(s *seg, w *write) {
	tl, ev, tcp := &a.record.Timeline, &a.record.Evidence, &a.conn.tcp
	if tl.FirstOut == 0 {
		tl.FirstOut, a.cursorOut = s.at, s.at
		if a.behind && s.at-a.enter > blockedFrom {
			ev.BlockedNetwork = s.at - a.enter
		}
		return
	}
	gap := s.at - a.cursorOut
	if gap <= 0 {
		return
	}
	client := min(max(w.enter-a.cursorOut, 0), gap)
	if !a.conn.isTLS() && s.at-tcp.lastACKBefore(s.at) <= ackClock {
		// Writes are not seen, but this segment left on an ACK's arrival.
		client = 0
	}
	shut := min(gap-client, tcp.peerShutIn(a.cursorOut+client, s.at))
	ev.SendClient += client
	ev.SendWindow += shut
	ev.SendNetwork += gap - client - shut
	if gap-client >= nagleFrom && shut == 0 && s.lo-a.reqLo < initialWindow {
		if k := tcp.ackOf(s.lo); k != nil && k.pos == s.lo && k.at <= s.at && s.at-k.at <= ackClock*10 {
			a.note(NoteNagle)
		}
	}
	a.cursorOut = s.at
}

// lastACKBefore returns when the last acknowledgement up to at came, or a
// time long ago.
func (t *tcp) lastACKBefore(at int64) int64 {
	for i := t.acks.n - 1; i >= 0; i-- {
		if k := t.acks.at(i); k.at <= at {
			return k.at
		}
	}
	return at - 1e12
}

// arrived adds the TCP bytes [lo, hi) to the answer, whose first segment may
// have come after later ones.
func (a *active) arrived(lo, hi int64) {
	if hi <= a.inHi {
		return // more of a record that has been accounted for
	}
	in := &a.conn.tcp.in
	tl, ev := &a.record.Timeline, &a.record.Evidence
	if a.inHi == 0 {
		a.inLo = lo
	}
	a.inHi = hi
	if lo < in.evicted {
		a.spoil(NoteSegments)
	}
	i := in.find(lo)
	if i == in.n || in.at(i).lo >= hi {
		a.note(NoteSegments)
		return
	}
	first := in.at(i)
	for j := i + 1; j < in.n && in.at(j).lo < hi; j++ {
		if in.at(j).at < first.at {
			first = in.at(j)
		}
	}
	switch {
	case tl.FirstIn == 0:
		tl.FirstIn, a.cursorIn = first.at, first.at
		ev.KernelMinRTT = int64(first.minRTT) * 1000
		ev.ResponseRecovery = in.at(i).flags&segFill != 0
	case first.at < tl.FirstIn:
		ev.ReceiveRecovery += tl.FirstIn - first.at
		ev.ResponseRecovery = true
		tl.FirstIn = first.at
	}
	for j := i; j < in.n && in.at(j).lo < hi; j++ {
		s := in.at(j)
		gap := s.at - a.cursorIn
		if gap <= 0 {
			continue
		}
		switch {
		case s.flags&segFill != 0:
			ev.ReceiveRecovery += gap
			ev.ResponseRecovery = true
		case s.flags&segShut != 0:
			ev.ReceiveWindow += gap
		case s.flags&segRecord != 0 && in.pushedBefore(j):
			ev.ReceiveIdle += gap
		default:
			ev.ReceiveMid += gap
		}
		a.cursorIn = s.at
	}
	tl.LastIn = a.cursorIn
}

// filled accounts for holes in the answer that closed after what follows them
// had been taken in, as the kernel side does for plain HTTP.
func (a *active) filled() {
	in := &a.conn.tcp.in
	tl, ev := &a.record.Timeline, &a.record.Evidence
	if tl.FirstIn == 0 {
		return
	}
	for i := in.find(a.inLo); i < in.n && in.at(i).lo < a.inHi; i++ {
		if s := in.at(i); s.at > a.cursorIn {
			ev.ReceiveRecovery += s.at - a.cursorIn
			ev.ResponseRecovery = true
			a.cursorIn, tl.LastIn = s.at, s.at
		}
	}
}

// seal fixes what is known of the request's transmission, once the answer has
// begun or the exchange ends. Only the first call counts.
func (a *active) seal() {
	if a.sealed {
		return
	}
	a.sealed = true
	a.account()
	tl, ev, tcp := &a.record.Timeline, &a.record.Evidence, &a.conn.tcp
	if tl.FirstOut == 0 {
		return
	}
	end := tl.FirstIn
	last := a.cursorOut
	resent := 0
	for i := range tcp.resent.n {
		s := tcp.resent.at(i)
		if s.lo >= a.reqHi || s.at < tl.FirstOut || end != 0 && s.at > end {
			continue
		}
		switch {
		case s.hi > a.reqLo:
			// The request was not whole before this.
			resent++
			ev.RequestResent = true
			last = max(last, s.at)
		case s.at > a.cursorOut:
			// Neither could it be read before what precedes it.
			ev.RequestResent = true
			a.note(NoteResentBefore)
			last = max(last, s.at)
		}
	}
	tl.LastOutFirst = a.cursorOut
	if last > a.cursorOut {
		ev.SendNetwork += last - a.cursorOut
	}
	tl.LastOut = last
	ev.RequestSegments += resent
	if k := tcp.ackOf(a.reqHi); k != nil {
		tl.Acked = k.at
		if k.pure && !ev.RequestResent && (end == 0 || k.at < end) && k.at > last {
			ev.OwnACK = k.at - last
		}
	}
	ev.CleanACKs = tcp.clean.latest()
	if len(ev.CleanACKs) < enoughClean {
		ev.PathACKs = a.conn.pathACKs()
	}
	ev.Waits = a.conn.path.waits.latest()
}

// wait returns the time from the request's last byte to the answer's first, if
// it can stand for the answers to come.
func (a *active) wait() (ns int64, ok bool) {
	tl := &a.record.Timeline
	if tl.LastOut == 0 || a.record.Evidence.RequestResent {
		return 0, false
	}
	ns = tl.FirstIn - tl.LastOut
	return ns, ns > 0
}

// setUp fills the marks of the connection's set-up into the exchange that
// waited for it.
func (a *active) setUp() {
	c := a.conn
	tl, ev := &a.record.Timeline, &a.record.Evidence
	s := &c.setup
	ev.SYNRTT = c.tcp.synRTT()
	ev.LocalPeer = c.local
	if !a.paid {
		tl.Need = tl.Written
		if !c.isTLS() && tl.FirstOut != 0 {
			tl.Need = tl.FirstOut
		}
		if tl.Need == 0 {
			tl.Need = a.enter
		}
		return
	}
	tl.Need = c.at
	tl.FirstSYN, tl.SYN, tl.SYNACK = c.tcp.firstSYN, c.tcp.syn, c.tcp.synACK
	if !c.isTLS() {
		return
	}
	tl.Hello, tl.ServerFlight, tl.FlightEnd, tl.Secured = s.hello, s.serverFlight, s.flightEnd, s.secured
	ev.HelloACK = s.helloACK
	ev.HelloRetry = s.retry
	ev.FullHandshake12 = s.answered && s.version == version12 && !s.resumed12
	switch {
	case s.secured == 0:
		a.note(NoteHandshake)
	case tl.FirstOut != 0 && tl.FirstOut < s.secured:
		// The second round trip of the handshake kept nobody waiting.
		a.note(NoteFalseStart)
		tl.Secured = tl.FirstOut
		tl.FlightEnd = s.serverFlight
		ev.FullHandshake12 = false
	}
}

func (t *tcp) synRTT() int64 {
	if t.syn == 0 || t.synACK == 0 {
		return 0
	}
	return max(0, t.synACK-t.syn)
}

// call maps the plaintext of one write or read to TCP bytes.
type call struct {
	*event.Plain
	lo, hi   int64
	overhead int64 // of each record of a write; -1: not known
	exact    bool  // no TLS: byte for byte
}

// maxPlaintext is the most a TLS record carries (RFC 8446 section 5.1).
const maxPlaintext = 1 << 14

func (c *conn) call(ev *event.Plain) call {
	half := &c.tcp.out
	if ev.Dir == event.In {
		half = &c.tcp.in
	}
	lo := half.pos(ev.SeqLo)
	k := call{Plain: ev, lo: lo, hi: lo + int64(ev.SeqHi-ev.SeqLo), overhead: -1}
	k.exact = !ev.Has(event.FlagTLS)
	if ev.Dir == event.Out && !k.exact && ev.Bytes > 0 {
		records := (int64(ev.Bytes) + maxPlaintext - 1) / maxPlaintext
		if rest := k.hi - k.lo - int64(ev.Bytes); rest >= 0 && rest%records == 0 {
			k.overhead = rest / records
		}
	}
	return k
}

func (k *call) end() uint64 { return k.Offset + uint64(k.Bytes) }

// from returns the first TCP byte that carries the plaintext from offset on.
func (k *call) from(offset uint64) int64 {
	if offset <= k.Offset {
		return k.lo
	}
	at := int64(offset - k.Offset)
	switch {
	case k.exact:
		return min(k.lo+at, k.hi)
	case k.overhead < 0:
		return k.lo
	}
	return min(k.lo+at/maxPlaintext*(maxPlaintext+k.overhead), k.hi)
}

// until returns the position after the TCP bytes that carry the plaintext
// before offset.
func (k *call) until(offset uint64) int64 {
	if offset <= k.Offset {
		return k.lo
	}
	at := int64(offset - k.Offset)
	switch {
	case k.exact:
		return min(k.lo+at, k.hi)
	case k.overhead < 0:
		return k.hi
	}
	return min(k.lo+((at-1)/maxPlaintext+1)*(maxPlaintext+k.overhead), k.hi)
}

// mark is where and when a message or a part of it begins.
type mark struct {
	lo        int64
	enter, at int64
}

func (k *call) mark(offset uint64) mark { return mark{k.from(offset), k.Enter, k.At} }

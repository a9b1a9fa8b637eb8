package conn

import (
	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
)

// Bounds of what is kept of a direction.
const (
	minRing     = 16
	maxSegments = 1024
	maxIdle     = 64 // segments kept where no plaintext asks for them
	maxResent   = 64
	maxAcks     = 64
	maxShut     = 16

	// A pure ACK that comes this much later than the connection's best
	// was delayed by the receiver: Linux delays by 40 ms, others by up to
	// 500 ms, and by 20 ms at least.
	delayedACK = 20e6
)

// unwrap extends TCP's sequence numbers to positions that never wrap and are
// never 0.
type unwrap struct{ top int64 }

func (u *unwrap) pos(seq uint32) int64 {
	if u.top == 0 {
		u.top = 1<<32 + int64(seq)
	}
	return u.top + int64(int32(seq-uint32(u.top)))
}

// ring is a queue that overwrites its oldest entry once it is full.
type ring[T any] struct {
	buf   []T // length is 0 or a power of two
	first int
	n     int
}

func (r *ring[T]) at(i int) *T { return &r.buf[(r.first+i)&(len(r.buf)-1)] }

func (r *ring[T]) drop(n int) {
	r.first = (r.first + n) & (len(r.buf) - 1)
	r.n -= n
}

func (r *ring[T]) grow() {
	buf := make([]T, max(minRing, 2*len(r.buf)))
	for i := range r.n {
		buf[i] = *r.at(i)
	}
	r.buf, r.first = buf, 0
}

// push adds an entry; past most entries the oldest goes.
func (r *ring[T]) push(v T, most int) {
	if r.n == len(r.buf) {
		if r.n < most {
			r.grow()
		} else {
			r.drop(1)
		}
	}
	*r.at(r.n) = v
	r.n++
}

// insert puts v before entry i of a ring that has room.
func (r *ring[T]) insert(i int, v T) {
	r.n++
	for j := r.n - 1; j > i; j-- {
		*r.at(j) = *r.at(j - 1)
	}
	*r.at(i) = v
}

// What is known of a segment beside its bytes.
const (
	segPush   uint8 = 1 << iota // in: PSH was set
	segFill                     // in: it filled a hole
	segShut                     // in: our window was closed before it
	segRecord                   // in: a record is known to begin with it
	segResent                   // out: a part of it was sent again
)

// seg is the first transmission of the bytes [lo, hi).
type seg struct {
	lo, hi int64
	at     int64
	minRTT uint32 // microseconds, 0: not known
	flags  uint8
}

// segments is a direction's recent segments, by position, without overlap.
type segments struct {
	unwrap
	ring[seg]
	next    int64 // position after the highest byte seen
	evicted int64 // bytes before it may have been forgotten while needed
}

// find returns the index of the first entry that ends after pos.
func (s *segments) find(pos int64) int {
	lo, hi := 0, s.n
	if hi > 0 && s.at(hi-1).lo <= pos {
		if s.at(hi-1).hi > pos {
			return hi - 1
		}
		return hi
	}
	for lo < hi {
		mid := (lo + hi) / 2
		if s.at(mid).hi > pos {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// room makes room for one entry. Entries that end before keep are not needed
// any more; others go only when there are most, and are then missed.
func (s *segments) room(keep int64, most int) {
	if s.n < len(s.buf) {
		return
	}
	done := 0
	for done < s.n && s.at(done).hi <= keep {
		done++
	}
	if done > 0 {
		s.drop(done)
	}
	if s.n <= len(s.buf)*3/4 && s.n < len(s.buf) {
		return
	}
	if len(s.buf) < most {
		s.grow()
	} else if s.n == len(s.buf) {
		s.evicted = s.at(0).hi
		s.drop(1)
	}
}

// forget drops all entries.
func (s *segments) forget() {
	s.ring = ring[seg]{}
	s.evicted = s.next
}

// recordAt notes that a record begins at pos.
func (s *segments) recordAt(pos int64) {
	if i := s.find(pos); i < s.n && s.at(i).lo == pos {
		s.at(i).flags |= segRecord
	}
}

// pushedBefore says whether the sender pushed what comes right before entry i.
func (s *segments) pushedBefore(i int) bool {
	return i > 0 && s.at(i-1).flags&segPush != 0 && s.at(i-1).hi == s.at(i).lo
}

type span struct{ lo, hi, at int64 }

type ack struct {
	pos, at int64
	pure    bool
}

// tcp follows a connection's segments.
type tcp struct {
	out, in segments

	resent ring[span]
	acks   ring[ack]
	una    int64 // first byte that is not acknowledged

	peerShut      int64 // since when the peer's window is closed, 0: open
	peerShuts     ring[span]
	shut, wasShut bool // ours is closed; was so since the last data came
	finIn, rst    bool
	lastIn        int64 // when data came last
	lastACK       int64 // when una moved last

	syn, firstSYN, synACK int64

	minRTT  int64 // kernel's, ns; 0: none
	srtt    int64
	retrans uint32
	best    int64 // least round trip seen by any means, 0: none

	clean trail[exchange.RTTSample]
}

// sent takes in an outgoing segment. keep is the first position that may
// still be asked for.
func (t *tcp) sent(ev *event.Segment, keep int64, most int) {
	o := &t.out
	lo := o.pos(ev.Seq)
	if ev.TCPFlags&event.SYN != 0 {
		if ev.TCPFlags&event.ACK == 0 {
			if t.firstSYN == 0 {
				t.firstSYN = ev.At
			}
			if t.synACK == 0 {
				t.syn = ev.At
			}
		}
		lo++
		if o.next == 0 {
			o.next, t.una = lo, lo
		}
	} else if ev.TCPFlags&event.RST == 0 {
		t.shut = ev.Window == 0
		t.wasShut = t.wasShut || t.shut
	}
	hi := lo + int64(ev.Len)
	o.top = max(o.top, hi)
	if ev.Len == 0 {
		return
	}
	if o.next == 0 {
		o.next, t.una = lo, lo
	}
	if again := min(hi, o.next); lo < again {
		t.resent.push(span{lo, again, ev.At}, maxResent)
		for i := o.find(lo); i < o.n && o.at(i).lo < again; i++ {
			o.at(i).flags |= segResent
		}
	}
	if hi > o.next {
		o.room(keep, most)
		o.push(seg{lo: max(lo, o.next), hi: hi, at: ev.At}, len(o.buf))
		o.next = hi
	}
}

// received takes in an incoming segment. It returns a clean round trip that
// the segment completes, or 0.
func (t *tcp) received(ev *event.Segment, keep int64, most int) (rtt int64) {
	in := &t.in
	lo := in.pos(ev.Seq)
	syn := ev.TCPFlags&event.SYN != 0
	if syn {
		lo++
		if t.synACK == 0 {
			t.synACK = ev.At
			if t.syn != 0 {
				t.sample(ev.At - t.syn)
			}
		}
		if in.next == 0 {
			in.next = lo
		}
	} else if ev.TCPFlags&event.RST == 0 {
		t.peerWindow(ev.At, ev.Window == 0)
	}
	hi := lo + int64(ev.Len)
	in.top = max(in.top, hi)
	if ev.TCPFlags&event.ACK != 0 && ev.TCPFlags&event.RST == 0 {
		pure := ev.Len == 0 && ev.TCPFlags&(event.SYN|event.FIN) == 0
		rtt = t.acked(ev.Ack, ev.At, pure)
	}
	if ev.Len == 0 {
		return rtt
	}
	t.lastIn = ev.At
	s := seg{lo: lo, hi: hi, at: ev.At}
	if ev.MinRTT > 0 {
		s.minRTT = uint32(ev.MinRTT / 1000)
	}
	if ev.TCPFlags&event.PSH != 0 {
		s.flags |= segPush
	}
	if t.wasShut {
		s.flags |= segShut
	}
	t.wasShut = t.shut
	in.room(keep, most)
	if in.next == 0 || lo >= in.next {
		in.push(s, len(in.buf))
		in.next = hi
		return rtt
	}
	// Late or again: keep what is new of it. What overlaps more than one
	// earlier segment is cut at the first.
	i := in.find(lo)
	if i < in.n && in.at(i).lo <= s.lo {
		s.lo = in.at(i).hi
		i++
	}
	if i < in.n {
		s.hi = min(s.hi, in.at(i).lo)
	}
	if s.hi <= s.lo || s.hi <= in.evicted {
		return rtt
	}
	if i < in.n && in.at(i).at < s.at {
		s.flags |= segFill
	}
	in.insert(i, s)
	in.next = max(in.next, hi)
	return rtt
}

func (t *tcp) peerWindow(at int64, closed bool) {
	switch {
	case closed && t.peerShut == 0:
		t.peerShut = at
	case !closed && t.peerShut != 0:
		t.peerShuts.push(span{t.peerShut, at, at}, maxShut)
		t.peerShut = 0
	}
}

// peerShutIn returns how long of [from, to) the peer's window was closed.
func (t *tcp) peerShutIn(from, to int64) (sum int64) {
	for i := range t.peerShuts.n {
		s := t.peerShuts.at(i)
		sum += max(0, min(to, s.hi)-max(from, s.lo))
	}
	if t.peerShut != 0 {
		sum += max(0, to-max(from, t.peerShut))
	}
	return sum
}

// sample takes a round trip into the connection's minimum.
func (t *tcp) sample(rtt int64) {
	if rtt > 0 && (t.best == 0 || rtt < t.best) {
		t.best = rtt
	}
}

// acked moves the first unacknowledged byte on. A pure ACK of a segment that
// was sent once is a clean round trip, unless it was delayed (RFC 6298
// section 3, RFC 9293 section 3.8.6.3).
func (t *tcp) acked(seq uint32, at int64, pure bool) (rtt int64) {
	if t.out.top == 0 {
		return 0
	}
	pos := t.out.pos(seq)
	if pos <= t.una {
		return 0
	}
	before := t.una
	t.una, t.lastACK = pos, at
	if before == 0 {
		return 0
	}
	t.acks.push(ack{pos, at, pure}, maxAcks)
	if !pure || t.out.n == 0 {
		return 0
	}
	// The newest segment that it covers to the end.
	i := t.out.find(pos) - 1
	if i < 0 {
		return 0
	}
	s := t.out.at(i)
	if s.hi <= before || s.flags&segResent != 0 || at <= s.at {
		return 0
	}
	rtt = at - s.at
	t.sample(rtt)
	if rtt-t.best >= delayedACK {
		return 0
	}
	t.clean.push(exchange.RTTSample{At: at, RTT: rtt})
	return rtt
}

// ackOf returns the first acknowledgement that covers all before pos, nil if
// there was none or it is forgotten.
func (t *tcp) ackOf(pos int64) *ack {
	if pos > t.una {
		return nil
	}
	var found *ack
	for i := t.acks.n - 1; i >= 0; i-- {
		a := t.acks.at(i)
		if a.pos < pos {
			return found
		}
		found = a
	}
	if t.acks.n == maxAcks {
		return nil
	}
	return found
}

// counters takes over what the kernel says of the connection.
func (t *tcp) counters(minRTT, srtt int64, retrans uint32) {
	if minRTT > 0 {
		t.minRTT = minRTT
		t.sample(minRTT)
	}
	if srtt > 0 {
		t.srtt = srtt
	}
	t.retrans = max(t.retrans, retrans)
}

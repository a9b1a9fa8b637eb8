package conn

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/header"
	"github.com/peel-dev/peel/collector/wire/http2"
)

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)

	overhead = 22     // of a TLS 1.3 record
	zero     = 1000e9 // connect() of the first connection
)

// text is plaintext with what of it the kernel side copies.
type text struct {
	b    []byte
	copy []bool
}

func (x text) and(more ...text) text {
	out := text{slices.Clone(x.b), slices.Clone(x.copy)}
	for _, m := range more {
		out.b = append(out.b, m.b...)
		out.copy = append(out.copy, m.copy...)
	}
	return out
}

func (x text) cut(at int) (text, text) {
	return text{x.b[:at], x.copy[:at]}, text{x.b[at:], x.copy[at:]}
}

// copied is text that is copied whole, counted is n bytes that are not.
func copied(s string) text { return text{[]byte(s), slices.Repeat([]bool{true}, len(s))} }
func counted(n int) text   { return text{make([]byte, n), make([]bool, n)} }

func (x text) pieces(offset uint64) (ps []event.Piece) {
	for i := 0; i < len(x.b); {
		if !x.copy[i] {
			i++
			continue
		}
		j := i
		for j < len(x.b) && x.copy[j] {
			j++
		}
		ps = append(ps, event.Piece{At: offset + uint64(i), Data: x.b[i:j]})
		i = j
	}
	return ps
}

func frame(typ http2.FrameType, flags uint8, id uint32, payload []byte) text {
	h := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), byte(typ), flags}
	h = binary.BigEndian.AppendUint32(h, id)
	switch typ {
	case http2.Data:
		n := 0
		if flags&http2.Padded != 0 {
			n = 1
		}
		return copied(string(h) + string(payload[:n])).and(counted(len(payload) - n))
	case http2.Ping:
		return copied(string(h)).and(counted(len(payload)))
	}
	return copied(string(h) + string(payload))
}

func data(id uint32, n int, flags uint8) text {
	return frame(http2.Data, flags, id, make([]byte, n))
}

// packer encodes header blocks of one direction.
type packer struct {
	buf bytes.Buffer
	enc *hpack.Encoder
}

func newPacker() *packer {
	p := &packer{}
	p.enc = hpack.NewEncoder(&p.buf)
	return p
}

func (p *packer) block(fields ...string) []byte {
	p.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return slices.Clone(p.buf.Bytes())
}

func (p *packer) headers(id uint32, flags uint8, fields ...string) text {
	return frame(http2.Headers, flags|http2.EndHeaders, id, p.block(fields...))
}

func (p *packer) get(id uint32, path string) text {
	return p.headers(id, http2.EndStream, ":method", "GET", ":scheme", "https", ":authority", "api.example", ":path", path)
}

func (p *packer) post(id uint32, path string) text {
	return p.headers(id, 0, ":method", "POST", ":scheme", "https", ":authority", "api.example", ":path", path)
}

// script plays a connection into a Tracker.
type script struct {
	t      testing.TB
	tr     *Tracker
	got    *[]*exchange.Record
	cookie uint64
	proto  event.Protocol
	tls    bool
	lost   uint32
	flags  event.Flags // for the next plaintext event
	peer   string

	sndSeq, rcvSeq uint32
	off            [2]uint64
	minRTT         int64
	ackSeq         uint32 // what the peer acknowledges by the way
	out, in        *packer
}

func newTracker(t testing.TB, cfg Config) (*Tracker, *[]*exchange.Record) {
	got := new([]*exchange.Record)
	cfg.Policy = header.NewPolicy(nil)
	cfg.Epoch = func(mono int64) time.Time { return time.Unix(1, 0).Add(time.Duration(mono)) }
	return New(cfg, func(r *exchange.Record) { *got = append(*got, r.Clone()) }), got
}

func newScript(t testing.TB, proto event.Protocol, tls bool) *script {
	tr, got := newTracker(t, Config{})
	return &script{t: t, tr: tr, got: got, cookie: 0xc0ffee, proto: proto, tls: tls, peer: "192.0.2.1:443",
		sndSeq: 0xffffff00, rcvSeq: 5000, minRTT: event.NoRTT, out: newPacker(), in: newPacker()}
}

// another is a second connection on the same tracker.
func (s *script) another(cookie uint64) *script {
	o := newScript(s.t, s.proto, s.tls)
	o.tr, o.got, o.cookie = s.tr, s.got, cookie
	return o
}

func (s *script) head(kind event.Kind, at int64, dir event.Dir, flags event.Flags) event.Header {
	return event.Header{At: zero + at, Conn: s.cookie, Lost: s.lost, Kind: kind, Dir: dir, Flags: flags}
}

func (s *script) open(at int64) {
	s.tr.Handle(&event.Conn{Header: s.head(event.KindConn, at, event.Out, event.FlagFromStart),
		Local: netip.MustParseAddrPort("198.51.100.7:40000"), Peer: netip.MustParseAddrPort(s.peer),
		Role: event.RoleClient, PID: 42, Comm: "curl"})
}

type segOpt func(*event.Segment)

func push(e *event.Segment)   { e.TCPFlags |= event.PSH }
func closed(e *event.Segment) { e.Window = 0 }
func fin(e *event.Segment)    { e.TCPFlags |= event.FIN }
func rst(e *event.Segment)    { e.TCPFlags |= event.RST }
func syn(e *event.Segment)    { e.TCPFlags |= event.SYN }

func (s *script) seg(dir event.Dir, at int64, seq uint32, n int, opts ...segOpt) {
	e := &event.Segment{Header: s.head(event.KindSegment, at, dir, 0), Seq: seq, Len: uint32(n), Window: 500,
		TCPFlags: event.ACK, MinRTT: s.minRTT, Ack: s.rcvSeq}
	if dir == event.In {
		e.Ack = s.ackSeq
	}
	for _, o := range opts {
		o(e)
	}
	s.tr.Handle(e)
}

// send sends n new bytes, resend sends bytes again that lie back before them.
func (s *script) send(at int64, n int, opts ...segOpt) {
	s.seg(event.Out, at, s.sndSeq, n, opts...)
	s.sndSeq += uint32(n)
}

func (s *script) resend(at int64, back, n int) { s.seg(event.Out, at, s.sndSeq-uint32(back), n) }

func (s *script) receive(at int64, n int, opts ...segOpt) {
	s.seg(event.In, at, s.rcvSeq, n, opts...)
	s.rcvSeq += uint32(n)
}

// ack is a pure ACK of all that was sent but the last back bytes.
func (s *script) ack(at int64, back int) {
	s.ackSeq = s.sndSeq - uint32(back)
	s.seg(event.In, at, s.rcvSeq, 0)
}

func (s *script) connect(at, rtt int64) {
	s.open(at)
	s.seg(event.Out, at+10*us, s.sndSeq, 0, syn, func(e *event.Segment) { e.TCPFlags &^= event.ACK })
	s.sndSeq++
	s.ackSeq = s.sndSeq
	s.seg(event.In, at+10*us+rtt, s.rcvSeq, 0, syn)
	s.rcvSeq++
	s.minRTT = rtt
}

func (s *script) record(dir event.Dir, at int64, typ uint8, data []byte, n int) {
	e := &event.Record{Header: s.head(event.KindRecord, at, dir, 0), Type: typ, Version: 0x0303,
		Length: max(len(data), n), Data: data}
	n = e.Length + 5
	if dir == event.Out {
		e.Seq = s.sndSeq
		s.send(at, n, push)
	} else {
		e.Seq = s.rcvSeq
		s.receive(at, n, push)
	}
	s.tr.Handle(e)
}

// secure plays a TLS 1.3 handshake over a path of 10 ms: the ClientHello
// leaves 100 µs after the SYN-ACK, the Finished after 11.2 ms.
func (s *script) secure() {
	s.connect(0, 10*ms)
	at := 10*ms + 110*us
	s.record(event.Out, at, 22, hello(1, "api.example", "h2", "http/1.1"), 0)
	s.ack(at+10*ms, 0)
	s.record(event.In, at+11*ms, 22, hello(2, "", ""), 0)
	s.record(event.In, at+11*ms, 20, nil, 1)
	s.record(event.In, at+11*ms+20*us, 23, nil, 900)
	s.record(event.Out, at+11*ms+200*us, 20, nil, 1)
	s.record(event.Out, at+11*ms+200*us, 23, nil, 53)
}

// wire is how many TCP bytes a call's plaintext takes.
func (s *script) wire(n int) int {
	if !s.tls {
		return n
	}
	return n + overhead*((n+maxPlaintext-1)/maxPlaintext)
}

func (s *script) plain(dir event.Dir, enter, at int64, x text, lo, hi uint32) {
	e := &event.Plain{Header: s.head(event.KindPlain, at, dir, s.flags), Enter: zero + enter, Offset: s.off[dir],
		Bytes: len(x.b), SeqLo: lo, SeqHi: hi, PID: 42, TID: 42, Protocol: s.proto, Pieces: x.pieces(s.off[dir])}
	s.flags = 0
	if s.tls {
		e.Flags |= event.FlagTLS
	}
	s.off[dir] += uint64(len(x.b))
	s.tr.Handle(e)
}

// write writes x at the time at; it leaves 10 µs later, the call returns
// after 20 µs. Off the wire only the packet is seen.
func (s *script) write(at int64, x text) {
	lo := s.sndSeq
	s.send(at+10*us, s.wire(len(x.b)), push)
	if s.tls {
		s.plain(event.Out, at, at+20*us, x, lo, s.sndSeq)
	} else {
		s.plain(event.Out, at+10*us, at+10*us, x, lo, s.sndSeq)
	}
}

// read brings x in at the time at; the application has it 30 µs later.
func (s *script) read(at int64, x text) {
	lo := s.rcvSeq
	s.ackSeq = s.sndSeq
	s.receive(at, s.wire(len(x.b)), push)
	if s.tls {
		s.plain(event.In, at+20*us, at+30*us, x, lo, s.rcvSeq)
		return
	}
	s.plain(event.In, at, at, x, lo, s.rcvSeq)
	s.recv(at+30*us, len(x.b))
}

func (s *script) recv(at int64, n int) {
	s.tr.Handle(&event.Recv{Header: s.head(event.KindRecv, at, event.In, 0), Seq: s.rcvSeq, Bytes: uint32(n)})
}

func (s *script) close(at int64) {
	s.tr.Handle(&event.Close{Header: s.head(event.KindClose, at, event.Out, 0), MinRTT: s.minRTT})
}

// one returns the only record so far.
func (s *script) one() *exchange.Record {
	s.t.Helper()
	return s.all(1)[0]
}

func (s *script) all(n int) []*exchange.Record {
	s.t.Helper()
	if len(*s.got) != n {
		s.t.Fatalf("%d records, want %d", len(*s.got), n)
	}
	for _, r := range *s.got {
		sums(s.t, r)
	}
	return *s.got
}

// sums checks what must hold of every record.
func sums(t testing.TB, r *exchange.Record) {
	t.Helper()
	tl, ev := &r.Timeline, &r.Evidence
	if got, want := ev.SendClient+ev.SendNetwork+ev.SendWindow, tl.LastOut-tl.FirstOut; got != want {
		t.Errorf("send parts sum to %d, the phase is %d", got, want)
	}
	if got, want := ev.ReceiveIdle+ev.ReceiveMid+ev.ReceiveRecovery+ev.ReceiveWindow, tl.LastIn-tl.FirstIn; got != want {
		t.Errorf("receive parts sum to %d, the phase is %d", got, want)
	}
	for _, part := range []int64{ev.SendClient, ev.SendNetwork, ev.SendWindow, ev.ReceiveIdle, ev.ReceiveMid,
		ev.ReceiveRecovery, ev.ReceiveWindow, ev.BlockedNetwork, ev.OwnACK, ev.HelloACK, ev.SYNRTT} {
		if part < 0 {
			t.Errorf("a negative part: %+v", ev)
		}
	}
	if len(ev.CleanACKs) > trailKeep || len(ev.Waits) > trailKeep || len(ev.PathACKs) > maxPath {
		t.Errorf("%d clean and %d path samples", len(ev.CleanACKs), len(ev.PathACKs))
	}
}

// line is a timeline as a test writes it: after the first connect().
func line(tl exchange.Timeline) exchange.Timeline {
	for _, m := range []*int64{&tl.Need, &tl.SYN, &tl.FirstSYN, &tl.SYNACK, &tl.Hello, &tl.ServerFlight, &tl.FlightEnd,
		&tl.Secured, &tl.Written, &tl.FirstOut, &tl.LastOut, &tl.LastOutFirst, &tl.Acked, &tl.FirstIn, &tl.LastIn,
		&tl.FirstRead, &tl.LastRead} {
		if *m != 0 {
			*m -= zero
		}
	}
	return tl
}

func wantLine(t *testing.T, r *exchange.Record, want exchange.Timeline) {
	t.Helper()
	if got := line(r.Timeline); got != want {
		t.Errorf("timeline\n got %+v\nwant %+v", got, want)
	}
}

func wantNotes(t *testing.T, r *exchange.Record, want ...string) {
	t.Helper()
	if !slices.Equal(r.Quality.Notes, want) {
		t.Errorf("notes\n got %q\nwant %q", r.Quality.Notes, want)
	}
}

// hello builds a ClientHello (1) or ServerHello (2).
func hello(typ byte, sni string, alpn ...string) []byte {
	return helloVersion(typ, 0x0304, false, sni, alpn...)
}

func helloVersion(typ byte, version uint16, retry bool, sni string, alpn ...string) []byte {
	var ext []byte
	add := func(id uint16, body []byte) {
		ext = binary.BigEndian.AppendUint16(ext, id)
		ext = binary.BigEndian.AppendUint16(ext, uint16(len(body)))
		ext = append(ext, body...)
	}
	b := []byte{3, 3}
	random := bytes.Repeat([]byte{7}, 32)
	if retry { // RFC 8446 section 4.1.3
		random = []byte{0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
			0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C}
	}
	b = append(b, random...)
	b = append(b, 0)
	if typ == 1 {
		b = append(b, 0, 4, 0x13, 0x01, 0xc0, 0x2f, 1, 0)
		name := append([]byte{0, byte(len(sni) >> 8), byte(len(sni))}, sni...)
		add(0, append([]byte{0, byte(len(name))}, name...))
		var list []byte
		for _, p := range alpn {
			list = append(append(list, byte(len(p))), p...)
		}
		add(16, append([]byte{0, byte(len(list))}, list...))
		if version >= 0x0304 {
			add(43, []byte{4, 3, 4, 3, 3})
		}
	} else {
		cipher := []byte{0x13, 0x01}
		if version < 0x0304 {
			cipher = []byte{0xc0, 0x2f}
			if len(alpn) > 0 && alpn[0] != "" {
				p := append([]byte{byte(len(alpn[0]))}, alpn[0]...)
				add(16, append([]byte{0, byte(len(p))}, p...))
			}
		} else {
			add(43, []byte{3, 4})
			if retry {
				add(51, []byte{0, 29})
			} else {
				add(51, append([]byte{0, 29, 0, 4}, 1, 2, 3, 4))
			}
		}
		b = append(b, append(cipher, 0)...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(ext)))
	b = append(b, ext...)
	return append([]byte{typ, 0, byte(len(b) >> 8), byte(len(b))}, b...)
}

// message is an HTTP/1 head, of lines.
func message(lines ...string) text { return copied(strings.Join(lines, "\r\n") + "\r\n\r\n") }

package conn

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/http2"
)

// dice reads choices off the fuzzer's bytes.
type dice struct{ b []byte }

func (d *dice) byte() byte {
	if len(d.b) == 0 {
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *dice) short() uint16 { return uint16(d.byte())<<8 | uint16(d.byte()) }

// near is a number close to base, or anything.
func (d *dice) near(base uint32) uint32 {
	switch v := d.byte(); {
	case v < 200:
		return base + uint32(d.short()%3000) - 500
	case v < 230:
		return base
	default:
		return binary.BigEndian.Uint32([]byte{d.byte(), d.byte(), d.byte(), d.byte()})
	}
}

func (d *dice) take(most int) []byte {
	n := min(int(d.byte())*4, most, len(d.b))
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// FuzzEvents plays any events, in any order, with any contents.
func FuzzEvents(f *testing.F) {
	p := newPacker()
	get := p.get(1, "/").b
	f.Add([]byte{0, 1, 1, 1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1})
	f.Add(append([]byte{0, 0, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 9, byte(len(get) / 4)}, get...))
	f.Add(append([]byte{0, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 9}, "\x08GET / HTTP/1.1\r\nHost: a\r\n\r\n\x03\x00"...))
	f.Fuzz(run)
}

func run(t *testing.T, b []byte) {
	d := &dice{b}
	tr, got := newTracker(t, Config{MaxConns: 3, MaxStreams: 4,
		Match: func(host string, _ netip.AddrPort) bool { return host != "no" }})
	now, seq := int64(zero), [2]uint32{}
	var offset [2]uint64
	for n := 0; len(d.b) > 0 && n < 3000; n++ {
		kind, pick := d.byte(), d.byte()
		now += int64(d.byte()) * 1000
		dir := event.Dir(pick & 1)
		h := event.Header{At: now - int64(pick>>6)*100, Conn: uint64(pick>>1) & 3, Dir: dir, Lost: uint32(kind >> 7)}
		switch kind & 0xf {
		case 0, 1:
			h.Kind, h.Flags = event.KindConn, event.Flags(kind>>4&1)
			tr.Handle(&event.Conn{Header: h, Peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{pick}), 443), Role: event.RoleClient})
		case 2, 3, 4:
			h.Kind = event.KindSegment
			e := &event.Segment{Header: h, Seq: d.near(seq[dir]), Ack: d.near(seq[1-dir]), Len: uint32(d.short()),
				Window: uint16(d.byte() & 3), TCPFlags: d.byte(), MinRTT: int64(d.byte()) - 1}
			seq[dir] = max(seq[dir], e.Seq+e.Len)
			tr.Handle(e)
		case 5, 6:
			h.Kind = event.KindRecord
			data := d.take(200)
			tr.Handle(&event.Record{Header: h, Seq: d.near(seq[dir]), Type: 20 + d.byte()&3, Length: len(data), Data: data})
		case 7:
			h.Kind = event.KindRecv
			tr.Handle(&event.Recv{Header: h, Seq: d.near(seq[dir])})
		case 8:
			h.Kind = event.KindClose
			tr.Handle(&event.Close{Header: h})
		case 9:
			tr.Expire(now + int64(pick)<<26)
		case 10:
			h.Kind = event.KindProcess
			tr.Handle(&event.Process{Header: h})
		default:
			h.Kind, h.Flags = event.KindPlain, event.Flags(d.byte())
			e := &event.Plain{Header: h, Enter: now - int64(d.byte()), Protocol: event.Protocol(1 + d.byte()%3),
				Offset: offset[dir], SeqLo: d.near(seq[dir])}
			if d.byte() > 240 {
				e.Offset += uint64(d.short()) - 1000
			}
			e.SeqHi = d.near(e.SeqLo)
			for at := e.Offset; d.byte()&3 != 0 && len(e.Pieces) < 40; {
				data := d.take(600)
				if d.byte() > 200 && len(data) >= http2.FrameHeaderLen {
					data[0], data[1], data[3] = 0, 0, data[3]%10 // more likely a frame
				}
				at += uint64(d.byte())
				e.Pieces = append(e.Pieces, event.Piece{At: at, Data: data})
				at += uint64(len(data))
				e.Bytes = int(at - e.Offset)
			}
			e.Bytes += int(d.byte())
			offset[dir] = e.Offset + uint64(e.Bytes)
			tr.Handle(e)
		}
		bounded(t, tr)
	}
	tr.Flush(now, "end")
	st := tr.Stats()
	if st.OpenExchanges != 0 || st.OpenConns != 0 || len(tr.hosts) != 0 || st.Exchanges != len(*got) {
		t.Errorf("left open: %+v, %d hosts", st, len(tr.hosts))
	}
	for _, r := range *got {
		sums(t, r)
		ordered(t, r)
	}
}

func bounded(t *testing.T, tr *Tracker) {
	if len(tr.conns) > 3 || tr.stats.OpenExchanges > 3*4 || len(tr.paths) > maxPaths || len(tr.hosts) > 3 {
		t.Fatalf("%d connections, %+v", len(tr.conns), tr.stats)
	}
	open := 0
	for _, c := range tr.conns {
		open += c.open
		n := 0
		for a := c.first; a != nil; a = a.next {
			n++
		}
		if n != c.open || c.host == nil && n > 0 {
			t.Fatalf("%d exchanges in the list, %d counted", n, c.open)
		}
		for _, s := range []*segments{&c.tcp.out, &c.tcp.in} {
			if len(s.buf) > maxSegments {
				t.Fatalf("%d segments", len(s.buf))
			}
			for i := 1; i < s.n; i++ {
				if s.at(i).lo < s.at(i-1).hi {
					t.Fatalf("segments overlap: %+v %+v", s.at(i-1), s.at(i))
				}
			}
		}
		if c.h2 != nil {
			for i := range c.h2.dir {
				if f := &c.h2.dir[i]; cap(f.block) > 2*maxBlock || cap(f.payload) > 2*maxBlock {
					t.Fatalf("buffers of %d and %d bytes", cap(f.block), cap(f.payload))
				}
			}
		}
	}
	if open != tr.stats.OpenExchanges {
		t.Fatalf("%d open, %d counted", open, tr.stats.OpenExchanges)
	}
}

// ordered checks the marks that later stages rely on.
func ordered(t *testing.T, r *exchange.Record) {
	tl := &r.Timeline
	if tl.FirstOut != 0 && (tl.LastOutFirst < tl.FirstOut || tl.LastOut < tl.LastOutFirst) ||
		tl.FirstIn != 0 && tl.LastIn < tl.FirstIn || tl.Need == 0 {
		t.Errorf("out of order: %+v", tl)
	}
}

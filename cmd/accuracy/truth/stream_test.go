package truth

import "testing"

func TestHalf(t *testing.T) {
	// Bytes 10 to 20 are lost once, what follows arrives before them; 30 to
	// 40 are sent twice though the first copy arrived.
	h := newHalf([]segment{
		{at: 5, lo: 30, hi: 40},
		{at: 1, lo: 0, hi: 10},
		{at: 2, lo: 20, hi: 30},
		{at: 8, lo: 10, hi: 20},
		{at: 9, lo: 30, hi: 40},
		{at: 12, lo: 35, hi: 60},
	})
	for _, tt := range []struct {
		end, want int64
		ok        bool
	}{
		{1, 1, true}, {10, 1, true}, {11, 8, true}, {30, 8, true}, {40, 8, true},
		{41, 12, true}, {60, 12, true}, {61, 0, false},
	} {
		if got, ok := h.complete(tt.end); got != tt.want || ok != tt.ok {
			t.Errorf("complete(%d) = %d, %v; want %d, %v", tt.end, got, ok, tt.want, tt.ok)
		}
	}
	for _, tt := range []struct {
		lo, hi, want int64
		ok           bool
	}{{0, 1, 1, true}, {10, 20, 8, true}, {10, 60, 2, true}, {39, 40, 5, true}, {40, 41, 12, true}, {60, 70, 0, false}} {
		if got, ok := h.first(tt.lo, tt.hi); got != tt.want || ok != tt.ok {
			t.Errorf("first(%d, %d) = %d, %v; want %d, %v", tt.lo, tt.hi, got, ok, tt.want, tt.ok)
		}
	}
	for _, tt := range []struct {
		lo, hi, before, want int64
		ok                   bool
	}{
		{30, 31, 100, 9, true}, {30, 31, 9, 5, true}, {39, 40, 100, 12, true}, // a part of it is enough
		{0, 20, 100, 8, true}, {0, 20, 8, 1, true}, {0, 20, 1, 0, false},
	} {
		if got, ok := h.last(tt.lo, tt.hi, tt.before); got != tt.want || ok != tt.ok {
			t.Errorf("last(%d, %d, %d) = %d, %v; want %d, %v", tt.lo, tt.hi, tt.before, got, ok, tt.want, tt.ok)
		}
	}
}

// link makes the packets of a connection at one end.
type link struct {
	port    uint16
	up      uint32 // initial sequence numbers
	down    uint32
	packets []Packet
}

func (l *link) add(at int64, toServer bool, flags uint8, offset int64, n int) {
	isn := l.down
	if toServer {
		isn = l.up
	}
	seq := isn
	if flags&flagSYN == 0 {
		seq += 1 + uint32(offset)
	}
	l.packets = append(l.packets, Packet{
		At: at, ToServer: toServer, ClientPort: l.port, ServerPort: PortPlain, Seq: seq, Len: n, Flags: flags,
	})
}

func TestWires(t *testing.T) {
	// Sequence numbers wrap within the first connection; its port is used
	// again by the second.
	var client, server []Packet
	for i, isn := range []uint32{0xfffffff0, 5} {
		base := int64(i) * 1000
		c := link{port: 40000, up: isn, down: isn + 7}
		c.add(base+1, true, flagSYN, 0, 0)
		c.add(base+2, true, flagSYN, 0, 0) // sent again
		c.add(base+10, false, flagSYN, 0, 0)
		c.add(base+11, true, 0, 0, 0) // ACK
		c.add(base+12, true, 0, 0, 100)
		c.add(base+30, false, 0, 0, 50)
		c.add(base+31, true, 0, -1, 0) // keep-alive
		s := link{port: 40000, up: isn, down: isn + 7}
		s.add(base+17, true, 0, 0, 100)
		s.add(base+25, false, 0, 0, 50)
		client, server = append(client, c.packets...), append(server, s.packets...)
	}
	other := link{port: 50000} // its SYN was not seen
	other.add(3, true, 0, 0, 10)
	got := wires(append(client, other.packets...), server)
	list := got[endpoint{clientPort: 40000, serverPort: PortPlain}]
	if len(got) != 1 || len(list) != 2 {
		t.Fatalf("%d endpoints, %d connections of the one that matters", len(got), len(list))
	}
	for i, w := range list {
		base := int64(i) * 1000
		for _, tt := range []struct {
			name string
			half half
			at   int64
			hi   int64
		}{
			{"client out", w.clientOut, base + 12, 100}, {"server in", w.serverIn, base + 17, 100},
			{"server out", w.serverOut, base + 25, 50}, {"client in", w.clientIn, base + 30, 50},
		} {
			want := segment{tt.at, 0, tt.hi}
			if len(tt.half.segments) != 1 || tt.half.segments[0] != want {
				t.Errorf("connection %d, %s: %v, want %v", i, tt.name, tt.half.segments, want)
			}
		}
	}
}

package truth

import (
	"cmp"
	"slices"
	"sort"
)

// segment is a transmission or an arrival of the bytes [lo, hi) of one
// direction of a connection, counted from its first byte.
type segment struct {
	at     int64
	lo, hi int64
}

// half is one direction at one end of the line, in the order of time.
type half struct {
	segments []segment
	// whole[i] is how many bytes from the first on had passed when
	// segments[i] had.
	whole []int64
}

func newHalf(segments []segment) half {
	slices.SortStableFunc(segments, func(a, b segment) int { return cmp.Compare(a.at, b.at) })
	h := half{segments: segments, whole: make([]int64, len(segments))}
	var front int64
	var beyond []segment // came before what precedes them
	for i, s := range segments {
		if s.lo > front {
			beyond = append(beyond, s)
		} else {
			front = max(front, s.hi)
			for again := true; again; {
				again = false
				beyond = slices.DeleteFunc(beyond, func(b segment) bool {
					if b.lo > front {
						return false
					}
					if b.hi > front {
						front, again = b.hi, true
					}
					return true
				})
			}
		}
		h.whole[i] = front
	}
	return h
}

// complete returns when all bytes before end had passed.
func (h half) complete(end int64) (int64, bool) {
	i := sort.Search(len(h.whole), func(i int) bool { return h.whole[i] >= end })
	if i == len(h.whole) {
		return 0, false
	}
	return h.segments[i].at, true
}

// first returns when any of the bytes [lo, hi) passed first.
func (h half) first(lo, hi int64) (int64, bool) {
	for _, s := range h.segments {
		if s.lo < hi && s.hi > lo {
			return s.at, true
		}
	}
	return 0, false
}

// last returns when a segment with any of the bytes [lo, hi) passed last,
// before a time.
func (h half) last(lo, hi, before int64) (int64, bool) {
	n := sort.Search(len(h.segments), func(i int) bool { return h.segments[i].at >= before })
	for _, s := range slices.Backward(h.segments[:n]) {
		if s.lo < hi && s.hi > lo {
			return s.at, true
		}
	}
	return 0, false
}

// wire is one connection as both ends' devices saw it.
type wire struct {
	clientOut, serverIn half // to the server
	serverOut, clientIn half // to the client
	syn                 int64
}

type endpoint struct {
	ipv6       bool
	clientPort uint16
	serverPort uint16
}

// wires sorts packets into connections. A port that is used again begins the
// next of its list.
func wires(client, server []Packet) map[endpoint][]*wire {
	type building struct {
		isn  [2]uint32 // to the client, to the server
		seen [2]bool
		part [2][2][]segment // by end (client, server) and direction
		syn  int64
	}
	all := make(map[endpoint][]*building)
	index := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	// SYN and SYN-ACK as the client has them begin a connection.
	for _, p := range client {
		key := endpoint{p.IPv6, p.ClientPort, p.ServerPort}
		list := all[key]
		to := index(p.ToServer)
		switch {
		case p.Flags&flagSYN == 0:
		case p.ToServer:
			if n := len(list); n == 0 || list[n-1].isn[to] != p.Seq {
				b := &building{syn: p.At}
				b.isn[to], b.seen[to] = p.Seq, true
				all[key] = append(list, b)
			}
		case len(list) > 0:
			b := list[len(list)-1]
			b.isn[to], b.seen[to] = p.Seq, true
		}
	}
	for end, packets := range [][]Packet{client, server} {
		for _, p := range packets {
			if p.Len == 0 || p.Flags&flagSYN != 0 {
				continue
			}
			to := index(p.ToServer)
			list := all[endpoint{p.IPv6, p.ClientPort, p.ServerPort}]
			// The one that had begun by then, at the client.
			i := sort.Search(len(list), func(i int) bool { return list[i].syn > p.At }) - 1
			if i < 0 || !list[i].seen[to] {
				continue
			}
			b := list[i]
			// Streams are shorter than 2 GiB; one byte less is a keep-alive probe.
			lo := int64(int32(p.Seq - b.isn[to] - 1))
			b.part[end][to] = append(b.part[end][to], segment{p.At, lo, lo + int64(p.Len)})
		}
	}
	out := make(map[endpoint][]*wire)
	for key, list := range all {
		for _, b := range list {
			out[key] = append(out[key], &wire{
				clientOut: newHalf(b.part[0][1]), serverIn: newHalf(b.part[1][1]),
				serverOut: newHalf(b.part[1][0]), clientIn: newHalf(b.part[0][0]),
				syn: b.syn,
			})
		}
	}
	return out
}

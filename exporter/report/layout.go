package report

import (
	"slices"

	"github.com/peel-dev/peel/collector/exchange"
)

// stretch is a part of an exchange's time, in nanoseconds from need.
type stretch struct{ from, to int64 }

// stretches says where each phase lies. The marks at which phases end place
// them; blocked is what the others leave. Without marks (a recording by
// another version) the phases follow each other in order.
func stretches(r *exchange.Record) [exchange.NumPhases][]stretch {
	var out [exchange.NumPhases][]stretch
	t := &r.Timeline
	ends := [exchange.NumPhases]int64{
		exchange.Connect: t.SYNACK, exchange.TLS: t.Secured, exchange.Send: t.LastOut,
		exchange.Wait: t.FirstIn, exchange.Receive: t.LastIn, exchange.Read: t.LastRead,
	}
	if t.FirstIn != 0 && t.FirstIn < t.LastOut {
		ends[exchange.Send] = t.FirstIn // an early answer cuts send
	}
	placed := t.Need != 0
	var taken []stretch
	for p := range exchange.NumPhases {
		s := r.Phases[p]
		if !s.Seen || s.Total <= 0 || p == exchange.Blocked {
			continue
		}
		end := ends[p] - t.Need
		switch {
		case p == exchange.DNS:
			end = s.Total
		case ends[p] == 0:
			placed = false
		}
		st := stretch{max(end-s.Total, 0), min(end, r.Total)}
		if st.to < st.from {
			placed = false
		}
		out[p] = []stretch{st}
		taken = append(taken, st)
	}
	if !placed {
		return inOrder(r)
	}
	if b := r.Phases[exchange.Blocked]; b.Seen && b.Total > 0 {
		out[exchange.Blocked] = gaps(taken, r.Total)
		var sum int64
		for _, g := range out[exchange.Blocked] {
			sum += g.to - g.from
		}
		if off := sum - b.Total; off > r.Total/50 || off < -r.Total/50 {
			return inOrder(r) // a phase is missing: what is left over is not all blocked
		}
	}
	return out
}

// gaps is what of [0, total] is not taken.
func gaps(taken []stretch, total int64) []stretch {
	slices.SortFunc(taken, func(a, b stretch) int { return int(min(max(a.from-b.from, -1), 1)) })
	var out []stretch
	at := int64(0)
	for _, s := range append(taken, stretch{total, total}) {
		if s.from > at {
			out = append(out, stretch{at, s.from})
		}
		at = max(at, s.to)
	}
	return out
}

func inOrder(r *exchange.Record) [exchange.NumPhases][]stretch {
	var out [exchange.NumPhases][]stretch
	at := int64(0)
	for p := range exchange.NumPhases {
		if s := r.Phases[p]; s.Seen && s.Total > 0 {
			out[p] = []stretch{{min(at, r.Total), min(at+s.Total, r.Total)}}
			at += s.Total
		}
	}
	return out
}

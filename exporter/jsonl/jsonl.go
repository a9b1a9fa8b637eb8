// Package jsonl writes and reads exchanges as JSON Lines: one record a line,
// in the format that exchange.Schema names.
//
// Times are integer nanoseconds in fields that end in _ns. A field that is
// absent was not seen; a phase that the exchange did not pay for is present
// as 0. In breakdown_ns a party that has no part in a phase is left out.
// timeline_ns gives each mark that was seen, relative to need, so that every
// phase can be recomputed. The format only ever gains fields: a reader
// ignores the ones it does not know.
package jsonl

import "github.com/peel-dev/peel/collector/exchange"

// mark is one point of the timeline under its name in the format.
type mark struct {
	name string
	at   *int64
}

// marks lists t's points after need, in the order in which they are written.
func marks(t *exchange.Timeline) [16]mark {
	return [...]mark{
		{"first_syn", &t.FirstSYN},
		{"syn", &t.SYN},
		{"synack", &t.SYNACK},
		{"hello", &t.Hello},
		{"server_flight", &t.ServerFlight},
		{"flight_end", &t.FlightEnd},
		{"secured", &t.Secured},
		{"written", &t.Written},
		{"first_out", &t.FirstOut},
		{"last_out_first", &t.LastOutFirst},
		{"last_out", &t.LastOut},
		{"acked", &t.Acked},
		{"first_in", &t.FirstIn},
		{"last_in", &t.LastIn},
		{"first_read", &t.FirstRead},
		{"last_read", &t.LastRead},
	}
}

// phasesOf lists the phases in which a component's time lies.
func phasesOf(c exchange.Component) []exchange.Phase {
	switch c {
	case exchange.CompDNS:
		return []exchange.Phase{exchange.DNS}
	case exchange.CompHandshake:
		return []exchange.Phase{exchange.Connect, exchange.TLS}
	default:
		return []exchange.Phase{exchange.Blocked, exchange.Send, exchange.Wait, exchange.Receive, exchange.Read}
	}
}

// Package truth is a server that knows which bytes on the wire its messages
// are, and captures of the packets that carry them at both ends of the line.
// Together they give the true times of an exchange: when the request left, was
// there, when the answer left, was there. Nothing of it is peel's.
package truth

import (
	"fmt"
	"math"
	"time"
)

// Exchange holds the true times of one request and its answer, ns. A part of
// the wait is what lies within it: it begins at the last transmission of the
// request, of anything up to its end, and ends when any byte of the answer
// arrives.
type Exchange struct {
	ID     string `json:"id"`
	Stream uint32 `json:"stream,omitempty"` // HTTP/2
	First  bool   `json:"first,omitempty"`  // of its connection
	Resent bool   `json:"resent,omitempty"` // the request needed more than one transmission

	Wait    int64 `json:"wait"`
	Server  int64 `json:"server"`  // request there … answer leaves, within the wait
	Network int64 `json:"network"` // rest of the wait
	Span    int64 `json:"span"`    // request there … answer leaves
	Up      int64 `json:"up"`      // last transmission … request there
	Down    int64 `json:"down"`    // answer leaves … any byte of it is there

	// Pauses is the time between a part of the answer and the next in which
	// the server had nothing to send: parts are frames, or writes.
	Pauses int64 `json:"pauses"`
	// Handshake is ClientHello there … server's first flight leaves.
	Handshake    int64 `json:"handshake"`
	HasHandshake bool  `json:"has_handshake"`
}

// maxParts bounds the parts of an answer that are looked at.
const maxParts = 1024

// Observer brings server and captures together.
type Observer struct {
	Server         *Server
	Client, Remote *Capture // at the client's and the server's device
}

// Take returns the exchanges since the last call. Problems say what could not
// be told, and why.
func (o *Observer) Take(patience time.Duration) (list []Exchange, problems []string, err error) {
	taps := o.Server.take(patience)
	time.Sleep(2 * poll) // for the last packets
	client, missed1, err := o.Client.Take()
	if err != nil {
		return nil, nil, err
	}
	remote, missed2, err := o.Remote.Take()
	if err != nil {
		return nil, nil, err
	}
	if missed1+missed2 > 0 {
		problems = append(problems, fmt.Sprintf("%d packets were not captured", missed1+missed2))
	}
	list, more := join(taps, wires(client, remote))
	return list, append(problems, more...), nil
}

func join(taps []*tap, all map[endpoint][]*wire) (list []Exchange, problems []string) {
	reasons := make(map[string]int)
	for _, t := range taps {
		t.mu.Lock()
		defer t.mu.Unlock()
		// Taps are in the order the connections were accepted in.
		mine := all[t.key]
		if len(mine) == 0 {
			reasons["connections were not captured"]++
			continue
		}
		w := mine[0]
		all[t.key] = mine[1:]
		in, out := t.mappings()
		if t.secure && (in.sum() < t.plainIn || out.sum() < t.written) {
			reasons["connections have less in their records than was read and written"]++
			continue
		}
		if t.streams != nil && t.streams.err != nil {
			reasons[fmt.Sprintf("connections: %v", t.streams.err)]++
		}
		for i, m := range t.all() {
			e, why := measure(t, w, in, out, m)
			if why != "" {
				reasons["exchanges: "+why]++
				continue
			}
			e.First = i == 0
			list = append(list, e)
		}
	}
	for why, n := range reasons {
		problems = append(problems, fmt.Sprintf("%d %s", n, why))
	}
	return list, problems
}

func measure(t *tap, w *wire, in, out mapping, m *message) (e Exchange, why string) {
	if m.id == "" {
		return e, "no name in the request"
	}
	if !m.whole {
		return e, "the request did not end"
	}
	if len(m.answer) == 0 {
		return e, "there was no answer"
	}
	_, requestEnd, ok := in.span(m.request.lo, m.request.hi)
	if !ok {
		return e, "the request is in no record"
	}
	there, ok := w.serverIn.complete(requestEnd)
	if !ok {
		return e, "the request's arrival was not captured"
	}
	parts := make([]span, 0, min(len(m.answer), maxParts))
	for _, p := range m.answer[:min(len(m.answer), maxParts)] {
		lo, hi, ok := out.span(p.lo, p.hi)
		if !ok {
			return e, "the answer is in no record"
		}
		parts = append(parts, span{lo, hi})
	}
	left, ok := w.serverOut.first(parts[0].lo, parts[0].hi)
	if !ok {
		return e, "the answer's departure was not captured"
	}
	arrived := int64(math.MaxInt64)
	for _, p := range parts {
		if at, ok := w.clientIn.first(p.lo, p.hi); ok {
			arrived = min(arrived, at)
		}
	}
	if arrived == math.MaxInt64 {
		return e, "the answer's arrival was not captured"
	}
	sent, ok := w.clientOut.last(0, requestEnd, arrived)
	if !ok {
		return e, "the request's departure was not captured"
	}
	if first, ok := w.clientOut.first(requestEnd-1, requestEnd); ok && first != sent {
		e.Resent = true
	}

	e.ID, e.Stream = m.id, m.stream
	e.Wait = arrived - sent
	e.Server = max(0, min(left, arrived)-max(there, sent))
	e.Network = e.Wait - e.Server
	e.Span, e.Up, e.Down = left-there, there-sent, arrived-left
	for i, p := range parts[1:] {
		before, ok1 := w.serverOut.first(parts[i].hi-1, parts[i].hi)
		next, ok2 := w.serverOut.first(p.lo, p.lo+1)
		if ok1 && ok2 && next > before {
			e.Pauses += next - before
		}
	}
	if t.secure && len(t.wireIn.records) > 0 {
		hello, ok1 := w.serverIn.complete(t.wireIn.records[0].hi)
		flight, ok2 := w.serverOut.first(0, 1)
		e.Handshake, e.HasHandshake = flight-hello, ok1 && ok2 && flight >= hello
	}
	return e, ""
}

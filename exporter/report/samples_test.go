package report

import (
	"math"
	"net/netip"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
	s  = int64(time.Second)
)

type times map[exchange.Phase][exchange.NumParties]exchange.Bounded

func exact(v int64) exchange.Bounded { return exchange.Bounded{Value: v, Low: v, High: v} }
func between(v, low, high int64) exchange.Bounded {
	return exchange.Bounded{Value: v, Low: low, High: high}
}
func by(p exchange.Party, b exchange.Bounded) [exchange.NumParties]exchange.Bounded {
	var out [exchange.NumParties]exchange.Bounded
	out[p] = b
	return out
}

// sample makes a complete record of the phases given; those that are not are
// seen and took no time. It sums what package latency would.
func sample(phases times) *exchange.Record {
	r := &exchange.Record{
		Start:   time.Date(2026, 11, 29, 12, 0, 1, 234_000_000, time.UTC),
		Role:    "client",
		Process: exchange.Process{PID: 123, Comm: "curl"},
		Connection: exchange.Connection{ID: "1", Peer: netip.MustParseAddrPort("192.0.2.1:443"), Transport: "tcp",
			Sequence: 1, Inflight: 1, SeenFromStart: true},
		TLS: &exchange.TLSInfo{Library: "openssl", Version: "1.3", SNI: "api.example.com", ALPN: "h2"},
		HTTP: &exchange.HTTP{Version: "2", StreamID: 1, Method: "GET", Authority: "api.example.com", Path: "/v1/models", Status: 200,
			RequestHeaderBytes: 80, ResponseHeaderBytes: 120, ResponseBodyBytes: 2345},
		Quality: exchange.Quality{Plaintext: true, Complete: true, RTTSource: "rtt_min"},
	}
	const need = int64(1_000_000_000)
	t := &r.Timeline
	t.Need = need
	at := need
	for p := range exchange.NumPhases {
		split := &r.Phases[p]
		split.Seen = true
		for party, b := range phases[p] {
			split.Parts[party] = b
			split.Total += b.Value
			comp := []exchange.Component{exchange.CompClient, exchange.CompNetwork, exchange.CompServer}[party]
			switch p {
			case exchange.DNS:
				comp = exchange.CompDNS
			case exchange.Connect, exchange.TLS:
				comp = exchange.CompHandshake
			}
			c := &r.Components[comp]
			c.Value += b.Value
			c.Low += b.Low
			c.High += b.High
		}
		at += split.Total
		switch p {
		case exchange.Connect:
			t.SYNACK = at
		case exchange.TLS:
			t.Secured = at
		case exchange.Blocked:
			t.FirstOut = at
		case exchange.Send:
			t.LastOut = at
		case exchange.Wait:
			t.FirstIn = at
		case exchange.Receive:
			t.LastIn = at
		case exchange.Read:
			t.LastRead = at
		}
	}
	r.Total = at - need
	r.TTFB = t.FirstIn - need
	if r.Phases[exchange.TLS].Total > 0 || r.Phases[exchange.Connect].Total > 0 {
		h := &r.Components[exchange.CompHandshake]
		h.Low, h.High = h.Value, h.Value
	}
	return r
}

func handshakeTimes(rtt int64) times {
	return times{
		exchange.DNS:     by(exchange.Network, exact(1100*us)),
		exchange.Connect: by(exchange.Network, exact(rtt)),
		exchange.TLS: {between(310*us, 250*us, 400*us), between(rtt, rtt-90*us, rtt+60*us),
			between(2*ms, 2*ms-100*us, 2*ms+150*us)},
	}
}

// kinds are the exchanges that a person must be able to read.
func kinds() []struct {
	name string
	r    *exchange.Record
} {
	slow := handshakeTimes(10 * ms)
	slow[exchange.Blocked] = by(exchange.Client, exact(210*us))
	slow[exchange.Wait] = [exchange.NumParties]exchange.Bounded{
		exchange.Network: between(10*ms, 9900*us, 10200*us), exchange.Server: between(88200*us, 88*ms, 88300*us)}
	slow[exchange.Read] = by(exchange.Client, exact(90*us))
	slowServer := sample(slow)

	fresh := handshakeTimes(29 * ms)
	fresh[exchange.Blocked] = by(exchange.Client, exact(210*us))
	fresh[exchange.Wait] = [exchange.NumParties]exchange.Bounded{
		exchange.Network: between(29*ms, 28900*us, 29200*us), exchange.Server: between(4200*us, 4*ms, 4300*us)}
	fresh[exchange.Read] = by(exchange.Client, exact(90*us))
	newConn := sample(fresh)

	reused := sample(times{
		exchange.Blocked: by(exchange.Client, exact(35*us)),
		exchange.Wait: {exchange.Network: between(9800*us, 9700*us, 10100*us),
			exchange.Server: between(1300*us, 1*ms, 1400*us)},
		exchange.Receive: by(exchange.Server, between(240*us, 0, 240*us)),
		exchange.Read:    by(exchange.Client, exact(18*us)),
	})
	reused.Connection.Reused, reused.Connection.Sequence = true, 17

	upload := sample(times{
		exchange.Blocked: by(exchange.Client, exact(120*us)),
		exchange.Send: {between(31*ms, 30*ms, 31*ms), between(212*ms, 210*ms, 214*ms),
			between(18*ms, 17*ms, 19*ms)},
		exchange.Wait: {exchange.Network: between(20300*us, 20100*us, 21*ms), exchange.Server: between(41*ms, 40300*us, 41200*us)},
		exchange.Read: by(exchange.Client, exact(50*us)),
	})
	upload.HTTP.Method, upload.HTTP.Path, upload.HTTP.Status = "PUT", "/v1/files/report.pdf", 201
	upload.HTTP.RequestBodyBytes, upload.HTTP.ResponseBodyBytes = 4_200_000, 31
	upload.Connection.Reused, upload.Connection.Sequence = true, 2

	lossy := sample(times{
		exchange.Blocked: by(exchange.Client, exact(80*us)),
		exchange.Wait: {exchange.Network: between(10100*us, 9900*us, 12*ms),
			exchange.Server: between(8*ms, 6100*us, 8200*us)},
		exchange.Receive: {exchange.Client: between(0, 0, 2*ms), exchange.Network: between(236*ms, 204*ms, 241*ms),
			exchange.Server: between(7*ms, 0, 39*ms)},
		exchange.Read: by(exchange.Client, exact(300*us)),
	})
	lossy.Connection.Reused, lossy.Connection.Sequence, lossy.Connection.Retransmits = true, 5, 3

	sse := handshakeTimes(31 * ms)
	sse[exchange.Blocked] = by(exchange.Client, exact(2*ms))
	sse[exchange.Wait] = [exchange.NumParties]exchange.Bounded{
		exchange.Network: between(31*ms, 30800*us, 31300*us), exchange.Server: between(640*ms, 639*ms, 641*ms)}
	sse[exchange.Receive] = [exchange.NumParties]exchange.Bounded{
		exchange.Network: between(120*ms, 0, 300*ms), exchange.Server: between(38*s, 37800*ms, 38120*ms)}
	sse[exchange.Read] = by(exchange.Client, exact(400*us))
	stream := sample(sse)
	stream.HTTP.Method, stream.HTTP.Path, stream.HTTP.Authority = "POST", "/v1/messages", "api.anthropic.com"
	stream.HTTP.RequestBodyBytes, stream.HTTP.ResponseBodyBytes = 1800, 64_000
	stream.Process = exchange.Process{PID: 4711, Comm: "node"}
	stream.HTTP.Version = "1.1"

	plainHTTP := sample(times{
		exchange.Connect: by(exchange.Network, exact(48*us)),
		exchange.Blocked: by(exchange.Client, exact(22*us)),
		exchange.Wait: {exchange.Network: between(48*us, 31*us, 66*us),
			exchange.Server: between(71*us, 53*us, 88*us)},
		exchange.Read: by(exchange.Client, exact(12*us)),
	})
	plainHTTP.TLS, plainHTTP.HTTP.Version, plainHTTP.HTTP.Authority = nil, "1.1", "127.0.0.1:8080"

	cut := sample(times{
		exchange.Blocked: by(exchange.Client, exact(60*us)),
		exchange.Wait: {exchange.Network: between(30*ms, 29*ms, 31*ms),
			exchange.Server: between(5*s, 4999*ms, 5001*ms)},
	})
	cut.HTTP.Status, cut.TTFB, cut.HTTP.ResponseBodyBytes = 0, 0, -1
	cut.Quality = exchange.Quality{Plaintext: true, LostEvents: 4, RTTSource: "syn",
		Notes: []string{"no answer", "dns not observed", "events of this connection were lost while the exchange was open"}}
	for _, p := range []exchange.Phase{exchange.DNS, exchange.Receive, exchange.Read} {
		cut.Phases[p].Seen = false
	}
	cut.Connection.Reused, cut.Connection.Sequence = true, 2

	early := sample(times{
		exchange.Blocked: by(exchange.Client, exact(90*us)),
		exchange.Send:    {between(2*ms, 1900*us, 2*ms), between(14*ms, 12*ms, 15*ms), between(3*ms, 2*ms, 5*ms)},
		exchange.Receive: {exchange.Network: between(0, 0, 1*ms), exchange.Server: between(1*ms, 0, 1*ms)},
		exchange.Read:    by(exchange.Client, exact(40*us)),
	})
	early.Timeline.LastOut += 500 * us
	early.HTTP.Method, early.HTTP.Path, early.HTTP.Status = "POST", "/v1/files", 413
	early.Connection.Reused, early.Connection.Sequence = true, 3

	undecided := sample(times{
		exchange.Blocked: by(exchange.Client, exact(60*us)),
		exchange.Wait: {exchange.Network: between(16*ms, 9*ms, 19*ms),
			exchange.Server: between(14*ms, 11*ms, 21*ms)},
		exchange.Read: by(exchange.Client, exact(60*us)),
	})
	undecided.Connection.Reused, undecided.Connection.Sequence = true, 9

	wireOnly := sample(times{
		exchange.Blocked: by(exchange.Client, exact(60*us)),
		exchange.Wait: {exchange.Network: between(10*ms, 9*ms, 12*ms),
			exchange.Server: between(25*ms, 22*ms, 27*ms)},
	})
	wireOnly.HTTP = nil
	wireOnly.Quality = exchange.Quality{Complete: true, RTTSource: "rtt_min", Notes: []string{"reads not observed"}}
	wireOnly.Phases[exchange.Read].Seen = false
	wireOnly.Connection.Reused, wireOnly.Connection.Sequence = true, 0

	reader := sample(times{
		exchange.Blocked: by(exchange.Client, between(41*ms, 40*ms, 41*ms)),
		exchange.Wait: {exchange.Network: between(10*ms, 9*ms, 12*ms),
			exchange.Server: between(5*ms, 4*ms, 6*ms)},
		exchange.Receive: {between(300*ms, 280*ms, 310*ms), between(6*ms, 0, 30*ms), between(14*ms, 0, 20*ms)},
		exchange.Read:    by(exchange.Client, exact(123*ms)),
	})
	reader.HTTP.ResponseBodyBytes = 18_000_000
	reader.Process = exchange.Process{PID: 99, Comm: "Web Content"}
	reader.Connection.Reused, reader.Connection.Sequence = true, 4

	return []struct {
		name string
		r    *exchange.Record
	}{
		{"new-slow-server", slowServer}, {"new", newConn}, {"reused", reused}, {"upload", upload}, {"lossy", lossy},
		{"stream", stream}, {"plain-http", plainHTTP}, {"incomplete", cut}, {"early-answer", early},
		{"undecided", undecided}, {"wire-only", wireOnly}, {"slow-reader", reader},
	}
}

// load is n exchanges like a client's with a slow tail, the same every time.
func load(n int) []*exchange.Record {
	var out []*exchange.Record
	seed := uint64(1)
	next := func() float64 { // uniform in (0, 1)
		seed = seed*6364136223846793005 + 1442695040888963407
		return (float64(seed>>11) + 0.5) / (1 << 53)
	}
	for i := range n {
		work := int64(30*float64(ms) - 8*float64(ms)*math.Log(next()))
		rtt := 10*ms + int64(next()*float64(400*us))
		phases := times{}
		if i%100 == 0 {
			phases = handshakeTimes(rtt)
		}
		phases[exchange.Blocked] = by(exchange.Client, exact(30*us+int64(next()*float64(50*us))))
		phases[exchange.Wait] = [exchange.NumParties]exchange.Bounded{
			exchange.Network: between(rtt, rtt-100*us, rtt+200*us), exchange.Server: between(work, work-200*us, work+100*us)}
		phases[exchange.Receive] = by(exchange.Server, between(ms, 0, ms))
		phases[exchange.Read] = by(exchange.Client, exact(20*us))
		r := sample(phases)
		r.Start = r.Start.Add(time.Duration(i) * 40 * time.Millisecond)
		r.HTTP.Method, r.HTTP.Path = "POST", "/v1/messages"
		r.Connection.Reused, r.Connection.Sequence = i%100 != 0, i%100+1
		if i%333 == 7 {
			r.HTTP.Status = 529
		}
		if i%250 == 9 {
			r.Connection.Retransmits = 1
		}
		out = append(out, r)
	}
	return out
}

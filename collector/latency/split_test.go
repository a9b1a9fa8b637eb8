package latency

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
)

const ms = millisecond

// part is value, low and high in microseconds.
func part(value, low, high int64) exchange.Bounded {
	return exchange.Bounded{Value: value * 1000, Low: low * 1000, High: high * 1000}
}

// samplesOf makes n clean samples of the same length, up to time.
func samplesOf(n int, rtt, time int64) []exchange.RTTSample {
	s := make([]exchange.RTTSample, n)
	for i := range s {
		s[i] = exchange.RTTSample{At: time - int64(i)*ms, RTT: rtt}
	}
	return s
}

// marks are a new TLS connection's, 10 ms round trip, in milliseconds from 100.
func marks() exchange.Timeline {
	return exchange.Timeline{
		Need: 100 * ms, FirstSYN: 101 * ms, SYN: 101 * ms, SYNACK: 111 * ms,
		Hello: 112 * ms, ServerFlight: 125 * ms, FlightEnd: 126 * ms, Secured: 128 * ms,
		Written: 129 * ms, FirstOut: 130 * ms, LastOut: 131 * ms, LastOutFirst: 131 * ms, Acked: 171 * ms,
		FirstIn: 171 * ms, LastIn: 181 * ms, FirstRead: 172 * ms, LastRead: 183 * ms,
	}
}

func calmEvidence() exchange.Evidence {
	return exchange.Evidence{KernelMinRTT: 10 * ms, SYNRTT: 10 * ms, HelloACK: 10 * ms, CleanACKs: samplesOf(32, 10*ms, 120*ms), RequestSegments: 1}
}

func TestPhases(t *testing.T) {
	type phases [exchange.NumPhases]int64 // milliseconds; -1: not seen
	for _, test := range []struct {
		name   string
		change func(*exchange.Record)
		want   phases // dns connect tls blocked send wait receive read
		ttfb   int64
		notes  []string
	}{
		{"new connection", func(*exchange.Record) {}, phases{-1, 10, 16, 4, 1, 40, 10, 2}, 71, []string{noteDNS}},
		{"syn sent again", func(r *exchange.Record) {
			r.Timeline.FirstSYN = 100*ms + 1
		}, phases{-1, 10, 16, 3, 1, 40, 10, 2}, 71, []string{noteDNS, noteSYNAgain}},
		{"reused", func(r *exchange.Record) {
			r.Timeline = reusedMarks()
			r.Connection.Reused = true
		}, phases{0, 0, 0, 1, 1, 40, 10, 2}, 42, nil},
		{"waited for another's set-up", func(r *exchange.Record) {
			r.Timeline = reusedMarks()
			r.Timeline.Need = 100 * ms
			r.Connection.Reused = true
		}, phases{0, 0, 0, 30, 1, 40, 10, 2}, 71, nil},
		{"set-up not seen", func(r *exchange.Record) {
			r.Timeline = reusedMarks()
		}, phases{-1, -1, -1, 1, 1, 40, 10, 2}, 42, []string{noteConnect, noteTLS}},
		{"plain http", func(r *exchange.Record) {
			r.TLS = nil
			r.Timeline.Hello, r.Timeline.ServerFlight, r.Timeline.FlightEnd, r.Timeline.Secured, r.Timeline.Written = 0, 0, 0, 0, 0
		}, phases{-1, 10, 0, 20, 1, 40, 10, 2}, 71, []string{noteDNS}},
		{"early answer", func(r *exchange.Record) {
			r.Timeline.LastOut = 175 * ms
		}, phases{-1, 10, 16, 4, 41, 0, 10, 2}, 71, []string{noteDNS}},
		{"no reads", func(r *exchange.Record) {
			r.Timeline.FirstRead, r.Timeline.LastRead = 0, 0
		}, phases{-1, 10, 16, 4, 1, 40, 10, -1}, 71, []string{noteDNS, noteRead}},
		{"read before last in", func(r *exchange.Record) {
			r.Timeline.LastRead = 180 * ms
		}, phases{-1, 10, 16, 4, 1, 40, 10, 0}, 71, []string{noteDNS}},
		{"no answer", func(r *exchange.Record) {
			r.Timeline.FirstIn, r.Timeline.LastIn, r.Timeline.FirstRead, r.Timeline.LastRead = 0, 0, 0, 0
			r.Timeline.Acked = 141 * ms
		}, phases{-1, 10, 16, 4, 1, 10, -1, -1}, 0, []string{noteDNS, noteNoAnswer}},
		{"no end of answer", func(r *exchange.Record) {
			r.Timeline.LastIn, r.Timeline.LastRead = 0, 0
		}, phases{-1, 10, 16, 4, 1, 40, -1, -1}, 71, []string{noteDNS, noteReceive, noteRead}},
		{"request not seen", func(r *exchange.Record) {
			r.Timeline.FirstOut, r.Timeline.LastOut = 0, 0
		}, phases{-1, 10, 16, 45, -1, -1, 10, 2}, 71, []string{noteDNS, noteSend}},
		{"connect not answered", func(r *exchange.Record) {
			r.Timeline = exchange.Timeline{Need: 100 * ms, FirstSYN: 101 * ms, SYN: 1101 * ms}
		}, phases{-1, 1000, 0, 1, -1, -1, -1, -1}, 0, []string{noteDNS, noteSYNAgain, noteNoSYNACK, noteSend, noteNoAnswer}},
		{"handshake not completed", func(r *exchange.Record) {
			r.Timeline = exchange.Timeline{Need: 100 * ms, FirstSYN: 101 * ms, SYN: 101 * ms, SYNACK: 111 * ms, Hello: 112 * ms, ServerFlight: 125 * ms}
		}, phases{-1, 10, 13, 2, -1, -1, -1, -1}, 0, []string{noteDNS, noteNoTLS, noteSend, noteNoAnswer}},
		{"early data", func(r *exchange.Record) {
			r.Timeline.FirstOut, r.Timeline.LastOut = 113*ms, 114*ms
		}, phases{-1, 10, 16, 2, 0, 43, 10, 2}, 71, []string{noteDNS, noteEarlyData}},
		{"no start", func(r *exchange.Record) {
			r.Timeline.Need = 0
		}, phases{-1, 10, 16, 3, 1, 40, 10, 2}, 70, []string{noteStart, noteDNS}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
			test.change(r)
			Split(r)
			if err := Check(r); err != nil {
				t.Error(err)
			}
			var got phases
			for p := range got {
				if got[p] = -1; r.Phases[p].Seen {
					got[p] = r.Phases[p].Total / ms
				}
			}
			if got != test.want {
				t.Errorf("phases %v, want %v", got, test.want)
			}
			if r.TTFB/ms != test.ttfb {
				t.Errorf("ttfb %d ms, want %d", r.TTFB/ms, test.ttfb)
			}
			if !slices.Equal(r.Quality.Notes, test.notes) {
				t.Errorf("notes %q, want %q", r.Quality.Notes, test.notes)
			}
		})
	}
}

func reusedMarks() exchange.Timeline {
	m := marks()
	return exchange.Timeline{
		Need: 129 * ms, Written: 129 * ms, FirstOut: m.FirstOut, LastOut: m.LastOut, LastOutFirst: m.LastOut,
		Acked: m.Acked, FirstIn: m.FirstIn, LastIn: m.LastIn, FirstRead: m.FirstRead, LastRead: m.LastRead,
	}
}

// TestParties fixes who gets what, in microseconds; the round trip is 10 ms
// and the path calm unless the case says otherwise.
func TestParties(t *testing.T) {
	type parties struct{ client, network, server exchange.Bounded }
	const slackLow, slackHigh = 71, 220 // 50+10+400/34, 130+90
	for _, test := range []struct {
		name   string
		change func(*exchange.Record)
		phase  exchange.Phase
		want   parties
		source string
	}{
		{"connect is network", func(*exchange.Record) {}, exchange.Connect,
			parties{network: part(10000, 10000, 10000)}, SourceMin},
		{"tls 1.3", func(*exchange.Record) {}, exchange.TLS, parties{
			client:  part(2000, 2000, 2000),
			network: part(11000, 10000-slackLow, 11000+slackHigh),
			server:  part(3000, 3000-slackHigh, 4000+slackLow),
		}, SourceMin},
		{"tls, hello retry", func(r *exchange.Record) {
			r.Evidence.HelloRetry = true
			r.Timeline.Hello = 104 * ms
			r.Timeline.FirstSYN, r.Timeline.SYN, r.Timeline.SYNACK, r.Timeline.Need = 94*ms, 94*ms, 104*ms, 94*ms
		}, exchange.TLS, parties{
			client:  part(2000, 2000, 3000+2*slackLow),
			network: part(21000, 20000-2*slackLow, 21000+2*slackHigh),
			server:  part(1000, 0, 2000+2*slackLow),
		}, SourceMin},
		{"tls 1.2, full", func(r *exchange.Record) {
			r.Evidence.FullHandshake12 = true
			r.Timeline.Hello = 103 * ms // server's flight after 11 ms, second round trip of 14
			r.Timeline.ServerFlight, r.Timeline.FlightEnd = 114*ms, 114*ms
			r.Timeline.FirstSYN, r.Timeline.SYN, r.Timeline.SYNACK, r.Timeline.Need = 93*ms, 93*ms, 103*ms, 93*ms
		}, exchange.TLS, parties{
			client:  part(2000, 0, 4000+slackLow),
			network: part(20000, 20000-2*slackLow, 20000+2*slackHigh),
			server:  part(3000, 1000-slackHigh, 5000+2*slackLow),
		}, SourceMin},
		{"tls 1.2, full, end of the first flight not seen", func(r *exchange.Record) {
			r.Evidence.FullHandshake12 = true
			r.Timeline.Hello = 103 * ms
			r.Timeline.ServerFlight, r.Timeline.FlightEnd = 114*ms, 128*ms
			r.Timeline.FirstSYN, r.Timeline.SYN, r.Timeline.SYNACK, r.Timeline.Need = 93*ms, 93*ms, 103*ms, 93*ms
		}, exchange.TLS, parties{
			client:  part(2000, 0, 4000+slackLow),
			network: part(20000, 20000-2*slackLow, 20000+2*slackHigh),
			server:  part(3000, 1000-slackHigh, 5000+2*slackLow),
		}, SourceMin},
		{"tls, flight not seen", func(r *exchange.Record) {
			r.Timeline.ServerFlight, r.Timeline.FlightEnd = 0, 0
		}, exchange.TLS, parties{
			client:  part(0, 0, 6000+slackLow),
			network: part(10000, 10000-slackLow, 10000+slackHigh),
			server:  part(6000, 0, 6000+slackLow),
		}, SourceMin},
		{"wait", func(*exchange.Record) {}, exchange.Wait, parties{
			network: part(10000, 10000-slackLow, 10000+slackHigh),
			server:  part(30000, 30000-slackHigh, 30000+slackLow),
		}, SourceMin},
		{"wait, never more network than time", func(r *exchange.Record) {
			r.Timeline.FirstIn = 140 * ms
		}, exchange.Wait, parties{network: part(9000, 9000, 9000)}, SourceMin},
		{"wait, one sample only", func(r *exchange.Record) {
			r.Evidence = exchange.Evidence{KernelMinRTT: 10 * ms, SYNRTT: 10 * ms}
		}, exchange.Wait, parties{
			network: part(10000, 10000-60-3000, 10000+slackHigh+3000),
			server:  part(30000, 30000-slackHigh-3000, 30000+60+3000),
		}, SourceSYN},
		{"wait, no sample", func(r *exchange.Record) {
			r.Evidence = exchange.Evidence{}
		}, exchange.Wait, parties{network: part(0, 0, 40000), server: part(40000, 0, 40000)}, SourceNone},
		{"wait, a stall among the samples", func(r *exchange.Record) {
			r.Evidence.CleanACKs[7].RTT = 11 * ms
		}, exchange.Wait, parties{
			network: part(10000, 10000-60-400/33-1, 10000+slackHigh+3000),
			server:  part(30000, 30000-slackHigh-3000, 30000+60+400/33+1),
		}, SourceMin},
		{"wait, samples of other connections for a new one", func(r *exchange.Record) {
			r.Evidence.SYNRTT, r.Evidence.KernelMinRTT, r.Evidence.HelloACK = 12*ms, 12*ms, 0
			r.Evidence.CleanACKs, r.Evidence.PathACKs = nil, samplesOf(32, 10*ms, 90*ms)
		}, exchange.Wait, parties{
			network: part(10000, 10000-60-400/32, 10000+slackHigh),
			server:  part(30000, 30000-slackHigh, 30000+60+400/32),
		}, SourceMin},
		{"wait, an answer to an earlier copy", func(r *exchange.Record) {
			r.Evidence.RequestResent = true
			r.Timeline.LastOut = 165 * ms
		}, exchange.Wait, parties{network: part(6000, 0, 6000), server: part(0, 0, 6000)}, SourceMin},
		{"send, the same", func(r *exchange.Record) {
			r.Evidence.RequestResent = true
			r.Timeline.LastOut = 165 * ms
		}, exchange.Send, parties{client: part(1000, 0, 1000), network: part(34000, 0, 35000), server: part(0, 0, 34000)}, SourceMin},
		{"send", func(r *exchange.Record) {
			r.Timeline.LastOut = 140 * ms
			r.Evidence.SendClient, r.Evidence.SendNetwork, r.Evidence.SendWindow = 4*ms, 3*ms, 2*ms
		}, exchange.Send, parties{client: part(5000, 4000, 5000), network: part(3000, 3000, 4000), server: part(2000, 2000, 2000)}, SourceMin},
		{"receive", func(r *exchange.Record) {
			r.Evidence.ReceiveIdle, r.Evidence.ReceiveMid, r.Evidence.ReceiveRecovery, r.Evidence.ReceiveWindow = 4*ms, 3*ms, 2*ms, ms
		}, exchange.Receive, parties{
			client:  part(1000, 1000, 1000),
			network: part(5000, 0, 5000+slackLow+slackHigh),
			server:  part(4000, 4000-slackLow-slackHigh, 9000),
		}, SourceMin},
		{"read is client", func(*exchange.Record) {}, exchange.Read, parties{client: part(2000, 2000, 2000)}, SourceMin},
		{"blocked", func(r *exchange.Record) {
			r.Evidence.BlockedNetwork, r.Evidence.BlockedServer = ms, 2*ms
		}, exchange.Blocked, parties{client: part(1000, 1000, 1000), network: part(1000, 1000, 1000), server: part(2000, 2000, 2000)}, SourceMin},
		{"blocked hides an unseen phase", func(r *exchange.Record) {
			r.Timeline.FirstOut = 0
		}, exchange.Blocked, parties{client: part(45000, 2000, 45000), network: part(0, 0, 43000), server: part(0, 0, 43000)}, SourceMin},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
			test.change(r)
			Split(r)
			if err := Check(r); err != nil {
				t.Error(err)
			}
			p := r.Phases[test.phase].Parts
			got := parties{p[exchange.Client], p[exchange.Network], p[exchange.Server]}
			for i, pair := range [][2]exchange.Bounded{{got.client, test.want.client}, {got.network, test.want.network}, {got.server, test.want.server}} {
				if !near(pair[0], pair[1]) {
					t.Errorf("%v: %+v, want %+v", exchange.Party(i), pair[0], pair[1])
				}
			}
			if r.Quality.RTTSource != test.source {
				t.Errorf("source %q, want %q", r.Quality.RTTSource, test.source)
			}
		})
	}
}

// near allows for the microseconds that the table above rounds.
func near(a, b exchange.Bounded) bool {
	within := func(a, b int64) bool { return max(a-b, b-a) <= 2*microsecond }
	return within(a.Value, b.Value) && within(a.Low, b.Low) && within(a.High, b.High)
}

// TestSource fixes which evidence the value of a round trip rests on.
func TestSource(t *testing.T) {
	jittery := func() []exchange.RTTSample {
		s := samplesOf(32, 0, 120*ms)
		for i := range s {
			s[i].RTT = 10*ms + int64(i%8)*ms // median 13.5 ms
		}
		return s
	}
	for _, test := range []struct {
		name   string
		ev     exchange.Evidence
		value  int64
		source string
	}{
		{"kernel's minimum below all samples", exchange.Evidence{KernelMinRTT: 9900 * microsecond, CleanACKs: samplesOf(32, 10*ms, 120*ms)}, 9900 * microsecond, SourceMin},
		{"jitter", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: jittery()}, 13500 * microsecond, SourceMedian},
		{"jitter, own ACK", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: jittery(), OwnACK: 17500 * microsecond}, 15500 * microsecond, SourceOwn},
		{"steady, own ACK is not better", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(32, 10*ms, 120*ms), OwnACK: 11 * ms, RequestSegments: 1}, 10 * ms, SourceMin},
		{"upload, own ACK", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(32, 10*ms, 120*ms), OwnACK: 11 * ms, RequestSegments: 70}, 11 * ms, SourceOwn},
		{"upload, own ACK delayed", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(32, 10*ms, 120*ms), OwnACK: 52 * ms, RequestSegments: 70}, 10 * ms, SourceMin},
		{"upload, ACKs of its earlier segments", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(4, 12*ms, 145*ms), RequestSegments: 70}, 12 * ms, SourceMedian},
		{"ACK of an earlier copy", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(32, 10*ms, 120*ms), OwnACK: ms, RequestResent: true}, 10 * ms, SourceMin},
		{"delayed ACKs do not make jitter", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: append(samplesOf(10, 10*ms, 120*ms), samplesOf(20, 52*ms, 110*ms)...)}, 10 * ms, SourceMin},
		{"path got longer", exchange.Evidence{KernelMinRTT: 10 * ms, CleanACKs: samplesOf(32, 14*ms, 120*ms)}, 14 * ms, SourceMedian},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: test.ev}
			Split(r)
			network := r.Phases[exchange.Wait].Parts[exchange.Network]
			if network.Value != test.value || r.Quality.RTTSource != test.source {
				t.Errorf("network %d by %s, want %d by %s", network.Value, r.Quality.RTTSource, test.value, test.source)
			}
		})
	}
}

// TestUsualWait: how long earlier answers took shows whether a stall may hide
// in this one, of 40 ms.
func TestUsualWait(t *testing.T) {
	waits := func(n int, each int64) []int64 { return slices.Repeat([]int64{each}, n) }
	for _, test := range []struct {
		name    string
		samples []exchange.RTTSample
		waits   []int64
		narrow  bool
	}{
		{"calm", samplesOf(32, 10*ms, 120*ms), nil, true},
		{"thin", nil, nil, false},
		{"thin, as usual", nil, waits(8, 40*ms), true},
		{"thin, too few", nil, waits(3, 40*ms), false},
		{"calm, longer than usual", samplesOf(32, 10*ms, 120*ms), waits(8, 39*ms), false},
		{"calm, far longer than usual", samplesOf(32, 10*ms, 120*ms), waits(8, 20*ms), true},
		{"calm, shorter than usual", samplesOf(32, 10*ms, 120*ms), waits(8, 42*ms), true},
		{"two kinds", nil, append(waits(8, 40*ms), waits(8, 39*ms)...), true},
		{"not measured", nil, waits(8, 0), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
			r.Evidence.CleanACKs, r.Evidence.Waits = test.samples, test.waits
			Split(r)
			low := r.Phases[exchange.Wait].Parts[exchange.Server].Low
			if narrow := low > 29*ms; narrow != test.narrow {
				t.Errorf("server at least %d ns, narrow %t, want %t", low, narrow, test.narrow)
			}
		})
	}
}

// TestLostAnswer: on a path that loses packets, a wait of more than a
// retransmission timeout may hide one.
func TestLostAnswer(t *testing.T) {
	split := func(retransmits int, wait int64, sequence int) exchange.Bounded {
		r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
		r.Connection.Retransmits, r.Connection.Sequence = retransmits, sequence
		r.Timeline.FirstIn = r.Timeline.LastOut + wait
		r.Timeline.LastIn, r.Timeline.LastRead = r.Timeline.FirstIn, r.Timeline.FirstIn
		Split(r)
		if err := Check(r); err != nil {
			t.Error(err)
		}
		return r.Phases[exchange.Wait].Parts[exchange.Server]
	}
	if low := split(0, 260*ms, 1).Low; low < 240*ms {
		t.Errorf("no loss: server at least %d ns, want 240 ms or more", low)
	}
	if low := split(1, 260*ms, 1).Low; low != 0 {
		t.Errorf("loss: server at least %d ns, want 0", low)
	}
	if low := split(1, 260*ms, 1000).Low; low < 240*ms {
		t.Errorf("one loss long ago: server at least %d ns, want 240 ms or more", low)
	}
	if low := split(1, 150*ms, 1).Low; low < 130*ms {
		t.Errorf("loss, but no time for a timeout: server at least %d ns, want 130 ms or more", low)
	}
}

func TestComponents(t *testing.T) {
	r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
	r.Evidence.ReceiveIdle = 10 * ms
	Split(r)
	want := [exchange.NumComponents]int64{0, 26 * ms, 10 * ms, 40 * ms, 7 * ms}
	for c := range want {
		if r.Components[c].Value != want[c] {
			t.Errorf("%v: %d, want %d", exchange.Component(c), r.Components[c].Value, want[c])
		}
	}
	if h := r.Components[exchange.CompHandshake]; h.Low != h.High {
		t.Errorf("handshake %+v: its length is known", h)
	}
	if r.Total != 83*ms {
		t.Errorf("total %d", r.Total)
	}
}

// TestCheck breaks every rule once.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*exchange.Record)
		want   string
	}{
		"negative total":   {func(r *exchange.Record) { r.Total = -1 }, "negative"},
		"negative ttfb":    {func(r *exchange.Record) { r.TTFB = -1 }, "negative"},
		"phase":            {func(r *exchange.Record) { r.Phases[exchange.Wait].Total++ }, "wait: parts add up"},
		"phase not seen":   {func(r *exchange.Record) { r.Phases[exchange.Wait].Seen = false }, "wait: total"},
		"total":            {func(r *exchange.Record) { r.Total += 2 }, "phases add up"},
		"low above value":  {func(r *exchange.Record) { p := &r.Phases[exchange.Wait].Parts[exchange.Server]; p.Low = p.Value + 1 }, "server of wait"},
		"high below value": {func(r *exchange.Record) { p := &r.Phases[exchange.Wait].Parts[exchange.Server]; p.High = p.Value - 1 }, "server of wait"},
		"more than its phase": {func(r *exchange.Record) {
			p := &r.Phases[exchange.Wait]
			p.Parts[exchange.Server].High = p.Total + 1
		}, "server of wait"},
		"component":          {func(r *exchange.Record) { c := &r.Components[exchange.CompClient]; c.Value++; c.High++ }, "components add up"},
		"negative component": {func(r *exchange.Record) { r.Components[exchange.CompClient].Low = -1 }, "client"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
			Split(r)
			if err := Check(r); err != nil {
				t.Fatal(err)
			}
			test.change(r)
			if err := Check(r); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func warm() *exchange.Record {
	r := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: reusedMarks(), Evidence: calmEvidence()}
	r.Connection.Reused = true
	return r
}

// TestSplitAllocates: the usual record, warm connection and calm path, costs
// no memory.
func TestSplitAllocates(t *testing.T) {
	r := warm()
	if n := testing.AllocsPerRun(100, func() { Split(r) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkSplit(b *testing.B) {
	jittery := warm()
	for i := range jittery.Evidence.CleanACKs {
		jittery.Evidence.CleanACKs[i].RTT += int64(i%7) * ms
	}
	fresh := &exchange.Record{TLS: &exchange.TLSInfo{}, Timeline: marks(), Evidence: calmEvidence()}
	for name, r := range map[string]*exchange.Record{"warm": warm(), "jitter": jittery, "new": fresh} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Split(r)
			}
		})
	}
}

// TestMarks fails when a mark is added that plausible does not know.
func TestMarks(t *testing.T) {
	var in exchange.Timeline
	v := reflect.ValueOf(&in).Elem()
	for _, field := range v.Fields() {
		field.SetInt(-1)
	}
	if got := plausible(in); got != (exchange.Timeline{}) {
		t.Errorf("negative marks are left: %+v", got)
	}
}

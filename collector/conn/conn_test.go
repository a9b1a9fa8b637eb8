package conn

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/http2"
)

const (
	secured = 21*ms + 310*us // when script.secure is done
	start   = 22 * ms        // when tests write their first request
)

// h2conn is a TLS 1.3 connection, its preface and settings exchanged.
func h2conn(t testing.TB) *script {
	s := newScript(t, event.ProtoHTTP2, true)
	s.secure()
	s.write(secured+100*us, copied(http2.Preface).and(
		frame(http2.Settings, 0, 0, nil), frame(http2.WindowUpdate, 0, 0, []byte{0, 1, 0, 0})))
	s.read(secured+200*us, frame(http2.Settings, 0, 0, nil).and(frame(http2.Settings, http2.Ack, 0, nil)))
	return s
}

func (s *script) status(id uint32, flags uint8, code string, more ...string) text {
	return s.in.headers(id, flags, append([]string{":status", code}, more...)...)
}

// warm does one exchange, so that those after it pay for no set-up, and
// forgets it.
func warm(s *script) *script {
	s.write(start, s.out.get(1, "/warm"))
	s.read(start+5*ms, s.status(1, http2.EndStream, "204"))
	s.one()
	*s.got = nil
	return s
}

func TestNewTLS13(t *testing.T) {
	s := h2conn(t)
	s.write(start, s.out.post(1, "/v1/messages?key=secret").and(data(1, 700, http2.EndStream)))
	s.ack(start+10*ms+100*us, 0)
	s.read(start+60*ms, s.status(1, 0, "200", "content-type", "text/event-stream", "request-id", "req_1"))
	s.read(start+90*ms, data(1, 5000, 0))
	s.read(start+120*ms, data(1, 100, http2.EndStream))
	r := s.one()
	wantLine(t, r, exchange.Timeline{
		Need: 0, SYN: 10 * us, FirstSYN: 10 * us, SYNACK: 10*ms + 10*us,
		Hello: 10*ms + 110*us, ServerFlight: 21*ms + 110*us, FlightEnd: 21*ms + 130*us, Secured: secured,
		Written: start, FirstOut: start + 10*us, LastOut: start + 10*us, LastOutFirst: start + 10*us,
		Acked: start + 10*ms + 100*us, FirstIn: start + 60*ms, LastIn: start + 120*ms,
		FirstRead: start + 60*ms + 30*us, LastRead: start + 120*ms + 30*us,
	})
	ev := r.Evidence
	if ev.SYNRTT != 10*ms || ev.HelloACK != 10*ms || ev.OwnACK != 10*ms+90*us || ev.KernelMinRTT != 10*ms {
		t.Errorf("round trips %+v", ev)
	}
	if ev.ReceiveIdle != 60*ms || ev.RequestSegments != 1 || ev.RequestResent || ev.ResponseRecovery {
		t.Errorf("evidence %+v", ev)
	}
	if len(ev.CleanACKs) != 2 || ev.CleanACKs[0].RTT != 10*ms+90*us || ev.CleanACKs[1].RTT != 10*ms {
		t.Errorf("clean ACKs %+v", ev.CleanACKs)
	}
	h := r.HTTP
	if h.Version != "2" || h.StreamID != 1 || h.Method != "POST" || h.Authority != "api.example" ||
		h.Path != "/v1/messages" || h.Status != 200 || h.RequestBodyBytes != 700 || h.ResponseBodyBytes != 5100 ||
		h.ContentType != "text/event-stream" || h.ResponseHeaders["request-id"] != "req_1" || h.Reset != "" {
		t.Errorf("http %+v", h)
	}
	i := r.TLS
	if i.Library != "openssl" || i.Version != "1.3" || i.SNI != "api.example" || i.ALPN != "h2" ||
		!slices.Equal(i.ALPNOffered, []string{"h2", "http/1.1"}) || i.Cipher != "TLS_AES_128_GCM_SHA256" ||
		i.Resumed == nil || *i.Resumed || i.JA4 == "" {
		t.Errorf("tls %+v", i)
	}
	c := r.Connection
	if c.ID != "c0ffee" || c.Sequence != 1 || c.Reused || c.Inflight != 1 || !c.SeenFromStart || c.MinRTT != 10*ms ||
		c.Peer != netip.MustParseAddrPort("192.0.2.1:443") || c.Transport != "tcp" {
		t.Errorf("connection %+v", c)
	}
	if r.Process.PID != 42 || r.Process.Comm != "curl" || r.Role != "client" ||
		r.Start.UnixNano() != 1e9+zero || !r.Quality.Complete || !r.Quality.Plaintext {
		t.Errorf("record %+v", r)
	}
	wantNotes(t, r)
}

func TestReuse(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 50*ms
	s.write(at, s.out.get(3, "/b"))
	s.read(at+12*ms, s.status(3, http2.EndStream, "404"))
	r := s.one()
	wantLine(t, r, exchange.Timeline{Need: at, Written: at, FirstOut: at + 10*us, LastOut: at + 10*us,
		LastOutFirst: at + 10*us, Acked: at + 12*ms, FirstIn: at + 12*ms, LastIn: at + 12*ms,
		FirstRead: at + 12*ms + 30*us, LastRead: at + 12*ms + 30*us})
	if r.Connection.Sequence != 2 || !r.Connection.Reused || r.Evidence.SYNRTT != 10*ms || r.Evidence.OwnACK != 0 {
		t.Errorf("%+v %+v", r.Connection, r.Evidence)
	}
}

func TestIdleBeforeFirstRequest(t *testing.T) {
	s := h2conn(t)
	at := secured + 201*ms
	s.write(at, s.out.get(1, "/"))
	s.read(at+12*ms, s.status(1, http2.EndStream, "200"))
	r := s.one()
	if got := line(r.Timeline); got.Need != at || got.SYN != 0 || got.Secured != 0 {
		t.Errorf("set-up charged: %+v", got)
	}
	wantNotes(t, r, NoteIdleSetup)
}

func TestOtherStreamsPayNoSetup(t *testing.T) {
	s := h2conn(t)
	s.write(start, s.out.get(1, "/a").and(s.out.get(3, "/b")))
	s.read(start+12*ms, s.status(3, http2.EndStream, "200").and(s.status(1, http2.EndStream, "200")))
	r := s.all(2)
	if got := line(r[0].Timeline); r[0].HTTP.Path != "/b" || got.Need != start || got.SYN != 0 {
		t.Errorf("%+v", got)
	}
	if got := line(r[1].Timeline); r[1].HTTP.Path != "/a" || got.SYN == 0 {
		t.Errorf("%+v", got)
	}
	if r[0].Connection.Inflight != 2 || r[1].Connection.Inflight != 1 {
		t.Errorf("in flight %d and %d", r[0].Connection.Inflight, r[1].Connection.Inflight)
	}
}

func TestInflightOverConnections(t *testing.T) {
	s := h2conn(t)
	s.write(start, s.out.get(1, "/a"))
	o := s.another(7)
	o.secure()
	o.write(start+ms, copied(http2.Preface).and(o.out.get(1, "/b")))
	o.read(start+20*ms, o.status(1, http2.EndStream, "200"))
	if r := s.one(); r.Connection.Inflight != 2 {
		t.Errorf("in flight %d", r.Connection.Inflight)
	}
}

func TestPathACKs(t *testing.T) {
	s := h2conn(t)
	s.write(start, s.out.get(1, "/a"))
	o := s.another(7)
	o.connect(30*ms, 10*ms)
	o.record(event.Out, 40*ms, 22, hello(1, "api.example", "h2"), 0)
	o.record(event.In, 51*ms, 22, hello(2, ""), 0)
	o.record(event.Out, 52*ms, 23, nil, 53)
	o.write(53*ms, copied(http2.Preface).and(o.out.get(1, "/b")))
	o.read(90*ms, o.status(1, http2.EndStream, "200"))
	r := s.one()
	if len(r.Evidence.CleanACKs) != 0 || len(r.Evidence.PathACKs) != 1 || r.Evidence.PathACKs[0].RTT != 10*ms {
		t.Errorf("clean %v, path %v", r.Evidence.CleanACKs, r.Evidence.PathACKs)
	}
	// Its own samples are no other connection's.
	o.write(100*ms, o.out.get(3, "/c"))
	o.ack(110*ms, 0)
	o.read(120*ms, o.status(3, http2.EndStream, "200"))
	r = s.all(2)[1]
	if len(r.Evidence.CleanACKs) != 1 || len(r.Evidence.PathACKs) != 1 || r.Evidence.PathACKs[0].RTT != 10*ms {
		t.Errorf("clean %v, path %v", r.Evidence.CleanACKs, r.Evidence.PathACKs)
	}
}

func TestHandshakes(t *testing.T) {
	at := 10*ms + 110*us
	yes, no := true, false
	for _, tc := range []struct {
		name    string
		play    func(s *script)
		want    exchange.Timeline // set-up marks after the SYN-ACK
		resumed *bool
		full12  bool
		retry   bool
		version string
		notes   []string
	}{
		{"1.2 full: the server's Finished", func(s *script) {
			s.record(event.Out, at, 22, helloVersion(1, 0x0303, false, "api.example", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, helloVersion(2, 0x0303, false, "", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, []byte{11, 0, 0, 0}, 0)
			s.record(event.Out, at+11*ms, 22, []byte{16, 0, 0, 0}, 0)
			s.record(event.Out, at+11*ms, 20, nil, 1)
			s.record(event.Out, at+11*ms, 22, nil, 40)
			s.record(event.In, at+21*ms, 20, nil, 1)
			s.record(event.In, at+21*ms, 22, nil, 40)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 10*ms, FlightEnd: at + 21*ms, Secured: at + 21*ms}, &no, true, false, "1.2", nil},
		{"1.2 resumed: the client's Finished", func(s *script) {
			s.record(event.Out, at, 22, helloVersion(1, 0x0303, false, "api.example", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, helloVersion(2, 0x0303, false, "", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 20, nil, 1)
			s.record(event.In, at+10*ms, 22, nil, 40)
			s.record(event.Out, at+11*ms, 20, nil, 1)
			s.record(event.Out, at+11*ms, 22, nil, 40)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 10*ms, FlightEnd: at + 10*ms, Secured: at + 11*ms}, &yes, false, false, "1.2", nil},
		{"1.3 with HelloRetryRequest", func(s *script) {
			s.record(event.Out, at, 22, hello(1, "api.example", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, helloVersion(2, 0x0304, true, ""), 0)
			s.record(event.In, at+10*ms, 20, nil, 1)
			s.record(event.Out, at+11*ms, 20, nil, 1)
			s.record(event.Out, at+11*ms, 22, nil, 500)
			s.record(event.In, at+21*ms, 22, nil, 90)
			s.record(event.In, at+21*ms+50*us, 23, nil, 900)
			s.record(event.Out, at+22*ms, 23, nil, 53)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 21*ms, FlightEnd: at + 21*ms + 50*us, Secured: at + 22*ms}, nil, false, true, "1.3", nil},
		{"1.3 without compatibility mode", func(s *script) {
			s.record(event.Out, at, 22, hello(1, "api.example", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, hello(2, ""), 0)
			s.record(event.In, at+10*ms, 23, nil, 900)
			s.record(event.Out, at+12*ms, 23, nil, 53)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 10*ms, FlightEnd: at + 10*ms, Secured: at + 12*ms}, &no, false, false, "1.3", nil},
		{"1.3 early data is not the Finished", func(s *script) {
			s.record(event.Out, at, 22, hello(1, "api.example", "http/1.1"), 0)
			s.record(event.Out, at, 20, nil, 1)
			s.record(event.Out, at, 23, nil, 300)
			s.record(event.In, at+10*ms, 22, hello(2, ""), 0)
			s.record(event.Out, at+12*ms, 23, nil, 53)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 10*ms, FlightEnd: at + 10*ms, Secured: at + 12*ms}, &no, false, false, "1.3", nil},
		{"end not seen", func(s *script) {
			s.record(event.Out, at, 22, hello(1, "api.example", "http/1.1"), 0)
			s.record(event.In, at+10*ms, 22, hello(2, ""), 0)
		}, exchange.Timeline{Hello: at, ServerFlight: at + 10*ms}, &no, false, false, "1.3", []string{NoteHandshake}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript(t, event.ProtoHTTP1, true)
			s.connect(0, 10*ms)
			tc.play(s)
			s.write(50*ms, message("GET / HTTP/1.1", "Host: api.example"))
			s.read(70*ms, message("HTTP/1.1 200 OK", "Content-Length: 0"))
			r := s.one()
			got := line(r.Timeline)
			if got := (exchange.Timeline{Hello: got.Hello, ServerFlight: got.ServerFlight, FlightEnd: got.FlightEnd,
				Secured: got.Secured}); got != tc.want {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
			if got.SYNACK != 10*ms+10*us || r.Timeline.Need != zero {
				t.Errorf("set-up not charged: %+v", got)
			}
			if got := r.TLS.Resumed; (got == nil) != (tc.resumed == nil) || got != nil && *got != *tc.resumed {
				t.Errorf("resumed %v", got)
			}
			if r.Evidence.FullHandshake12 != tc.full12 || r.Evidence.HelloRetry != tc.retry || r.TLS.Version != tc.version ||
				r.TLS.ALPN != "http/1.1" {
				t.Errorf("%+v %+v", r.Evidence, r.TLS)
			}
			wantNotes(t, r, tc.notes...)
		})
	}
}

func TestSYNSentAgain(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	noACK := func(e *event.Segment) { e.TCPFlags &^= event.ACK }
	s.open(0)
	s.seg(event.Out, 10*us, s.sndSeq, 0, syn, noACK)
	s.seg(event.Out, 1000*ms, s.sndSeq, 0, syn, noACK)
	s.sndSeq++
	s.ackSeq = s.sndSeq
	s.seg(event.In, 1010*ms, s.rcvSeq, 0, syn)
	s.rcvSeq++
	s.write(1011*ms, message("GET / HTTP/1.1", "Host: x"))
	s.read(1030*ms, message("HTTP/1.1 204 No Content"))
	got := line(s.one().Timeline)
	if got.FirstSYN != 10*us || got.SYN != 1000*ms || got.SYNACK != 1010*ms {
		t.Errorf("%+v", got)
	}
}

// segments of an upload: the write is one call, the packets leave one by one.
func TestUpload(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	x := s.out.post(3, "/upload").and(data(3, 16384, 0), data(3, 16384, http2.EndStream))
	lo, n := s.sndSeq, s.wire(len(x.b))
	s.send(at+10*us, 14000)
	s.plain(event.Out, at, at+50*us, x, lo, lo+uint32(n))
	s.ack(at+10*ms, 7000)
	s.send(at+10*ms+20*us, 14000)
	s.send(at+20*ms, n-28000, push) // the rest, 10 ms later
	s.ack(at+30*ms, 0)
	s.read(at+40*ms, s.status(3, http2.EndStream, "200"))
	r := s.one()
	got := line(r.Timeline)
	if got.FirstOut != at+10*us || got.LastOut != at+20*ms || got.Acked != at+30*ms {
		t.Errorf("%+v", got)
	}
	ev := r.Evidence
	if ev.RequestSegments != 3 || ev.SendNetwork != 20*ms-10*us || ev.OwnACK != 10*ms {
		t.Errorf("%+v", ev)
	}
	if r.HTTP.RequestBodyBytes != 32768 {
		t.Errorf("%+v", r.HTTP)
	}
}

func TestSendParts(t *testing.T) {
	t.Run("the application writes late", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.post(3, "/"))
		s.ack(at+9*ms, 0)
		s.write(at+30*ms, data(3, 100, http2.EndStream))
		s.read(at+60*ms, s.status(3, http2.EndStream, "200"))
		ev := s.one().Evidence
		if ev.SendClient != 30*ms-10*us || ev.SendNetwork != 10*us {
			t.Errorf("%+v", ev)
		}
	})
	t.Run("the peer's window is closed", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		x := s.out.post(3, "/").and(data(3, 10000, http2.EndStream))
		lo, n := s.sndSeq, s.wire(len(x.b))
		s.send(at, 2000)
		s.plain(event.Out, at, at+50*us, x, lo, lo+uint32(n))
		s.ackSeq = s.sndSeq
		s.seg(event.In, at+10*ms, s.rcvSeq, 0, closed)
		s.seg(event.In, at+40*ms, s.rcvSeq, 0)
		s.send(at+41*ms, n-2000, push)
		s.read(at+60*ms, s.status(3, http2.EndStream, "200"))
		ev := s.one().Evidence
		if ev.SendWindow != 30*ms || ev.SendNetwork != 11*ms {
			t.Errorf("%+v", ev)
		}
	})
	t.Run("Nagle", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.post(3, "/"))
		x := data(3, 100, http2.EndStream)
		lo := s.sndSeq
		s.plain(event.Out, at+50*us, at+60*us, x, lo, lo+uint32(s.wire(len(x.b))))
		s.ack(at+40*ms, 0)
		s.send(at+40*ms+20*us, s.wire(len(x.b)), push)
		s.read(at+60*ms, s.status(3, http2.EndStream, "200"))
		r := s.one()
		wantNotes(t, r, NoteNagle)
		if r.Evidence.SendNetwork != 40*ms+20*us-50*us {
			t.Errorf("%+v", r.Evidence)
		}
	})
	t.Run("blocked behind bytes in flight", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.post(3, "/").and(data(3, 9000, 0)))
		x := s.out.get(5, "/behind")
		lo := s.sndSeq
		s.plain(event.Out, at+ms, at+ms+50*us, x, lo, lo+uint32(s.wire(len(x.b))))
		s.ack(at+10*ms, 0)
		s.send(at+10*ms, s.wire(len(x.b)), push)
		s.read(at+30*ms, s.status(5, http2.EndStream, "200"))
		if ev := s.one().Evidence; ev.BlockedNetwork != 9*ms {
			t.Errorf("%+v", ev)
		}
	})
}

func TestRequestSentAgain(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/"))
	n := s.wire(len(s.out.get(3, "/").b)) // the same again: indexed by now, so not longer
	s.resend(at+210*ms, n, n)
	s.ack(at+220*ms, 0)
	s.read(at+221*ms, s.status(3, http2.EndStream, "200"))
	r := s.one()
	got := line(r.Timeline)
	if got.LastOutFirst != at+10*us || got.LastOut != at+210*ms || got.FirstOut != at+10*us {
		t.Errorf("%+v", got)
	}
	ev := r.Evidence
	if !ev.RequestResent || ev.RequestSegments != 2 || ev.OwnACK != 0 || ev.SendNetwork != 210*ms-10*us {
		t.Errorf("%+v", ev)
	}
	for _, c := range ev.CleanACKs {
		if c.At == zero+at+220*ms {
			t.Error("the ACK of what was sent twice is no clean round trip")
		}
	}
}

func TestBytesBeforeSentAgain(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/a"))
	x := s.out.get(5, "/b")
	s.write(at+ms, x)
	n := s.wire(len(x.b))
	s.resend(at+210*ms, n+30, 30)
	s.read(at+221*ms, s.status(5, http2.EndStream, "200"))
	r := s.one()
	wantNotes(t, r, NoteResentBefore)
	if got := line(r.Timeline); got.LastOut != at+210*ms || got.LastOutFirst != at+ms+10*us {
		t.Errorf("%+v", got)
	}
}

func TestAnswerLost(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/"))
	first, second := s.status(3, 0, "200"), data(3, 3000, http2.EndStream)
	a, b := s.wire(len(first.b)), s.wire(len(second.b))
	lo := s.rcvSeq
	s.ackSeq = s.sndSeq
	s.seg(event.In, at+20*ms, lo+uint32(a), b, push) // the later one comes
	s.seg(event.In, at+50*ms, lo, a, push)           // the lost one is sent again
	s.plain(event.In, at+51*ms, at+51*ms, first, lo, lo+uint32(a))
	s.plain(event.In, at+52*ms, at+52*ms, second, lo+uint32(a), lo+uint32(a+b))
	r := s.one()
	got := line(r.Timeline)
	if got.FirstIn != at+20*ms || got.LastIn != at+50*ms || got.FirstRead != at+51*ms || got.LastRead != at+52*ms {
		t.Errorf("%+v", got)
	}
	if ev := r.Evidence; !ev.ResponseRecovery || ev.ReceiveRecovery != 30*ms {
		t.Errorf("%+v", ev)
	}
}

func TestReceiveParts(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/"))
	s.read(at+20*ms, s.status(3, 0, "200"))
	big := data(3, 9000, 0)
	lo, n := s.rcvSeq, s.wire(len(big.b))
	s.receive(at+30*ms, 4000)                                              // after a push: the server was idle
	s.receive(at+33*ms, 4000)                                              // within the record
	s.seg(event.Out, at+34*ms, s.sndSeq, 0, closed)                        // we close our window
	s.seg(event.Out, at+36*ms, s.sndSeq, 0)                                // and open it
	s.receive(at+37*ms, n-8000, push)                                      // so this was ours
	s.seg(event.In, at+38*ms, lo, 4000)                                    // sent again for nothing
	s.plain(event.In, at+39*ms, at+39*ms, big, lo, lo+uint32(n))           // in two reads
	s.plain(event.In, at+40*ms, at+40*ms, data(3, 0, 1), lo, lo+uint32(n)) // of one record
	ev, got := s.one().Evidence, line(s.one().Timeline)
	if ev.ReceiveIdle != 10*ms || ev.ReceiveMid != 3*ms || ev.ReceiveWindow != 4*ms || ev.ReceiveRecovery != 0 {
		t.Errorf("%+v", ev)
	}
	if got.LastIn != at+37*ms || got.LastRead != at+40*ms {
		t.Errorf("%+v", got)
	}
}

func TestStreams(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/a").and(s.out.post(5, "/b"), data(5, 10, http2.EndStream), s.out.get(7, "/c")))
	answers := s.status(7, 0, "200").and(s.status(3, 0, "201"), data(7, 300, 0), s.status(5, http2.EndStream, "202"),
		data(3, 40, http2.EndStream|http2.Padded), data(7, 5, http2.EndStream))
	// Byte by byte: every header and payload is split.
	for len(answers.b) > 0 {
		var one text
		one, answers = answers.cut(1)
		s.read(at+10*ms, one)
	}
	r := s.all(3)
	for i, want := range []struct {
		id, status int
		body       int64
	}{{5, 202, 0}, {3, 201, 39}, {7, 200, 305}} {
		h := r[i].HTTP
		if int(h.StreamID) != want.id || h.Status != want.status || h.ResponseBodyBytes != want.body {
			t.Errorf("record %d: %+v", i, h)
		}
		wantNotes(t, r[i])
	}
}

func TestContinuation(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	block := s.out.block(":method", "GET", ":path", "/long", ":authority", "api.example", "user-agent", strings.Repeat("x", 300))
	x := frame(http2.Headers, http2.EndStream|http2.HasPriority|http2.Padded, 3,
		slices.Concat([]byte{3, 0, 0, 0, 0, 16}, block[:20], []byte{0, 0, 0})).
		and(frame(http2.Continuation, 0, 3, block[20:60]), frame(http2.Continuation, http2.EndHeaders, 3, block[60:]))
	a, b := x.cut(45)
	s.write(at, a)
	s.write(at+ms, b)
	s.read(at+20*ms, s.status(3, http2.EndStream, "200"))
	r := s.one()
	if r.HTTP.Path != "/long" || r.HTTP.RequestHeaderBytes != int64(len(block))+9 {
		t.Errorf("%+v", r.HTTP)
	}
	if got := line(r.Timeline); got.Written != at || got.FirstOut != at+10*us || got.LastOut != at+ms+10*us {
		t.Errorf("%+v", got)
	}
	wantNotes(t, r)
}

func TestStreamEnds(t *testing.T) {
	trailers := func(s *script, id uint32) text {
		return s.in.headers(id, http2.EndStream, "grpc-status", "14", "grpc-message", "down")
	}
	for _, tc := range []struct {
		name     string
		play     func(s *script, at int64)
		complete bool
		reset    string
		notes    []string
		check    func(t *testing.T, r *exchange.Record)
	}{
		{"reset by the server", func(s *script, at int64) {
			s.read(at, frame(http2.RSTStream, 0, 3, []byte{0, 0, 0, 7}))
		}, false, "REFUSED_STREAM", []string{NoteStreamReset}, nil},
		{"cancelled by the client", func(s *script, at int64) {
			s.read(at, s.status(3, 0, "200"))
			s.write(at+ms, frame(http2.RSTStream, 0, 3, []byte{0, 0, 0, 8}))
			s.read(at+2*ms, data(3, 10, 0))
		}, false, "CANCEL", []string{NoteStreamReset}, nil},
		{"cancelled when all that was announced had come", func(s *script, at int64) {
			s.read(at, s.in.headers(3, 0, ":status", "200", "content-length", "10"))
			s.read(at+ms, data(3, 10, 0))
			s.write(at+2*ms, frame(http2.RSTStream, 0, 3, []byte{0, 0, 0, 8}))
		}, true, "", nil, nil},
		{"closed before all that was announced had come", func(s *script, at int64) {
			s.read(at, s.in.headers(3, 0, ":status", "200", "content-length", "11"))
			s.read(at+ms, data(3, 10, 0))
			s.close(at + 2*ms)
		}, false, "", []string{NoteClosed}, nil},
		{"GOAWAY", func(s *script, at int64) {
			s.read(at, frame(http2.GoAway, 0, 0, []byte{0, 0, 0, 1, 0, 0, 0, 0}))
		}, false, "GOAWAY", []string{NoteGoAway}, nil},
		{"GOAWAY after it", func(s *script, at int64) {
			s.read(at, frame(http2.GoAway, 0, 0, []byte{0, 0, 0, 3, 0, 0, 0, 0}))
			s.read(at+ms, s.status(3, http2.EndStream, "200"))
		}, true, "", nil, nil},
		{"trailers", func(s *script, at int64) {
			s.read(at, s.status(3, 0, "200"))
			s.read(at+ms, data(3, 10, 0))
			s.read(at+2*ms, trailers(s, 3))
		}, true, "", nil, func(t *testing.T, r *exchange.Record) {
			if g := r.HTTP.GRPCStatus; g == nil || *g != 14 {
				t.Errorf("grpc-status %v", g)
			}
		}},
		{"interim answers", func(s *script, at int64) {
			s.read(at-5*ms, s.status(3, 0, "103"))
			s.read(at, s.status(3, http2.EndStream, "200"))
		}, true, "", []string{NoteInterim}, func(t *testing.T, r *exchange.Record) {
			if got := line(r.Timeline); got.FirstIn != start+120*ms || r.HTTP.Status != 200 {
				t.Errorf("%+v", got)
			}
		}},
		{"connection closed", func(s *script, at int64) {
			s.read(at, s.status(3, 0, "200"))
			s.close(at + ms)
		}, false, "", []string{NoteClosed}, nil},
		{"connection reset", func(s *script, at int64) {
			s.receive(at, 0, rst)
			s.close(at)
		}, false, "connection", []string{NoteResetByPeer}, nil},
		{"pushed streams are passed over", func(s *script, at int64) {
			s.read(at, frame(http2.PushPromise, http2.EndHeaders, 3, append([]byte{0, 0, 0, 2},
				s.in.block(":method", "GET", ":path", "/pushed")...)))
			s.read(at, s.status(2, http2.EndStream, "200"))
			s.read(at, s.status(3, http2.EndStream, "200"))
		}, true, "", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := warm(h2conn(t))
			s.write(start+100*ms, s.out.get(3, "/"))
			tc.play(s, start+120*ms)
			r := s.one()
			if r.Quality.Complete != tc.complete || r.HTTP.Reset != tc.reset {
				t.Errorf("complete %v, reset %q", r.Quality.Complete, r.HTTP.Reset)
			}
			wantNotes(t, r, tc.notes...)
			if tc.check != nil {
				tc.check(t, r)
			}
			if !tc.complete && len(s.tr.Stats().Incomplete) != 1 {
				t.Errorf("%+v", s.tr.Stats())
			}
		})
	}
}

func TestTableSize(t *testing.T) {
	s := h2conn(t)
	// The server allows the client a larger table, and the client uses it.
	s.read(start, frame(http2.Settings, 0, 0, []byte{0, 1, 0, 0, 0x80, 0}))
	s.out.enc.SetMaxDynamicTableSizeLimit(32768)
	s.out.enc.SetMaxDynamicTableSize(32768)
	long := strings.Repeat("x", 5000)
	for id := uint32(1); id <= 3; id += 2 {
		s.write(start+ms, s.out.headers(id, http2.EndStream, ":method", "GET", ":path", "/", "user-agent", long))
		s.read(start+20*ms, s.status(id, http2.EndStream, "200"))
	}
	for _, r := range s.all(2) {
		wantNotes(t, r)
	}
}

func TestEarlyAnswer(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.post(3, "/"))
	s.read(at+12*ms, s.status(3, 0, "413"))
	s.write(at+20*ms, data(3, 1000, 0))
	s.read(at+30*ms, data(3, 20, http2.EndStream))
	s.write(at+40*ms, data(3, 1000, http2.EndStream)) // nobody's by now
	r := s.one()
	got := line(r.Timeline)
	if got.FirstIn != at+12*ms || got.LastOut != at+20*ms+10*us || got.FirstOut != at+10*us {
		t.Errorf("%+v", got)
	}
	wantNotes(t, r, NoteEarlyAnswer)
}

func TestLoss(t *testing.T) {
	t.Run("gap", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.get(3, "/a").and(s.out.get(5, "/b")))
		s.read(at+10*ms, s.status(3, 0, "200"))
		lost := s.status(5, 0, "500").and(data(3, 100, 0)) // never seen
		s.rcvSeq += uint32(s.wire(len(lost.b)))
		s.off[event.In] += uint64(len(lost.b))
		s.flags = event.FlagGap
		s.read(at+20*ms, data(3, 50, http2.EndStream).and(data(5, 10, http2.EndStream)))
		for i, complete := range []bool{true, false} {
			r := s.all(2)[i]
			if r.Quality.LostEvents == 0 || !slices.Contains(r.Quality.Notes, NoteFraming) || r.Quality.Complete != complete {
				t.Errorf("%d: %+v", i, r.Quality)
			}
		}
		// What comes afterwards is seen again, though its fields may not be known.
		s.write(at+30*ms, s.out.get(7, "/c"))
		s.read(at+40*ms, s.status(7, http2.EndStream, "204"))
		if r := s.all(3)[2]; !r.Quality.Complete || r.HTTP.Path != "/c" || r.HTTP.Status != 204 || r.Quality.LostEvents != 0 {
			t.Errorf("%+v %+v", r.Quality, r.HTTP)
		}
	})
	t.Run("short", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.get(3, "/a"))
		s.flags = event.FlagShort
		s.read(at+10*ms, s.status(3, 0, "200").and(counted(100)))
		s.read(at+20*ms, data(3, 50, http2.EndStream))
		if r := s.one(); !r.Quality.Complete || r.Quality.LostEvents == 0 || r.HTTP.ResponseBodyBytes != 50 {
			t.Errorf("%+v", r.Quality)
		}
	})
	t.Run("events lost", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.get(3, "/a"))
		s.lost = 3
		s.read(at+10*ms, s.status(3, http2.EndStream, "200"))
		r := s.one()
		if r.Quality.LostEvents != 3 {
			t.Errorf("%+v", r.Quality)
		}
		wantNotes(t, r, NoteLost)
		s.write(at+20*ms, s.out.get(5, "/b"))
		s.read(at+30*ms, s.status(5, http2.EndStream, "200"))
		s.write(at+40*ms, s.out.get(7, "/b"))
		s.read(at+50*ms, s.status(7, http2.EndStream, "200"))
		wantNotes(t, s.all(3)[2])
		if s.tr.Stats().Lost != 3 {
			t.Errorf("%+v", s.tr.Stats())
		}
	})
	t.Run("a body's bytes lost are no framing lost", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.get(3, "/a"))
		a, rest := s.status(3, 0, "200").and(data(3, 9000, http2.EndStream)).cut(500)
		s.read(at+10*ms, a)
		_, rest = rest.cut(4000)
		s.off[event.In] += 4000
		s.read(at+20*ms, rest)
		r := s.one()
		wantNotes(t, r)
		if r.HTTP.ResponseBodyBytes != 9000 {
			t.Errorf("%+v", r.HTTP)
		}
	})
	t.Run("more events of one call", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		x := s.out.get(3, "/a").and(s.out.post(5, "/b"), data(5, 100, http2.EndStream))
		lo := s.sndSeq
		s.send(at, s.wire(len(x.b)), push)
		ev := &event.Plain{Header: s.head(event.KindPlain, at, event.Out, event.FlagTLS|event.FlagMore), Enter: zero + at,
			Offset: s.off[0], Bytes: len(x.b), SeqLo: lo, SeqHi: s.sndSeq, Protocol: s.proto}
		half, _ := x.cut(25)
		ev.Pieces = half.pieces(s.off[0])
		s.tr.Handle(ev)
		rest := x
		rest.copy = slices.Clone(x.copy)
		for i := range 25 {
			rest.copy[i] = false
		}
		ev.Flags, ev.Pieces = event.FlagTLS, rest.pieces(s.off[0])
		s.tr.Handle(ev)
		s.off[0] += uint64(len(x.b))
		s.read(at+20*ms, s.status(3, http2.EndStream, "200").and(s.status(5, http2.EndStream, "200")))
		for _, r := range s.all(2) {
			wantNotes(t, r)
		}
		if s.all(2)[1].HTTP.RequestBodyBytes != 100 {
			t.Errorf("%+v", s.all(2)[1].HTTP)
		}
	})
}

func TestReusedID(t *testing.T) {
	s := warm(h2conn(t))
	s.write(start+ms*100, s.out.get(1, "/"))
	s.read(start+120*ms, s.status(1, http2.EndStream, "200"))
	wantNotes(t, s.one(), NoteReusedID)
}

func h1conn(t testing.TB, tls bool) *script {
	s := newScript(t, event.ProtoHTTP1, tls)
	if tls {
		s.secure()
	} else {
		s.connect(0, 10*ms)
	}
	return s
}

func TestHTTP1(t *testing.T) {
	get := message("GET /a?q=1 HTTP/1.1", "Host: api.example:8443", "Accept: */*")
	type want struct {
		method, path     string
		status           int
		reqBody, resBody int64
		firstIn, lastIn  int64 // after start
		complete         bool
		notes            []string
	}
	for _, tc := range []struct {
		name string
		play func(s *script)
		want []want
	}{
		{"keep-alive, a body in parts", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Content-Length: 500").and(counted(100)))
			s.read(start+30*ms, counted(400))
			s.write(start+40*ms, message("POST /b HTTP/1.1", "Host: api.example", "Content-Length: 30").and(counted(30)))
			s.read(start+60*ms, message("HTTP/1.1 201 Created", "Content-Length: 0"))
		}, []want{
			{"GET", "/a", 200, 0, 500, 20 * ms, 30 * ms, true, nil},
			{"POST", "/b", 201, 30, 0, 60 * ms, 60 * ms, true, nil}}},
		{"a head in two calls, a body in a third", func(s *script) {
			a, b := message("POST /b HTTP/1.1", "Host: api.example", "Content-Length: 30").cut(30)
			s.write(start, a)
			s.write(start+ms, b)
			s.write(start+2*ms, counted(30))
			a, b = message("HTTP/1.1 200 OK", "Content-Length: 3").cut(20)
			s.read(start+20*ms, a)
			s.read(start+21*ms, b.and(counted(3)))
		}, []want{{"POST", "/b", 200, 30, 3, 20 * ms, 21 * ms, true, nil}}},
		{"chunked, ended by its last chunk", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"))
			s.read(start+30*ms, counted(100))
			s.flags = event.FlagChunkEnd
			s.read(start+40*ms, counted(5))
		}, []want{{"GET", "/a", 200, 0, 105, 20 * ms, 40 * ms, true, nil}}},
		{"chunked, ended by the next request", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Transfer-Encoding: chunked").and(counted(50)))
			s.write(start+50*ms, get)
			s.read(start+70*ms, message("HTTP/1.1 304 Not Modified", "Content-Length: 77"))
		}, []want{
			{"GET", "/a", 200, 0, 50, 20 * ms, 20 * ms, true, []string{NoteEndInferred}},
			{"GET", "/a", 304, 0, 0, 70 * ms, 70 * ms, true, nil}}},
		{"chunked upload", func(s *script) {
			s.write(start, message("PUT /u HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"))
			s.write(start+ms, counted(500))
			s.flags = event.FlagChunkEnd
			s.write(start+2*ms, counted(5))
			s.read(start+20*ms, message("HTTP/1.1 204 No Content"))
		}, []want{{"PUT", "/u", 204, 505, 0, 20 * ms, 20 * ms, true, nil}}},
		{"100 and 103, then the answer", func(s *script) {
			s.write(start, message("POST /e HTTP/1.1", "Host: x", "Content-Length: 10", "Expect: 100-continue"))
			s.read(start+10*ms, message("HTTP/1.1 100 Continue"))
			s.write(start+11*ms, counted(10))
			s.read(start+30*ms, message("HTTP/1.1 103 Early Hints", "Link: </x>").and(
				message("HTTP/1.1 200 OK", "Content-Length: 2"), counted(2)))
		}, []want{{"POST", "/e", 200, 10, 2, 30 * ms, 30 * ms, true, []string{NoteInterim}}}},
		{"HEAD has no body whatever it says", func(s *script) {
			s.write(start, message("HEAD /h HTTP/1.1", "Host: x"))
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Content-Length: 1000"))
			s.write(start+30*ms, get)
			s.read(start+50*ms, message("HTTP/1.1 200 OK", "Content-Length: 1").and(counted(1)))
		}, []want{
			{"HEAD", "/h", 200, 0, 0, 20 * ms, 20 * ms, true, nil},
			{"GET", "/a", 200, 0, 1, 50 * ms, 50 * ms, true, nil}}},
		{"until close", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.0 200 OK").and(counted(10)))
			s.read(start+30*ms, counted(10))
			s.receive(start+31*ms, 0, fin)
			s.close(start + 32*ms)
		}, []want{{"GET", "/a", 200, 0, 20, 20 * ms, 30 * ms, true, nil}}},
		{"until close, but reset", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.0 200 OK").and(counted(10)))
			s.receive(start+31*ms, 0, rst)
			s.close(start + 32*ms)
		}, []want{{"GET", "/a", 200, 0, 10, 20 * ms, 20 * ms, false, []string{NoteResetByPeer}}}},
		{"pipelining", func(s *script) {
			s.write(start, get.and(message("HEAD /h HTTP/1.1", "Host: x"), message("GET /c HTTP/1.1", "Host: x")))
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Content-Length: 4").and(counted(4),
				message("HTTP/1.1 200 OK", "Content-Length: 9"), message("HTTP/1.1 404 Not Found", "Content-Length: 0")))
		}, []want{
			{"GET", "/a", 200, 0, 4, 20 * ms, 20 * ms, true, nil},
			{"HEAD", "/h", 200, 0, 0, 20 * ms, 20 * ms, true, nil},
			{"GET", "/c", 404, 0, 0, 20 * ms, 20 * ms, true, nil}}},
		{"a tunnel", func(s *script) {
			s.write(start, message("CONNECT up.example:443 HTTP/1.1", "Host: up.example:443"))
			s.read(start+20*ms, message("HTTP/1.1 200 Connection established"))
			s.write(start+21*ms, counted(500))
			s.read(start+40*ms, counted(500))
		}, []want{{"CONNECT", "", 200, 0, 0, 20 * ms, 20 * ms, true, []string{NoteUpgraded}}}},
		{"a WebSocket", func(s *script) {
			s.write(start, message("GET /ws HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade"))
			s.read(start+20*ms, message("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket"))
			s.read(start+40*ms, counted(500))
		}, []want{{"GET", "/ws", 101, 0, 0, 20 * ms, 20 * ms, true, []string{NoteUpgraded}}}},
		{"early answer", func(s *script) {
			s.write(start, message("POST /e HTTP/1.1", "Host: x", "Content-Length: 100").and(counted(10)))
			s.read(start+20*ms, message("HTTP/1.1 413 Too Large", "Content-Length: 0"))
			s.write(start+30*ms, counted(90))
		}, []want{{"POST", "/e", 413, 10, 0, 20 * ms, 20 * ms, true, []string{NoteEarlyAnswer}}}},
		{"cut off", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, message("HTTP/1.1 200 OK", "Content-Length: 100").and(counted(10)))
			s.close(start + 30*ms)
		}, []want{{"GET", "/a", 200, 0, 10, 20 * ms, 20 * ms, false, []string{NoteClosed}}}},
		{"never answered", func(s *script) {
			s.write(start, message("POST /e HTTP/1.1", "Host: x", "Content-Length: 100"))
			s.close(start + 30*ms)
		}, []want{{"POST", "/e", 0, 0, 0, 0, 0, false, []string{NoteClosed, NoteTruncatedSend}}}},
		{"garbage in place of a head", func(s *script) {
			s.write(start, get)
			s.read(start+20*ms, copied("\x00\x01\x02 no http at all\r\n\r\n"))
			s.close(start + 30*ms)
		}, []want{{"GET", "/a", 0, 0, 0, 0, 0, false, []string{NoteFraming, NoteClosed}}}},
	} {
		for _, tls := range []bool{true, false} {
			name := tc.name
			if tls {
				name += " over TLS"
			}
			t.Run(name, func(t *testing.T) {
				s := h1conn(t, tls)
				tc.play(s)
				for i, r := range s.all(len(tc.want)) {
					w, h, tl := tc.want[i], r.HTTP, line(r.Timeline)
					if h.Method != w.method || h.Path != w.path || h.Status != w.status ||
						h.RequestBodyBytes != w.reqBody || h.ResponseBodyBytes != w.resBody {
						t.Errorf("%d: %+v, want %+v", i, h, w)
					}
					if w.firstIn != 0 && (tl.FirstIn != start+w.firstIn || tl.LastIn != start+w.lastIn ||
						tl.LastRead != start+w.lastIn+30*us) {
						t.Errorf("%d: %+v, want %+v", i, tl, w)
					}
					if tls != (tl.Written != 0) || tl.FirstOut == 0 || tl.LastOut == 0 {
						t.Errorf("%d: %+v", i, tl)
					}
					if r.Quality.Complete != w.complete {
						t.Errorf("%d: complete %v", i, r.Quality.Complete)
					}
					wantNotes(t, r, w.notes...)
				}
				if s.tr.Stats().OpenExchanges != 0 {
					t.Errorf("%+v", s.tr.Stats())
				}
			})
		}
	}
}

func TestPlainHTTP(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.peer = "[2001:db8::1]:80"
	s.connect(0, 10*ms)
	s.write(start, message("GET / HTTP/1.1", "Host: api.example"))
	x := message("HTTP/1.1 200 OK", "Content-Length: 1000").and(counted(1000))
	a, b := x.cut(500)
	lo := s.rcvSeq
	s.ackSeq = s.sndSeq
	s.receive(start+30*ms, len(a.b))
	s.plain(event.In, start+30*ms, start+30*ms, a, lo, s.rcvSeq)
	s.recv(start+31*ms, 500)
	lo = s.rcvSeq
	s.receive(start+40*ms, len(b.b), push)
	s.plain(event.In, start+40*ms, start+40*ms, b, lo, s.rcvSeq)
	if len(*s.got) != 0 {
		t.Fatal("ended before it was read")
	}
	s.recv(start+45*ms, len(b.b))
	r := s.one()
	wantLine(t, r, exchange.Timeline{Need: 0, SYN: 10 * us, FirstSYN: 10 * us, SYNACK: 10*ms + 10*us,
		FirstOut: start + 10*us, LastOut: start + 10*us, LastOutFirst: start + 10*us, Acked: start + 30*ms,
		FirstIn: start + 30*ms, LastIn: start + 40*ms, FirstRead: start + 31*ms, LastRead: start + 45*ms})
	if r.TLS != nil || r.Connection.Peer.String() != "[2001:db8::1]:80" || r.Evidence.ReceiveMid != 10*ms {
		t.Errorf("%+v %+v", r.TLS, r.Evidence)
	}
}

func TestPlainUnread(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.connect(0, 10*ms)
	s.write(start, message("GET / HTTP/1.1", "Host: api.example"))
	x := message("HTTP/1.1 204 No Content")
	lo := s.rcvSeq
	s.receive(start+30*ms, len(x.b), push)
	s.plain(event.In, start+30*ms, start+30*ms, x, lo, s.rcvSeq)
	s.tr.Expire(zero + start + 1000*ms)
	if len(*s.got) != 0 {
		t.Fatal("given up too soon")
	}
	s.tr.Expire(zero + start + 2031*ms)
	r := s.one()
	wantNotes(t, r, NoteUnread)
	if !r.Quality.Complete || r.Timeline.LastRead != 0 {
		t.Errorf("%+v", r)
	}
}

func TestPlainUploadOnACKs(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.connect(0, 10*ms)
	put := message("PUT / HTTP/1.1", "Host: x", "Content-Length: 20000").and(counted(14000))
	s.write(start, put)
	s.ack(start+10*ms, 7000)
	s.write(start+10*ms+20*us, counted(3000)) // 30 µs after the ACK
	s.write(start+30*ms, counted(3000))       // the application's own time
	s.read(start+50*ms, message("HTTP/1.1 204 No Content"))
	ev := s.one().Evidence
	if ev.SendNetwork != 10*ms+20*us || ev.SendClient != 20*ms-20*us {
		t.Errorf("%+v", ev)
	}
}

func TestPlainHTTP2(t *testing.T) {
	s := newScript(t, event.ProtoHTTP2, false)
	s.connect(0, 10*ms)
	s.write(start, copied(http2.Preface).and(s.out.get(1, "/a"), s.out.get(3, "/b")))
	s.read(start+20*ms, s.status(3, 0, "200").and(data(3, 10, http2.EndStream)))
	s.read(start+30*ms, s.status(1, http2.EndStream, "200"))
	r := s.all(2)
	if r[0].HTTP.StreamID != 3 || line(r[0].Timeline).LastRead != start+20*ms+30*us || line(r[1].Timeline).LastIn != start+30*ms {
		t.Errorf("%+v", r[0])
	}
}

func TestDelayedACK(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/"))
	s.ack(at+50*ms, 0) // 40 ms late
	s.read(at+90*ms, s.status(3, http2.EndStream, "200"))
	ev := s.one().Evidence
	if len(ev.CleanACKs) != 1 || ev.CleanACKs[0].RTT != 10*ms {
		t.Errorf("clean ACKs %+v", ev.CleanACKs)
	}
	if ev.OwnACK != 50*ms-10*us {
		t.Errorf("own ACK %d: it is an upper bound all the same", ev.OwnACK)
	}
}

func TestMatch(t *testing.T) {
	for _, tls := range []bool{true, false} {
		s := newScript(t, event.ProtoHTTP1, tls)
		s.tr.cfg.Match = func(host string, peer netip.AddrPort) bool { return host == "other.example" }
		if tls {
			s.secure()
		} else {
			s.connect(0, 10*ms)
		}
		s.write(start, message("GET / HTTP/1.1", "Host: api.example:80"))
		s.read(start+20*ms, message("HTTP/1.1 204 No Content"))
		s.close(start + 30*ms)
		s.all(0)
		if st := s.tr.Stats(); st.Unmatched != 1 || st.OpenConns != 0 || len(st.Unknown) != 0 {
			t.Errorf("%+v", st)
		}
	}
}

func TestUnknown(t *testing.T) {
	for want, play := range map[string]func(s *script){
		unknownConnect:   func(s *script) { s.open(0) },
		unknownHandshake: func(s *script) { s.connect(0, ms); s.record(event.Out, 2*ms, 22, hello(1, "x"), 0) },
		unknownPlaintext: func(s *script) { s.secure() },
		unknownIdle:      func(s *script) { s.connect(0, ms) },
		unknownProtocol:  func(s *script) { s.connect(0, ms); s.proto = event.ProtoOther; s.write(2*ms, counted(4)) },
	} {
		s := newScript(t, event.ProtoHTTP1, false)
		play(s)
		s.close(100 * ms)
		if st := s.tr.Stats(); st.Unknown[want] != 1 || len(st.Unknown) != 1 {
			t.Errorf("%s: %+v", want, st)
		}
	}
}

func TestBounds(t *testing.T) {
	t.Run("connections", func(t *testing.T) {
		s := newScript(t, event.ProtoHTTP1, false)
		s.tr.cfg.MaxConns = 4
		for i := range uint64(10) {
			o := s.another(100 + i)
			o.connect(int64(i)*ms, ms)
			o.write(int64(i)*ms+ms, message("GET / HTTP/1.1", "Host: x"))
		}
		st := s.tr.Stats()
		if st.OpenConns != 4 || st.Evicted != 6 || st.Incomplete[reasonEvicted] != 6 || st.OpenExchanges != 4 {
			t.Errorf("%+v", st)
		}
		wantNotes(t, s.all(6)[0], NoteEvicted)
		if s.all(6)[0].Connection.ID != "64" {
			t.Errorf("%q went first", s.all(6)[0].Connection.ID)
		}
	})
	t.Run("streams", func(t *testing.T) {
		s := h2conn(t)
		s.tr.cfg.MaxStreams = 2
		for i := range uint32(3) {
			s.write(start+int64(i)*ms, s.out.get(2*i+1, "/"))
		}
		r := s.one()
		wantNotes(t, r, NoteEvicted)
		if r.HTTP.StreamID != 1 || s.tr.Stats().Evicted != 1 {
			t.Errorf("%+v", r.HTTP)
		}
	})
	t.Run("segments", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		x := s.out.post(3, "/").and(data(3, 200000, http2.EndStream))
		lo, n := s.sndSeq, s.wire(len(x.b))
		for i := 0; i < n; i += 100 { // all leave before the call returns
			s.send(at+int64(i)*us, min(100, n-i))
		}
		s.plain(event.Out, at, at+int64(n)*us, x, lo, s.sndSeq)
		s.read(at+int64(n)*us+10*ms, s.status(3, http2.EndStream, "200"))
		r := s.one()
		if len(s.tr.conns[s.cookie].tcp.out.buf) != maxSegments {
			t.Errorf("%d segments kept", len(s.tr.conns[s.cookie].tcp.out.buf))
		}
		if r.Quality.LostEvents == 0 || !slices.Contains(r.Quality.Notes, NoteSegments) {
			t.Errorf("%+v", r.Quality)
		}
	})
	t.Run("a long stream keeps few segments and no note", func(t *testing.T) {
		s := warm(h2conn(t))
		at := start + 100*ms
		s.write(at, s.out.get(3, "/"))
		s.read(at+10*ms, s.status(3, 0, "200"))
		for i := range int64(5000) {
			s.read(at+20*ms+i*ms, data(3, 50, 0))
		}
		s.read(at+6000*ms, data(3, 0, http2.EndStream))
		r := s.one()
		wantNotes(t, r)
		if got := r.Evidence.ReceiveIdle; got != 5990*ms {
			t.Errorf("idle %d", got)
		}
		if n := len(s.tr.conns[s.cookie].tcp.in.buf); n > minRing {
			t.Errorf("%d segments kept", n)
		}
	})
	t.Run("paths", func(t *testing.T) {
		ps := make(paths)
		for i := range 1000 {
			ps.get(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), int64(i))
		}
		if len(ps) != maxPaths || ps[netip.AddrFrom4([4]byte{10, 0, 3, 231})] == nil {
			t.Errorf("%d paths", len(ps))
		}
	})
}

func TestFlush(t *testing.T) {
	s := warm(h2conn(t))
	s.write(start+100*ms, s.out.get(3, "/"))
	s.tr.Flush(zero+start+200*ms, "interrupted")
	r := s.one()
	wantNotes(t, r, NoteFlushed)
	st := s.tr.Stats()
	if r.Quality.Complete || st.Incomplete["interrupted"] != 1 || st.OpenConns != 0 || st.OpenExchanges != 0 || len(s.tr.hosts) != 0 {
		t.Errorf("%+v", st)
	}
}

func TestExpire(t *testing.T) {
	s := warm(h2conn(t))
	s.write(start+100*ms, s.out.get(3, "/"))
	s.tr.Expire(zero + int64(idleFor))
	if len(*s.got) != 0 {
		t.Fatal("expired too soon")
	}
	s.tr.Expire(zero + start + 101*ms + int64(idleFor))
	wantNotes(t, s.one(), NoteExpired)
	if st := s.tr.Stats(); st.OpenConns != 0 || len(s.tr.hosts) != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLateJoin(t *testing.T) {
	s := newScript(t, event.ProtoHTTP2, true)
	s.tr.Handle(&event.Conn{Header: s.head(event.KindConn, 0, event.Out, 0), Local: netip.MustParseAddrPort("198.51.100.7:40000"),
		Peer: netip.MustParseAddrPort(s.peer), Role: event.RoleClient, PID: 42})
	s.off = [2]uint64{500, 900}
	s.out.get(1, "/before") // in the table, but never seen
	s.write(start, s.out.get(7, "/after"))
	s.read(start+20*ms, s.status(7, http2.EndStream, "200"))
	r := s.one()
	wantNotes(t, r, NoteLateSetup, NoteFields)
	if !r.Connection.Reused || r.Connection.SeenFromStart || line(r.Timeline).Need != start || r.HTTP.Path != "/after" ||
		r.HTTP.Authority != "" {
		t.Errorf("%+v %+v", r.Connection, r.HTTP)
	}
}

func TestHostOnly(t *testing.T) {
	for in, want := range map[string]string{
		"api.example": "api.example", "api.example:443": "api.example", "[2001:db8::1]:443": "2001:db8::1",
		"[2001:db8::1]": "2001:db8::1", "2001:db8::1": "2001:db8::1", "": "",
	} {
		if got := hostOnly(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestCallMapping(t *testing.T) {
	const lo = 1<<32 + 1000
	tls := func(dir event.Dir, bytes int, hi uint32) *event.Plain {
		return &event.Plain{Header: event.Header{Dir: dir, Flags: event.FlagTLS}, Offset: 100, Bytes: bytes, SeqLo: 1000, SeqHi: hi}
	}
	plain := tls(event.Out, 50, 1050)
	plain.Flags = 0
	for _, tc := range []struct {
		name        string
		ev          *event.Plain
		offset      uint64
		from, until int64
	}{
		{"one record, its middle", tls(event.Out, 500, 1522), 300, lo, lo + 522},
		{"one record, its end", tls(event.Out, 500, 1522), 600, lo, lo + 522},
		{"second record's first byte", tls(event.Out, 20000, 21044), 100 + 16384, lo + 16406, lo + 16406},
		{"second record", tls(event.Out, 20000, 21044), 100 + 16385, lo + 16406, lo + 20044},
		{"records of unequal overhead: the whole call", tls(event.Out, 20000, 21045), 100 + 16385, lo, lo + 20045},
		{"a read: the whole record", tls(event.In, 20, 17000), 110, lo, lo + 16000},
		{"before the call", tls(event.Out, 500, 1522), 90, lo, lo},
		{"no TLS: the byte", plain, 110, lo + 10, lo + 10},
		{"no TLS: not after the segment", plain, 200, lo + 50, lo + 50},
	} {
		k := (&conn{}).call(tc.ev)
		if from, until := k.from(tc.offset), k.until(tc.offset); from != tc.from || until != tc.until {
			t.Errorf("%s: from %d until %d, want %d and %d", tc.name, from-lo, until-lo, tc.from-lo, tc.until-lo)
		}
	}
}

// Other streams' and unknown records may begin the segment that ends a gap.
func TestIdleBehindOtherStreams(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/a"))
	s.read(at+10*ms, s.status(3, 0, "200"))
	ping, chunk := frame(http2.Ping, 0, 0, make([]byte, 8)), data(3, 100, http2.EndStream)
	a, b := s.wire(len(ping.b)), s.wire(len(chunk.b))
	lo := s.rcvSeq
	s.receive(at+50*ms, a+b, push)
	s.plain(event.In, at+51*ms, at+51*ms, ping, lo, lo+uint32(a))
	s.plain(event.In, at+52*ms, at+52*ms, chunk, lo+uint32(a), lo+uint32(a+b))
	if ev := s.one().Evidence; ev.ReceiveIdle != 40*ms {
		t.Errorf("%+v", ev)
	}
}

func TestHandshakeEndNotSeenAndIdle(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, true)
	s.connect(0, 10*ms)
	s.record(event.Out, 11*ms, 22, hello(1, "api.example"), 0)
	s.write(5000*ms, message("GET / HTTP/1.1", "Host: x"))
	s.read(5020*ms, message("HTTP/1.1 204 No Content"))
	r := s.one()
	wantNotes(t, r, NoteIdleSetup)
	if line(r.Timeline).Need != 5000*ms {
		t.Errorf("%+v", line(r.Timeline))
	}
}

// The kernel side reads plain HTTP off the packets and passes over one that
// comes late.
func TestPlainHoleInBody(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.connect(0, 10*ms)
	s.write(start, message("GET / HTTP/1.1", "Host: x"))
	x := message("HTTP/1.1 200 OK", "Content-Length: 3000").and(counted(3000))
	a, rest := x.cut(1000)
	hole, c := rest.cut(1000)
	lo := s.rcvSeq
	s.seg(event.In, start+20*ms, lo, len(a.b))
	s.plain(event.In, start+20*ms, start+20*ms, a, lo, lo+1000)
	s.off[event.In] += uint64(len(hole.b))
	s.seg(event.In, start+21*ms, lo+2000, len(c.b), push)
	s.plain(event.In, start+21*ms, start+21*ms, c, lo+2000, lo+2000+uint32(len(c.b)))
	s.seg(event.In, start+45*ms, lo+1000, len(hole.b))
	s.rcvSeq += uint32(len(x.b))
	s.recv(start+46*ms, len(x.b))
	r := s.one()
	tl := line(r.Timeline)
	if tl.FirstIn != start+20*ms || tl.LastIn != start+45*ms || tl.LastRead != start+46*ms ||
		r.HTTP.ResponseBodyBytes != 3000 || r.Evidence.ReceiveRecovery != 24*ms || !r.Evidence.ResponseRecovery {
		t.Errorf("%+v %+v %+v", tl, r.HTTP, r.Evidence)
	}
}

func TestResetAfterFIN(t *testing.T) {
	s := h1conn(t, true)
	s.write(start, message("GET / HTTP/1.1", "Host: x"))
	s.read(start+20*ms, message("HTTP/1.0 200 OK").and(counted(10)))
	s.receive(start+31*ms, 0, fin)
	s.send(start+31*ms, 0, rst)
	s.close(start + 32*ms)
	if r := s.one(); !r.Quality.Complete || r.HTTP.Reset != "" {
		t.Errorf("%+v", r.Quality)
	}
}

// A header block that is cut is lost, its stream and its bytes are not.
func TestLostBlock(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/a"))
	x := s.status(3, http2.EndStream, "200", "x-request-id", strings.Repeat("r", 100))
	for i := 40; i < len(x.b); i++ {
		x.copy[i] = false
	}
	s.read(at+20*ms, x)
	r := s.one()
	if tl := line(r.Timeline); tl.FirstIn != at+20*ms || tl.FirstRead == 0 || r.HTTP.Status != 0 || r.Quality.LostEvents == 0 {
		t.Errorf("%+v %+v", tl, r.HTTP)
	}
	wantNotes(t, r, NoteFraming)
	// A new block that refers to the lost one says so.
	s.write(at+30*ms, s.out.get(5, "/a"))
	s.read(at+50*ms, s.status(5, http2.EndStream, "200", "x-request-id", strings.Repeat("r", 100)))
	r = s.all(2)[1]
	wantNotes(t, r, NoteFields)
	if r.HTTP.Status != 200 || r.HTTP.ResponseHeaders["x-request-id"] != "" {
		t.Errorf("%+v", r.HTTP)
	}
}

func TestFalseStart(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, true)
	s.connect(0, 10*ms)
	s.record(event.Out, 11*ms, 22, helloVersion(1, 0x0303, false, "api.example"), 0)
	s.record(event.In, 22*ms, 22, helloVersion(2, 0x0303, false, ""), 0)
	s.record(event.Out, 23*ms, 22, []byte{16, 0, 0, 0}, 0)
	s.record(event.Out, 23*ms, 20, nil, 1)
	s.record(event.Out, 23*ms, 22, nil, 40)
	s.write(24*ms, message("GET / HTTP/1.1", "Host: x"))
	s.record(event.In, 33*ms, 20, nil, 1)
	s.record(event.In, 33*ms, 22, nil, 40)
	s.read(45*ms, message("HTTP/1.1 204 No Content"))
	r := s.one()
	wantNotes(t, r, NoteFalseStart)
	if tl := line(r.Timeline); tl.Secured != tl.FirstOut || tl.SYNACK == 0 || tl.FlightEnd != 22*ms || r.Evidence.FullHandshake12 {
		t.Errorf("%+v", tl)
	}
}

func TestServerSide(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.tr.Handle(&event.Conn{Header: s.head(event.KindConn, 0, event.Out, event.FlagFromStart), Role: event.RoleServer,
		Peer: netip.MustParseAddrPort(s.peer)})
	s.write(start, message("HTTP/1.1 200 OK"))
	s.close(start + ms)
	s.all(0)
	if st := s.tr.Stats(); st.Unknown[unknownServer] != 1 {
		t.Errorf("%+v", st)
	}
}

// Records share what does not change, so that must never change.
func TestSharedPartsStay(t *testing.T) {
	s := h2conn(t)
	for i := range int64(400) {
		s.write(start+i*30*ms, s.out.get(uint32(2*i+1), "/"))
		s.ack(start+i*30*ms+10*ms, 0)
		s.read(start+i*30*ms+20*ms-i*us, s.status(uint32(2*i+1), http2.EndStream, "200", "x-request-id", strings.Repeat("r", int(i))))
	}
	for i, r := range s.all(400) {
		if got := len(r.HTTP.ResponseHeaders["x-request-id"]); got != i {
			t.Errorf("%d: %d", i, got)
		}
		if w := r.Evidence.Waits; len(w) != min(i, trailKeep) || i > 0 && w[0] != 20*ms-10*us-int64(i-1)*us {
			t.Errorf("%d: waits %v", i, w)
		}
		if c := r.Evidence.CleanACKs; c[0].At != zero+start+int64(i)*30*ms+10*ms || len(c) != min(i+2, trailKeep) {
			t.Errorf("%d: %d samples, latest %+v", i, len(c), c[0])
		}
	}
}

func TestHoleInRecord(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/"))
	x := s.status(3, 0, "200").and(data(3, 3000, http2.EndStream))
	lo, n := s.rcvSeq, s.wire(len(x.b))
	s.seg(event.In, at+20*ms, lo, 1000)
	s.seg(event.In, at+21*ms, lo+2000, n-2000, push)
	s.seg(event.In, at+45*ms, lo+1000, 1000)
	s.plain(event.In, at+46*ms, at+46*ms, x, lo, lo+uint32(n))
	r := s.one()
	if ev := r.Evidence; ev.ReceiveRecovery != 25*ms || !ev.ResponseRecovery {
		t.Errorf("%+v", ev)
	}
}

func TestCleanACKsAreOfSegmentsSentOnce(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	x := s.out.get(3, "/")
	s.write(at, x)
	n := s.wire(len(x.b))
	s.resend(at+4*ms, n, n)
	s.ack(at+11*ms, 0)
	s.read(at+30*ms, s.status(3, http2.EndStream, "200"))
	if ev := s.one().Evidence; len(ev.CleanACKs) != 1 || ev.OwnACK != 0 {
		t.Errorf("%+v", ev)
	}
}

// What is sent again after the answer began did not delay it.
func TestSentAgainTooLate(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	x := s.out.get(3, "/")
	s.write(at, x)
	n := s.wire(len(x.b))
	answer := s.status(3, http2.EndStream, "200")
	lo := s.rcvSeq
	s.receive(at+20*ms, s.wire(len(answer.b)), push)
	s.resend(at+21*ms, n, n)
	s.plain(event.In, at+22*ms, at+22*ms, answer, lo, s.rcvSeq)
	r := s.one()
	if got := line(r.Timeline); got.LastOut != at+10*us || r.Evidence.RequestResent {
		t.Errorf("%+v %+v", got, r.Evidence)
	}
}

func TestLossBeforeTheWriteIsKnown(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	x := s.out.get(3, "/")
	lo := s.sndSeq
	s.lost = 1 // told by the segment, before the call returns
	s.send(at, s.wire(len(x.b)), push)
	s.plain(event.Out, at, at+20*us, x, lo, s.sndSeq)
	s.read(at+20*ms, s.status(3, http2.EndStream, "200"))
	if q := s.one().Quality; q.LostEvents != 1 {
		t.Errorf("%+v", q)
	}
}

func TestPlainReadInParts(t *testing.T) {
	s := newScript(t, event.ProtoHTTP1, false)
	s.connect(0, 10*ms)
	s.write(start, message("GET / HTTP/1.1", "Host: x"))
	x := message("HTTP/1.1 200 OK", "Content-Length: 1000").and(counted(1000))
	lo := s.rcvSeq
	s.receive(start+30*ms, len(x.b), push)
	s.plain(event.In, start+30*ms, start+30*ms, x, lo, s.rcvSeq)
	s.tr.Handle(&event.Recv{Header: s.head(event.KindRecv, start+31*ms, event.In, 0), Seq: lo + 500})
	if len(*s.got) != 0 {
		t.Fatal("ended before it was read")
	}
	s.tr.Handle(&event.Recv{Header: s.head(event.KindRecv, start+35*ms, event.In, 0), Seq: s.rcvSeq})
	if got := line(s.one().Timeline); got.FirstRead != start+31*ms || got.LastRead != start+35*ms {
		t.Errorf("%+v", got)
	}
}

// After a gap the kernel side may take any bytes for a frame header.
func TestResynchronize(t *testing.T) {
	s := h2conn(t)
	at := start + 100*ms
	s.write(start, s.out.get(1, "/a"))
	s.read(start+10*ms, s.status(1, http2.EndStream, "200", "x-request-id", "r0"))
	s.write(at, s.out.get(3, "/a"))
	_ = s.in.block("x-request-id", "r1") // lost, and in the table
	s.flags = event.FlagGap
	s.read(at+10*ms, copied("\x00\x00\x10garbage that is no frame header"))
	s.read(at+20*ms, s.status(3, http2.EndStream, "200", "x-request-id", "r1"))
	r := s.all(2)[1]
	wantNotes(t, r, NoteFraming, NoteFields)
	// Not "r0", which an index that does not know of the loss points to.
	if r.HTTP.Status != 200 || r.HTTP.ResponseHeaders["x-request-id"] != "" || !r.Quality.Complete {
		t.Errorf("%+v", r.HTTP)
	}
}

// Waits are those of exchanges that can stand for others.
func TestWaits(t *testing.T) {
	s := warm(h2conn(t))
	at := start + 100*ms
	s.write(at, s.out.get(3, "/resent"))
	s.resend(at+ms, 20, 20)
	s.read(at+10*ms, s.status(3, http2.EndStream, "200"))
	s.write(at+20*ms, s.out.get(5, "/reset"))
	s.read(at+40*ms, s.status(5, 0, "200"))
	s.read(at+40*ms, frame(http2.RSTStream, 0, 5, []byte{0, 0, 0, 2}))
	o := s.another(9)
	o.connect(200*ms, 10*ms)
	o.write(300*ms, copied(http2.Preface).and(o.out.get(1, "/")))
	o.read(320*ms, o.status(1, http2.EndStream, "200"))
	if w := s.all(3)[2].Evidence.Waits; !slices.Equal(w, []int64{5*ms - 10*us}) {
		t.Errorf("%v", w)
	}
}

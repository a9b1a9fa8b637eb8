package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

// full has every field set, and all different.
func full() *exchange.Record {
	no, ok := false, 0
	const need = 1_000_000_000
	b := func(v int64) exchange.Bounded { return exchange.Bounded{Value: v, Low: v - 1, High: v + 1} }
	return &exchange.Record{
		Start:   time.Date(2026, 11, 29, 12, 0, 1, 234_000_000, time.UTC),
		Node:    "node-1",
		Role:    "client",
		Process: exchange.Process{PID: 123, Comm: "curl", Exe: "/usr/bin/curl", Container: "c0ffee", Pod: "pod-1", Namespace: "default"},
		Connection: exchange.Connection{
			ID: "0123456789abcdef", Local: netip.MustParseAddrPort("[2001:db8::1]:40000"), Peer: netip.MustParseAddrPort("192.0.2.1:443"),
			Transport: "tcp", Reused: true, Sequence: 2, Inflight: 3, SeenFromStart: true, MinRTT: 10_000_000, SRTT: 11_000_000, Retransmits: 4,
		},
		TLS: &exchange.TLSInfo{
			Library: "openssl", Version: "1.3", SNI: "api.example.com", ALPN: "h2", ALPNOffered: []string{"h2", "http/1.1"},
			Cipher: "TLS_AES_128_GCM_SHA256", Group: "X25519MLKEM768", Resumed: &no, JA4: "t13d1516h2_8daaf6152771_b186095e22b6",
		},
		HTTP: &exchange.HTTP{
			Version: "2", StreamID: 5, Method: "POST", Authority: "api.example.com", Path: "/v1/messages", Status: 200,
			RequestHeaderBytes: 101, ResponseHeaderBytes: 102, RequestBodyBytes: 103, ResponseBodyBytes: 0,
			RequestHeaders:  map[string]string{"authorization": "present", "user-agent": "curl/8"},
			ResponseHeaders: map[string]string{"server-timing": `edge;dur=1.5;desc="a\b"`, "via": "1.1 x\r\n\x1b[31m\u202e", "cf-ray": "π"},
			ContentType:     "text/event-stream", GRPCStatus: &ok, Reset: "CANCEL", RetryOf: "0123456789abcdee/3",
		},
		Timeline: exchange.Timeline{
			Need: need, FirstSYN: need + 1, SYN: need + 2, SYNACK: need + 3, Hello: need + 4, ServerFlight: need + 5, FlightEnd: need + 6,
			Secured: need + 7, Written: need + 8, FirstOut: need, LastOutFirst: need + 10, LastOut: need + 11, Acked: need + 12,
			FirstIn: need + 13, LastIn: need + 14, FirstRead: need + 15, LastRead: need + 16,
		},
		Phases: [exchange.NumPhases]exchange.Split{
			exchange.DNS:     {Seen: true},
			exchange.Connect: {Seen: true, Total: 20, Parts: [exchange.NumParties]exchange.Bounded{exchange.Network: b(20)}},
			exchange.TLS:     {Seen: true, Total: 60, Parts: [exchange.NumParties]exchange.Bounded{b(10), b(20), b(30)}},
			exchange.Blocked: {Seen: true, Total: 5, Parts: [exchange.NumParties]exchange.Bounded{exchange.Client: b(5)}},
			exchange.Send:    {Seen: true, Total: 3, Parts: [exchange.NumParties]exchange.Bounded{exchange.Network: b(3)}},
			exchange.Wait:    {Seen: true, Total: 90, Parts: [exchange.NumParties]exchange.Bounded{exchange.Network: b(20), exchange.Server: b(70)}},
			exchange.Receive: {Seen: true, Total: 7, Parts: [exchange.NumParties]exchange.Bounded{{High: 7}, {High: 7}, {Value: 7, High: 7}}},
			exchange.Read:    {Seen: true, Total: 2, Parts: [exchange.NumParties]exchange.Bounded{exchange.Client: b(2)}},
		},
		Components: [exchange.NumComponents]exchange.Bounded{{}, b(80), b(23), b(77), b(7)},
		TTFB:       178,
		Total:      187,
		Quality:    exchange.Quality{Plaintext: true, Complete: true, LostEvents: 6, RTTSource: "rtt_min", Notes: []string{"one", "two"}},
	}
}

// wire has what is known of an exchange without plaintext: little.
func wire() *exchange.Record {
	r := &exchange.Record{
		Start:    time.Date(2026, 11, 29, 12, 0, 2, 5, time.UTC),
		Role:     "client",
		TLS:      &exchange.TLSInfo{},
		Timeline: exchange.Timeline{Need: 7_000, FirstOut: 7_000, LastOut: 7_000, FirstIn: 9_000, LastIn: 9_500},
		TTFB:     2_000,
		Total:    2_500,
		Quality:  exchange.Quality{Notes: []string{"read: no probe on the TLS library"}},
	}
	for p := range exchange.NumPhases {
		r.Phases[p].Seen = p != exchange.DNS && p != exchange.Read
	}
	r.Phases[exchange.Wait] = exchange.Split{Seen: true, Total: 2_000, Parts: [exchange.NumParties]exchange.Bounded{
		exchange.Network: {Value: 500, Low: 400, High: 600}, exchange.Server: {Value: 1_500, Low: 1_400, High: 1_600}}}
	r.Phases[exchange.Receive] = exchange.Split{Seen: true, Total: 500, Parts: [exchange.NumParties]exchange.Bounded{
		exchange.Server: {Value: 500, Low: 0, High: 500}}}
	r.Components[exchange.CompNetwork] = exchange.Bounded{Value: 500, Low: 400, High: 600}
	r.Components[exchange.CompServer] = exchange.Bounded{Value: 2_000, Low: 1_400, High: 2_100}
	return r
}

// plain is HTTP/1.1 without TLS whose sizes are not known.
func plain() *exchange.Record {
	return &exchange.Record{HTTP: &exchange.HTTP{Version: "1.1", Method: "GET", Path: "/",
		RequestHeaderBytes: -1, ResponseHeaderBytes: -1, RequestBodyBytes: -1, ResponseBodyBytes: -1}}
}

func encode(t testing.TB, records ...*exchange.Record) string {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func readAll(in string) (records []*exchange.Record, err error) {
	err = Read(strings.NewReader(in), func(r *exchange.Record) error {
		records = append(records, r)
		return nil
	})
	return records, err
}

func TestGolden(t *testing.T) {
	got := encode(t, full(), wire(), plain())
	const file = "testdata/exchange.jsonl"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the format changed; it may only gain fields (UPDATE_GOLDEN=1 rewrites %s)\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	first := encode(t, full(), wire(), plain())
	records, err := readAll(first)
	if err != nil {
		t.Fatal(err)
	}
	if second := encode(t, records...); second != first {
		t.Errorf("record → JSON → record → JSON differs\nfirst:\n%s\nsecond:\n%s", first, second)
	}

	// The record itself comes back too, but for what an epoch and a terminal
	// forbid: marks move to Unix time.
	want, got := full(), records[0]
	shift := want.Start.UnixNano() - want.Timeline.Need
	want.Timeline.Need += shift
	for _, m := range marks(&want.Timeline) {
		*m.at += shift
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("record → JSON → record\ngot:  %+v\nwant: %+v", got, want)
	}
}

func TestAbsent(t *testing.T) {
	lines := strings.SplitAfter(encode(t, wire(), plain()), "\n")
	tests := []struct {
		name, line    string
		absent, there []string
	}{
		{"wire only", lines[0],
			[]string{`"dns"`, `"read":`, `"http"`, `"process"`, `"local"`, `"peer"`, `"sequence"`, `"rtt_source"`, `"handshake":{"value":1`, `"acked"`, `"node"`},
			[]string{`"phases_ns":{"connect":0,"tls":0,"blocked":0,"send":0,"wait":2000,"receive":500}`, `"tls":{}`,
				`"timeline_ns":{"need":0,"first_out":0,"last_out":0,"first_in":2000,"last_in":2500}`,
				`"breakdown_ns":{"wait":{"network":{"value":500,"low":400,"high":600},"server":{"value":1500,"low":1400,"high":1600}},"receive":{"server":{"value":500,"low":0,"high":500}}}`}},
		{"nothing seen", lines[1],
			[]string{`"start"`, `"tls"`, `_bytes"`, `_headers"`, `"status"`, `"stream_id"`, `"grpc_status"`, `"phases_ns"`, `"components_ns"`, `"ttfb_ns"`, `"total_ns"`, `"timeline_ns"`},
			[]string{`"http":{"version":"1.1","method":"GET","path":"/"}`, `"quality":{"plaintext":false,"complete":false,"lost_events":0,"notes":[]}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range tt.absent {
				if strings.Contains(tt.line, s) {
					t.Errorf("%s is in %s", s, tt.line)
				}
			}
			for _, s := range tt.there {
				if !strings.Contains(tt.line, s) {
					t.Errorf("%s is not in %s", s, tt.line)
				}
			}
		})
	}
}

// TestUnpaid holds the format's two kinds of nothing apart.
func TestUnpaid(t *testing.T) {
	r := plain()
	r.Phases[exchange.Connect].Seen = true
	records, err := readAll(encode(t, r))
	if err != nil {
		t.Fatal(err)
	}
	if p := records[0].Phases; !p[exchange.Connect].Seen || p[exchange.DNS].Seen {
		t.Errorf("connect seen %v, dns seen %v; want true, false", p[exchange.Connect].Seen, p[exchange.DNS].Seen)
	}
}

func TestStrings(t *testing.T) {
	for _, s := range []string{`"`, `\`, "\n", "\x00", "\x1b[2J", "\x7f", "\u009b", "\u202e", "\u2028", "é", "日本", "🙂", "\U000e0001", "a\x1bb\"c"} {
		r := plain()
		r.HTTP.Path = s
		line := encode(t, r)
		for _, c := range strings.TrimSuffix(line, "\n") {
			if c < ' ' || c == 0x7f || c == 0x9b || c == 0x202e || c == 0x2028 {
				t.Errorf("%q is written with %U as it is", s, c)
			}
		}
		var got struct{ HTTP struct{ Path string } }
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.HTTP.Path != s {
			t.Errorf("%q comes back as %q, error %v", s, got.HTTP.Path, err)
		}
	}
	r := plain()
	r.Process.Comm = "a\xffb"
	if line := encode(t, r); !strings.Contains(line, `"comm":"a\ufffdb"`) && !strings.Contains(line, "\"comm\":\"a\ufffdb\"") {
		t.Errorf("invalid UTF-8 is written as %s", line)
	}
}

func TestReadErrors(t *testing.T) {
	good := encode(t, plain())
	tests := []struct {
		name, in string
		records  int
		err      string // "" for none
	}{
		{"empty", "", 0, ""},
		{"no final newline", good + strings.TrimSuffix(good, "\n"), 2, ""},
		{"empty lines and CRLF", "\n" + good + "\r\n" + strings.TrimSuffix(good, "\n") + "\r\n", 2, ""},
		{"unknown fields", strings.Replace(good, "{", `{"new":{"a":[1]},`, 1), 1, ""},
		{"unknown phase", strings.Replace(good, "{", `{"phases_ns":{"parse":1},"timeline_ns":{"new":1},`, 1), 1, ""},
		{"cut off", good + good + good[:len(good)/2], 2, "line 3: input ends within a record"},
		{"newer schema", good + strings.Replace(good, "exchange/1", "exchange/2", 1), 1, `line 2: schema is "peel.exchange/2": only peel.exchange/1 can be read`},
		{"newer schema with other types", `{"connection":7,"schema":"peel.exchange/2"}` + "\n", 0, `line 1: schema is "peel.exchange/2": only peel.exchange/1 can be read`},
		{"no schema", good + "{}\n", 1, "line 2: no schema field: not a record of peel.exchange/1"},
		{"not an object", "[1]\n", 0, "line 1: parsing record: array instead of an object"},
		{"wrong type", good + "\n" + strings.Replace(good, `"GET"`, "5", 1), 1, "line 3: parsing record: field http.method cannot be a number"},
		{"not JSON", good + "hello\n" + good, 1, "line 2: parsing record: invalid character 'h' looking for beginning of value"},
		{"bad address", strings.Replace(good, `"reused"`, `"peer":"nowhere","reused"`, 1), 0, "line 1: parsing record: not an ip:port"},
		{"too long", good + strings.Repeat(" ", MaxLine+1) + "\n", 1, "line 2: longer than 4194304 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			records, err := readAll(tt.in)
			if len(records) != tt.records {
				t.Errorf("%d records delivered, want %d", len(records), tt.records)
			}
			if got := errText(err); got != tt.err {
				t.Errorf("error %q, want %q", got, tt.err)
			}
		})
	}
	if _, err := readAll(good[:20]); !errors.Is(err, ErrCutOff) {
		t.Errorf("%v is not ErrCutOff", err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestReadStops(t *testing.T) {
	stop := errors.New("enough")
	n := 0
	err := Read(strings.NewReader(encode(t, plain(), plain(), plain())), func(*exchange.Record) error {
		n++
		if n == 2 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || n != 2 {
		t.Errorf("error %v after %d records, want %v after 2", err, n, stop)
	}
}

// TestStreams holds that records are delivered as they arrive.
func TestStreams(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	got := make(chan struct{})
	done := make(chan error)
	go func() { done <- Read(in, func(*exchange.Record) error { got <- struct{}{}; return nil }) }()
	for range 3 {
		if _, err := io.WriteString(out, encode(t, plain())); err != nil {
			t.Fatal(err)
		}
		<-got
	}
	out.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDiskFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := NewWriter(f)
	const n = 1000 // more than the buffer holds
	var first error
	for range n {
		if err := w.Write(full()); err != nil && first == nil {
			first = err
		}
	}
	if first == nil || !strings.Contains(first.Error(), "no space left") {
		t.Errorf("Write returned %v, want no space left", first)
	}
	if err := w.Flush(); err == nil {
		t.Error("Flush forgot the error")
	}
	if s := w.Stats(); s != (Stats{Lost: n}) {
		t.Errorf("stats %+v, want all %d lost", s, n)
	}
}

// short takes only so many bytes.
type short struct {
	bytes.Buffer
	room int
}

func (s *short) Write(b []byte) (int, error) {
	n := min(len(b), s.room)
	s.room -= n
	s.Buffer.Write(b[:n])
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func TestShortWrite(t *testing.T) {
	one := len(encode(t, plain()))
	out := &short{room: 2*one + 10}
	w := NewWriter(out)
	for range 5 {
		if err := w.Write(plain()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("Flush returned %v", err)
	}
	if got, want := w.Stats(), (Stats{Records: 2, Lost: 3, Bytes: uint64(2*one + 10)}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	records, err := readAll(out.String())
	if len(records) != 2 || !errors.Is(err, ErrCutOff) {
		t.Errorf("%d records and %v from what is left, want 2 and %v", len(records), err, ErrCutOff)
	}
}

func FuzzRead(f *testing.F) {
	for _, l := range strings.SplitAfter(encode(f, full(), wire(), plain()), "\n") {
		f.Add(l)
	}
	f.Add(`{"schema":"peel.exchange/1","start":"9999-12-31T23:59:59-01:00","timeline_ns":{"need":0,"syn":-9223372036854775808}}`)
	f.Add(`{"schema":"peel.exchange/1","start":"1970-01-01T00:00:00Z","timeline_ns":{"need":0,"syn":-1},"http":{"request_body_bytes":-5}}`)
	f.Fuzz(func(t *testing.T, in string) {
		records, _ := readAll(in)
		first := encode(t, records...)
		again, err := readAll(first)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, first)
		}
		if second := encode(t, again...); second != first {
			t.Errorf("not stable\nfirst:\n%s\nsecond:\n%s", first, second)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	w := NewWriter(io.Discard)
	r := full()
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Write(r); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(w.Stats().Bytes) / int64(b.N))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkRead(b *testing.B) {
	const n = 100
	in := strings.Repeat(encode(b, full()), n)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readAll(in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

package demo

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

const runClient = "demo-client"

// TestMain makes the test binary the client of its own steps.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == runClient {
		if err := Client(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, cfg Config) *Demo {
	t.Helper()
	cfg.Client = []string{os.Args[0], runClient}
	d, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// caller is a Go client of one of the server's addresses.
type caller struct {
	t      *testing.T
	client *http.Client
	base   string
}

func newCaller(t *testing.T, addr netip.AddrPort, secure, http2 bool, sni string) *caller {
	t.Helper()
	c := &caller{t: t, base: "http://" + addr.String()}
	transport := &http.Transport{Protocols: new(http.Protocols)}
	if secure {
		c.base = "https://" + addr.String()
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, ServerName: sni}
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	c.client = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// do sends a request and returns the answer with its body read, and the clock
// just before and just after.
func (c *caller) do(method, path string, body io.Reader, fields ...string) (resp *http.Response, text string, from, to int64) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	from = now()
	resp, err = c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	read, err := io.ReadAll(resp.Body)
	to = now()
	resp.Body.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(read), from, to
}

type way struct {
	name          string
	secure, http2 bool
	ipv6          bool
}

func ways() []way {
	return []way{
		{"h2", true, true, false},
		{"h1 over TLS", true, false, false},
		{"plain h1", false, false, false},
		{"h2 over IPv6", true, true, true},
	}
}

func (w way) call(t *testing.T, d *Demo, sni string) *caller {
	t.Helper()
	addr := d.PlainAddr()
	switch {
	case w.ipv6:
		addrs := d.TLSAddrs()
		addr = addrs[len(addrs)-1] // IPv4's again without ::1
	case w.secure:
		addr = d.TLSAddrs()[0]
	}
	return newCaller(t, addr, w.secure, w.http2, sni)
}

// ordered fails unless the times rise.
func ordered(t *testing.T, times ...int64) {
	t.Helper()
	if !slices.IsSorted(times) || times[0] == 0 {
		t.Errorf("times do not rise: %v", times)
	}
}

func truthOf(t *testing.T, d *Demo, id string) Truth {
	t.Helper()
	truth, ok := d.Truth(id)
	if !ok {
		t.Fatalf("no truth of %s", id)
	}
	return truth
}

func atLeast(t *testing.T, truth Truth, p exchange.Phase, want time.Duration) {
	t.Helper()
	if got, ok := truth.Of(p); !ok || got < want {
		t.Errorf("%v: %v, %v; want at least what was added, %v", p, got, ok, want)
	}
}

// A client on the same clock brackets what the server says, and what was
// added is a lower bound: both hold however slow the machine is.
func TestTruth(t *testing.T) {
	const delay, gap, chunks, handshake = 20 * time.Millisecond, 3 * time.Millisecond, 5, 25 * time.Millisecond
	for _, way := range ways() {
		t.Run(way.name, func(t *testing.T) {
			d := start(t, Config{})
			c := way.call(t, d, handshakeName(handshake))

			resp, text, from, to := c.do("POST", "/v1/messages/one?key=dropped", strings.NewReader(requestBody), delayField, delay.String())
			if resp.StatusCode != 200 || !strings.Contains(text, `"type":"message"`) {
				t.Fatalf("%s: %s", resp.Status, text)
			}
			if way.http2 != (resp.ProtoMajor == 2) {
				t.Fatalf("the answer came by %s", resp.Proto)
			}
			one := truthOf(t, d, "one")
			ordered(t, from, one.RequestArrived, one.FirstWritten, one.LastWritten, to)
			atLeast(t, one, exchange.Wait, delay)
			if way.secure {
				ordered(t, from, one.HelloArrived, one.FlightWritten, one.RequestArrived)
				atLeast(t, one, exchange.TLS, handshake)
			} else if _, ok := one.Of(exchange.TLS); ok {
				t.Error("a handshake where there is none")
			}

			_, text, from, to = c.do("POST", "/v1/stream/two", strings.NewReader(requestBody),
				chunksField, fmt.Sprint(chunks), gapField, gap.String())
			if n := strings.Count(text, "event: content_block_delta\n"); n != chunks {
				t.Errorf("%d chunks, want %d", n, chunks)
			}
			two := truthOf(t, d, "two")
			ordered(t, one.LastWritten, from, two.RequestArrived, two.FirstWritten, two.LastWritten, to)
			atLeast(t, two, exchange.Receive, chunks*gap)
			if _, ok := two.Of(exchange.TLS); ok || two.Sequence != 2 {
				t.Errorf("request %d of its connection has a handshake of its own: %v", two.Sequence, ok)
			}
			if later := truthOf(t, d, "one"); later != one {
				t.Errorf("the second answer changed the first one's truth: %+v, was %+v", later, one)
			}
		})
	}
}

// A request ends with its last byte, not with its head, and not when another
// stream's bytes arrive.
func TestTruthOfSlowUpload(t *testing.T) {
	for _, way := range ways() {
		t.Run(way.name, func(t *testing.T) {
			d := start(t, Config{})
			c := way.call(t, d, "")
			c.do("GET", "/v1/models/warm", nil)

			r, w := io.Pipe()
			var from, to int64
			var wg sync.WaitGroup
			wg.Go(func() { _, _, from, to = c.do("POST", "/v1/messages/slow", r) })
			if _, err := io.WriteString(w, requestBody[:10]); err != nil {
				t.Fatal(err)
			}
			_, _, _, between := c.do("GET", "/v1/models/quick", nil)
			if _, err := io.WriteString(w, requestBody[10:]); err != nil {
				t.Fatal(err)
			}
			last := now()
			w.Close()
			wg.Wait()

			quick, slow := truthOf(t, d, "quick"), truthOf(t, d, "slow")
			ordered(t, from, quick.RequestArrived, quick.LastWritten, between, slow.RequestArrived, slow.FirstWritten, to)
			ordered(t, last, slow.RequestArrived)
			if way.http2 && quick.Sequence != 3 {
				t.Errorf("the streams did not share a connection: sequence %d", quick.Sequence)
			}
		})
	}
}

func TestRequestsThatAskForTooMuch(t *testing.T) {
	d := start(t, Config{})
	c := newCaller(t, d.PlainAddr(), false, false, "")
	for _, tt := range []struct {
		method, path, field, value string
		body                       io.Reader
		want                       int
	}{
		{"GET", "/v1/models", "", "", nil, 200},
		{"GET", "/v1/nothing", "", "", nil, 404},
		{"GET", "/v1/messages/a", "", "", nil, 405},
		{"GET", "/v1/models/a", delayField, "soon", nil, 400},
		{"GET", "/v1/models/a", delayField, "-1s", nil, 400},
		{"GET", "/v1/models/a", delayField, "2h", nil, 400},
		{"GET", "/v1/stream/a", gapField, "2h", nil, 400},
		{"GET", "/v1/stream/a", chunksField, "1001", nil, 400},
		{"GET", "/v1/stream/a", chunksField, "0", nil, 200},
		{"POST", "/v1/messages/a", "", "", strings.NewReader(strings.Repeat("x", maxBody+1)), 413},
	} {
		var fields []string
		if tt.field != "" {
			fields = []string{tt.field, tt.value}
		}
		resp, text, _, _ := c.do(tt.method, tt.path, tt.body, fields...)
		if resp.StatusCode != tt.want {
			t.Errorf("%s %s, %s %q: %s, want %d (%s)", tt.method, tt.path, tt.field, tt.value, resp.Status, tt.want, text)
		}
	}
}

func TestStreamOnAccept(t *testing.T) {
	d := start(t, Config{})
	c := newCaller(t, d.PlainAddr(), false, false, "")
	resp, text, _, _ := c.do("POST", "/v1/messages", strings.NewReader(requestBody), "Accept", "text/event-stream")
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	var kinds []string
	for line := range strings.Lines(text) {
		if kind, ok := strings.CutPrefix(line, "event: "); ok {
			kinds = append(kinds, strings.TrimSpace(kind))
		}
	}
	want := []string{"message_start", "ping", "content_block_delta", "message_stop"}
	if !slices.Equal(kinds, want) {
		t.Errorf("events %q, want %q", kinds, want)
	}
}

func TestBookIsBounded(t *testing.T) {
	b := newBook(2)
	for _, id := range []string{"a", "b", "c", "a"} {
		b.arrived(b.open(id, Truth{}), 7)
	}
	if _, ok := b.truth("c"); ok || b.shed() != 1 {
		t.Errorf("the third of two is kept: %v; %d shed", ok, b.shed())
	}
	if a, ok := b.truth("a"); !ok || a.RequestArrived != 7 {
		t.Errorf("a known id was shed: %+v %v", a, ok)
	}
}

func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d, err := Start(ctx, Config{Client: []string{"none"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	d.serving.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Each client that this host has runs its steps, and the server then knows
// the truth of each figure that they expect. The program's own client is
// always there.
func TestSteps(t *testing.T) {
	d := start(t, Config{Handshake: 3 * time.Millisecond, FirstByte: 2 * time.Millisecond, Chunks: 3, Gap: time.Millisecond})
	clients := []client{{tool: own, argv: []string{os.Args[0], runClient}, name: "own"}}
	if c, err := findCurl(t.Context()); err == nil {
		clients = append(clients, c)
	}
	if c, err := findPython(t.Context()); err == nil {
		clients = append(clients, c)
	}
	cfg := Config{Handshake: 3 * time.Millisecond, FirstByte: 2 * time.Millisecond, Chunks: 3, Gap: time.Millisecond}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			began := now()
			steps := plan(cfg, c, d.tls, d.tls6, d.cleartext)
			if len(steps) < 3 {
				t.Errorf("only %d steps", len(steps))
			}
			for _, step := range steps {
				if out, err := exec.CommandContext(t.Context(), step.Argv[0], step.Argv[1:]...).CombinedOutput(); err != nil {
					t.Errorf("%s: %q: %v\n%s", step.Name, step.Argv, err, out)
				}
				for i, e := range step.Expect {
					truth := truthOf(t, d, e.ID)
					atLeast(t, truth, e.Phase, e.Added)
					ordered(t, began, truth.RequestArrived)
					if i > 0 && e.ID != step.Expect[i-1].ID && truth.Sequence != 2 {
						t.Errorf("%s: the second request came as number %d of its connection", step.Name, truth.Sequence)
					}
				}
			}
		})
	}
}

func TestPlan(t *testing.T) {
	tls4, tls6, plain := netip.MustParseAddrPort("127.0.0.1:443"), netip.MustParseAddrPort("[::1]:444"), netip.MustParseAddrPort("127.0.0.1:80")
	var cfg Config
	cfg.defaults()
	for _, tt := range []struct {
		name  string
		c     client
		tls6  netip.AddrPort
		steps int
		// What the third step's command has to hold, in order.
		third []string
	}{
		{"curl", client{tool: curl, argv: []string{"/usr/bin/curl"}, http2: true}, tls6, 7,
			[]string{"/usr/bin/curl", "-q", "--insecure", "--resolve", "api.demo.test:443:127.0.0.1", "--http2", "--header", "X-Demo-Delay: 50ms", "https://api.demo.test:443/v1/messages/demo-03"}},
		{"curl without HTTP/2 and IPv6", client{tool: curl, argv: []string{"curl"}}, netip.AddrPort{}, 6,
			[]string{"curl", "-q", "--http1.1", "https://api.demo.test:443/v1/messages/demo-03"}},
		{"python", client{tool: python, argv: []string{"python3", "-I", "-c", "…"}}, tls6, 7,
			[]string{"python3", "127.0.0.1", "443", "api.demo.test", "POST /v1/messages/demo-03 Content-Type=application/json X-Demo-Delay=50ms"}},
		{"own", client{tool: own, argv: []string{"peel", "demo-client"}}, tls6, 3, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps := plan(cfg, tt.c, tls4, tt.tls6, plain)
			if len(steps) != tt.steps {
				t.Errorf("%d steps, want %d", len(steps), tt.steps)
			}
			argv := steps[2].Argv
			for _, want := range tt.third {
				i := slices.Index(argv, want)
				if i < 0 {
					t.Fatalf("%q is missing, or out of order, in %q", want, steps[2].Argv)
				}
				argv = argv[i+1:]
			}
			ids := map[string]string{}
			for _, s := range steps {
				for _, e := range s.Expect {
					if owner, ok := ids[e.ID]; ok && owner != s.Name {
						t.Errorf("%s and %s share the id %s", owner, s.Name, e.ID)
					}
					ids[e.ID] = s.Name
					if tt.c.tool == own && e.Phase == exchange.TLS {
						t.Error("the client without TLS is asked for a handshake")
					}
				}
			}
		})
	}
	argv := plan(cfg, client{tool: curl, argv: []string{"curl"}}, tls4, tls6, plain)[5].Argv
	if !slices.Contains(argv, "api.demo.test:444:[::1]") {
		t.Errorf("the IPv6 step does not go to ::1: %q", argv)
	}
}

func TestClientsThatCannotBeSeen(t *testing.T) {
	for _, tt := range []struct {
		name, curl string
		want       string // of the client's name; empty: refused
		http2      bool
	}{
		{"debian", "curl 7.88.1 (x86_64-pc-linux-gnu) libcurl/7.88.1 OpenSSL/3.0.22 zlib/1.2.13\nFeatures: HTTP2 SSL", "curl 7.88.1 with OpenSSL 3.0.22", true},
		{"no HTTP/2", "curl 8.0 (x) libcurl/8.0 OpenSSL/3.1\nFeatures: SSL", "curl 8.0 with OpenSSL 3.1", false},
		{"other TLS", "curl 8.0 (x) libcurl/8.0 GnuTLS/3.8\nFeatures: HTTP2", "", false},
		{"OpenSSL not in use", "curl 8.0 (x) libcurl/8.0 (OpenSSL/3.1) GnuTLS/3.8\nFeatures: HTTP2", "", false},
		{"old", "curl 7.61 (x) libcurl/7.61 OpenSSL/1.1.1k\nFeatures: HTTP2", "", false},
		{"nothing", "", "", false},
	} {
		c, err := parseCurl("curl", tt.curl)
		if c.name != tt.want || (err == nil) != (tt.want != "") || c.http2 != tt.http2 {
			t.Errorf("curl, %s: %q, HTTP/2 %v, %v", tt.name, c.name, c.http2, err)
		}
	}
	for _, tt := range []struct{ name, python, want string }{
		{"debian", "/usr/bin/python3\n3.11.2\nOpenSSL 3.0.22 25 Aug 2026\nTrue\n", "python 3.11.2 with OpenSSL 3.0.22"},
		{"built in", "/opt/python3\n3.13.0\nOpenSSL 3.0.22 25 Aug 2026\nFalse\n", ""},
		{"old", "/usr/bin/python3\n3.8.1\nOpenSSL 1.1.1k 25 Mar 2021\nTrue\n", ""},
		{"LibreSSL", "/usr/bin/python3\n3.11.2\nLibreSSL 3.3.6\nTrue\n", ""},
		{"nothing", "", ""},
	} {
		c, err := parsePython(tt.python)
		if c.name != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("python, %s: %q, %v", tt.name, c.name, err)
		}
	}
	t.Run("bare host", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		c, err := findClient(t.Context(), []string{"peel", "demo-client"})
		if err != nil || c.tool != own || len(c.lacks) != 1 || !strings.Contains(c.lacks[0], "no curl on this host; no python3 on this host") {
			t.Errorf("%+v, %v", c, err)
		}
		if _, err := findClient(t.Context(), nil); err == nil {
			t.Error("no client at all is no error")
		}
	})
}

func TestHandshakeName(t *testing.T) {
	for _, d := range []time.Duration{time.Microsecond, 30 * time.Millisecond, maxHandshakeDelay} {
		if got := handshakeDelay(handshakeName(d)); got != d {
			t.Errorf("%v became %v", d, got)
		}
	}
	for name, want := range map[string]time.Duration{
		"": 0, "api.demo.test": 0, "handshake-.demo.test": 0, "handshake-x.demo.test": 0,
		"handshake--5ms.demo.test": 0, "handshake-9h.demo.test": maxHandshakeDelay,
	} {
		if got := handshakeDelay(name); got != want {
			t.Errorf("%q asks for %v, want %v", name, got, want)
		}
	}
}

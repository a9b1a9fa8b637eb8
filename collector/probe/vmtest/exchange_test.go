package vmtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/latency"
	"github.com/peel-dev/peel/collector/probe"
)

const (
	answerBytes = 40_000
	uploadBytes = 300_000
	// fillers are fields of an answer: more than one event holds.
	fillers = 150
	// think is the least that the server takes for an answer.
	think = 20 * time.Millisecond
)

// fetch is one run of curl: gets or one upload over one connection.
type fetch struct {
	name    string
	args    []string
	secure  bool
	v6      bool
	version string // HTTP's
	tls     string // TLS's
	upload  bool
	count   int // exchanges
}

func fetches() []fetch {
	return []fetch{
		{name: "h2-v4", args: []string{"--http2"}, secure: true, version: "2", tls: "1.3", count: 3},
		{name: "h1-v6", args: []string{"--http1.1"}, secure: true, v6: true, version: "1.1", tls: "1.3", count: 2},
		{name: "h2-v6-upload", args: []string{"--http2"}, secure: true, v6: true, version: "2", tls: "1.3", upload: true, count: 1},
		{name: "h1-v4-upload", args: []string{"--http1.1", "--tls-max", "1.2"}, secure: true, version: "1.1", tls: "1.2", upload: true, count: 1},
		{name: "plain-v4", version: "1.1", count: 2},
		{name: "plain-v6-upload", v6: true, version: "1.1", upload: true, count: 1},
	}
}

// ran is what a run of curl is known to have been.
type ran struct {
	fetch
	pid  int
	peer netip.AddrPort
	took time.Duration
}

// answer takes the whole request before it answers.
func answer(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client is told by the broken answer
	}
	time.Sleep(think)
	for i := range fillers {
		w.Header().Set(fmt.Sprintf("X-Filler-%d", i), "of no use to anybody")
	}
	w.Header().Set("Server", "vmtest")
	// In HTTP/2 curl then does not wait for the frame that ends the answer.
	w.Header().Set("Content-Length", strconv.Itoa(answerBytes))
	w.Write(bytes.Repeat([]byte("x"), answerBytes))
}

// serve starts a server on a loopback address.
func serve(t *testing.T, secure, v6 bool) netip.AddrPort {
	t.Helper()
	address := "127.0.0.1:0"
	if v6 {
		address = "[::1]:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(answer)}}
	if secure {
		server.EnableHTTP2 = true
		server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return netip.MustParseAddrPort(listener.Addr().String())
}

// end is a kind of server.
type end struct{ secure, v6 bool }

// servers starts one of each kind.
func servers(t *testing.T) map[end]netip.AddrPort {
	t.Helper()
	peers := make(map[end]netip.AddrPort)
	for _, e := range []end{{false, false}, {false, true}, {true, false}, {true, true}} {
		peers[e] = serve(t, e.secure, e.v6)
	}
	return peers
}

// bodyFile is a file to upload.
func bodyFile(t *testing.T) string {
	t.Helper()
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, bytes.Repeat([]byte("y"), uploadBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	return body
}

// observation is an observer of this process's children that runs.
type observation struct {
	observer *collector.Observer
	records  []*exchange.Record // Run's until it has ended
	stop     context.CancelFunc
	ended    chan error
}

func observe(t *testing.T, cfg collector.Config) *observation {
	t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal(err)
	}
	o := &observation{ended: make(chan error, 1)}
	begin := time.Now()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg.Command = true
	cfg.Emit = func(r *exchange.Record) { o.records = append(o.records, r.Clone()) }
	o.observer, err = collector.Open(cfg)
	if err != nil {
		t.Fatalf("open: %+v", err)
	}
	t.Logf("opened in %v", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := o.observer.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := o.observer.WatchCommand(curl, os.Environ(), os.Getpid()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	o.stop = stop
	go func() { o.ended <- o.observer.Run(ctx) }()
	t.Cleanup(stop)
	return o
}

// end ends the observation and returns what was seen.
func (o *observation) end(t *testing.T) ([]*exchange.Record, collector.Report) {
	t.Helper()
	time.Sleep(200 * time.Millisecond) // the last connections' ends
	o.stop()
	if err := <-o.ended; err != nil {
		t.Fatal(err)
	}
	return o.records, o.observer.Report()
}

// run runs curl.
func (f fetch) run(t *testing.T, peer netip.AddrPort, body string) ran {
	t.Helper()
	scheme := "http"
	if f.secure {
		scheme = "https"
	}
	args := append([]string{"--silent", "--show-error", "--fail", "--insecure", "--max-time", "60"}, f.args...)
	if f.upload {
		args = append(args, "--data-binary", "@"+body)
	}
	for i := range f.count {
		args = append(args, "--output", "/dev/null", fmt.Sprintf("%s://%s/%s/%d", scheme, peer, f.name, i))
	}
	command := exec.Command("curl", args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	begin := time.Now()
	if err := command.Run(); err != nil {
		t.Fatalf("%s: curl: %v: %s", f.name, err, &stderr)
	}
	return ran{fetch: f, pid: command.Process.Pid, peer: peer, took: time.Since(begin)}
}

// TestExchanges observes curl by every hook that this kernel offers.
func TestExchanges(t *testing.T) {
	offer := offers(t)
	body, peers := bodyFile(t), servers(t)
	for i, way := range ways(offer) {
		t.Run(fmt.Sprintf("choice %d", i+1), func(t *testing.T) {
			o := observe(t, collector.Config{Avoid: avoid(offer, way)})
			var runs []ran
			for _, f := range fetches() {
				runs = append(runs, f.run(t, peers[end{f.secure, f.v6}], body))
			}
			records, report := o.end(t)
			checkHooks(t, report.Hooks, way)
			checkReport(t, report)
			byPath := make(map[string]*exchange.Record)
			for _, r := range records {
				if r.HTTP == nil || byPath[r.HTTP.Path] != nil {
					t.Errorf("one record too many: %+v %+v", r.Connection, r.HTTP)
					continue
				}
				byPath[r.HTTP.Path] = r
			}
			for _, run := range runs {
				for i := range run.count {
					path := fmt.Sprintf("/%s/%d", run.name, i)
					if r := byPath[path]; r == nil {
						t.Errorf("%s: no record", path)
					} else if wrong := run.check(r, i); len(wrong) > 0 {
						t.Errorf("%s:\n\t%s\n%+v\n%+v\n%+v", path, strings.Join(wrong, "\n\t"), r.Connection, r.Timeline, r.Quality)
					}
					delete(byPath, path)
				}
			}
			for path := range byPath {
				t.Errorf("%s: a record of nothing that was done", path)
			}
		})
	}
}

// TestRingFull checks that what does not fit is counted and marked, with an
// event made in the ring and with one copied to it.
func TestRingFull(t *testing.T) {
	offer := offers(t)
	all := ways(offer)
	body, peers := bodyFile(t), servers(t)
	for name, way := range map[string]map[probe.Purpose]string{"best": all[0], "last": all[len(all)-1]} {
		t.Run(name, func(t *testing.T) {
			o := observe(t, collector.Config{Avoid: avoid(offer, way), RingSize: uint32(os.Getpagesize())})
			for _, f := range fetches() {
				f.run(t, peers[end{f.secure, f.v6}], body)
			}
			records, report := o.end(t)
			if report.Reasons["ring_full"] == 0 {
				t.Errorf("a page was enough: %v", report.Reasons)
			}
			if report.Residuals > 0 || report.Undecoded > 0 {
				t.Errorf("%d records do not add up, %d events undecoded", report.Residuals, report.Undecoded)
			}
			for _, r := range records {
				if r.Quality.Complete && r.Quality.LostEvents == 0 && r.HTTP.ResponseBodyBytes != answerBytes {
					t.Errorf("not marked: %+v %+v %+v", r.Connection, r.HTTP, r.Quality)
				}
			}
			t.Logf("%d records; %v", len(records), report.Reasons)
		})
	}
}

// checkHooks checks what serves each purpose, and prints it.
func checkHooks(t *testing.T, hooks []probe.Hook, way map[probe.Purpose]string) {
	t.Helper()
	for _, h := range hooks {
		t.Logf("%-20s %s", h.Purpose, h.Serving())
		if want := way[h.Purpose]; h.Serving() != want {
			t.Errorf("%s is served by %q, want %q", h.Purpose, h.Serving(), want)
			for _, a := range h.Attempts {
				t.Logf("\t%s: %+v", a.Hook, a.Err)
			}
		}
	}
}

// checkReport checks that nothing was lost.
func checkReport(t *testing.T, report collector.Report) {
	t.Helper()
	if len(report.Reasons) > 0 || len(report.Incomplete) > 0 || len(report.Unknown) > 0 || len(report.Refused) > 0 {
		t.Errorf("drops: %v; incomplete: %v; unknown: %v; refused: %v",
			report.Reasons, report.Incomplete, report.Unknown, report.Refused)
	}
	if report.Undecoded > 0 || report.Residuals > 0 || report.Evicted > 0 {
		t.Errorf("%d events undecoded, %d records do not add up, %d evicted", report.Undecoded, report.Residuals, report.Evicted)
	}
}

// check says what is wrong with the record of a run's exchange.
func (run ran) check(r *exchange.Record, index int) (wrong []string) {
	is := func(what string, got, want any) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", what, got, want))
		}
	}
	method, sent := "GET", 0
	if run.upload {
		method, sent = "POST", uploadBytes
	}
	is("role", r.Role, "client")
	is("pid", int(r.Process.PID), run.pid)
	is("comm", r.Process.Comm, "curl")
	is("peer", r.Connection.Peer, run.peer)
	is("sequence", r.Connection.Sequence, index+1)
	is("reused", r.Connection.Reused, index > 0)
	is("seen from start", r.Connection.SeenFromStart, true)
	is("version", r.HTTP.Version, run.version)
	is("method", r.HTTP.Method, method)
	is("status", r.HTTP.Status, http.StatusOK)
	is("request body", r.HTTP.RequestBodyBytes, int64(sent))
	is("response body", r.HTTP.ResponseBodyBytes, int64(answerBytes))
	is("server's name", r.HTTP.ResponseHeaders["server"], "vmtest")
	is("plaintext", r.Quality.Plaintext, true)
	is("complete", r.Quality.Complete, true)
	is("lost events", r.Quality.LostEvents, 0)
	if err := latency.Check(r); err != nil {
		wrong = append(wrong, err.Error())
	}
	for _, p := range []exchange.Phase{exchange.Send, exchange.Wait, exchange.Receive} {
		is(p.String()+" seen", r.Phases[p].Seen, true)
	}
	if r.Phases[exchange.Wait].Total < think.Nanoseconds() {
		wrong = append(wrong, fmt.Sprintf("a wait of %d ns for a server that takes %v", r.Phases[exchange.Wait].Total, think))
	}
	if r.Total > run.took.Nanoseconds() {
		wrong = append(wrong, fmt.Sprintf("%d ns of a run of %v", r.Total, run.took))
	}

	type mark struct {
		name string
		at   int64
	}
	var marks []mark
	tl := &r.Timeline
	is("first", index == 0, tl.SYN != 0)
	if index == 0 {
		marks = append(marks, mark{"SYN", tl.SYN}, mark{"SYN-ACK", tl.SYNACK})
	}
	if run.secure && r.TLS == nil {
		wrong = append(wrong, "no TLS")
	} else if run.secure {
		is("TLS version", r.TLS.Version, run.tls)
		if index == 0 {
			marks = append(marks, mark{"hello", tl.Hello}, mark{"server's flight", tl.ServerFlight}, mark{"secured", tl.Secured})
		}
		marks = append(marks, mark{"written", tl.Written})
	}
	marks = append(marks, mark{"first out", tl.FirstOut}, mark{"last out", tl.LastOut}, mark{"first in", tl.FirstIn},
		mark{"last in", tl.LastIn}, mark{"last read", tl.LastRead})
	for i, m := range marks {
		if m.at == 0 {
			wrong = append(wrong, "not seen: "+m.name)
		} else if i > 0 && m.at < marks[i-1].at {
			wrong = append(wrong, m.name+" before "+marks[i-1].name)
		}
	}
	return wrong
}

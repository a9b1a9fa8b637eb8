package collector

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/conn"
	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/latency"
	"github.com/peel-dev/peel/collector/testbed"
	"github.com/peel-dev/peel/collector/wire/header"
	"github.com/peel-dev/peel/exporter/jsonl"
)

var (
	record = flag.Bool("record", false, "record the kernel's events in testdata anew, and their golden records")
	update = flag.Bool("update", false, "make the golden records in testdata from the recorded events")
)

// upload sends 100 kB twice on one connection, as a program with http.client does.
const upload = `
import http.client, ssl, sys
host, port = sys.argv[1].rsplit(":", 1)
context = ssl._create_unverified_context()
c = http.client.HTTPSConnection(host, int(port), context=context)
for _ in range(2):
    c.request("POST", "/upload?secret=no", b"u" * 100_000, {"x-request-id": "test-1", "authorization": "Bearer test-only"})
    answer = c.getresponse()
    assert (answer.status, answer.read()) == (200, b"ok")
c.close()
`

// golden is a recording of the kernel's events and what must come of it,
// whatever the golden file says.
type golden struct {
	name      string
	argv      func(nghttpd string, nginx *testbed.Nginx) []string
	exchanges int
	conns     int
	version   string
	tls       string // version; empty: plain HTTP
	alpn      string
	method    string
	path      string
	request   int64 // body bytes
	response  int64
	inflight  int // at least so many at a time
}

func goldens() []golden {
	return []golden{
		{
			name: "curl-h2",
			argv: func(nghttpd string, _ *testbed.Nginx) []string {
				return []string{"curl", "-sSk", "https://" + nghttpd + "/small?secret=no"}
			},
			exchanges: 1, conns: 1, version: "2", tls: "1.3", alpn: "h2", method: "GET", path: "/small", response: testbed.SmallSize, inflight: 1,
		}, {
			name: "curl-h1",
			argv: func(_ string, nginx *testbed.Nginx) []string {
				return []string{"curl", "-sSk", "--http1.1", "--tls-max", "1.2", "https://" + nginx.TLS + "/small"}
			},
			exchanges: 1, conns: 1, version: "1.1", tls: "1.2", alpn: "http/1.1", method: "GET", path: "/small", response: testbed.SmallSize, inflight: 1,
		}, {
			name: "curl-plain",
			argv: func(_ string, nginx *testbed.Nginx) []string {
				return []string{"curl", "-sS", "http://" + nginx.Plain + "/small", "http://" + nginx.Plain + "/small"}
			},
			exchanges: 2, conns: 1, version: "1.1", method: "GET", path: "/small", response: testbed.SmallSize, inflight: 1,
		}, {
			name: "python-upload",
			argv: func(_ string, nginx *testbed.Nginx) []string {
				return []string{testbed.Python, "-c", upload, nginx.TLS}
			},
			exchanges: 2, conns: 1, version: "1.1", tls: "1.3", method: "POST", path: "/upload", request: 100_000, response: 2, inflight: 1,
		}, {
			name: "h2load",
			argv: func(nghttpd string, _ *testbed.Nginx) []string {
				return []string{"h2load", "-n", "80", "-c", "4", "-m", "10", "https://" + nghttpd + "/small"}
			},
			exchanges: 80, conns: 4, version: "2", tls: "1.3", alpn: "h2", method: "GET", path: "/small", response: testbed.SmallSize, inflight: 10,
		},
	}
}

// TestGolden replays what the kernel side once reported, without privileges:
// decoded, followed, split and written, it must give the golden records.
func TestGolden(t *testing.T) {
	if *record {
		recordAll(t)
	}
	for _, g := range goldens() {
		t.Run(g.name, func(t *testing.T) {
			records, stats := replay(t, filepath.Join("testdata", g.name+".events"))
			g.check(t, records, stats)

			var got bytes.Buffer
			w := jsonl.NewWriter(&got)
			for _, r := range records {
				if err := w.Write(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", g.name+".jsonl")
			if *update || *record {
				testbed.WriteFile(t, file, got.Bytes())
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			gotLines, wantLines := bytes.Split(got.Bytes(), []byte("\n")), bytes.Split(want, []byte("\n"))
			for i := range min(len(gotLines), len(wantLines)) {
				if !bytes.Equal(gotLines[i], wantLines[i]) {
					t.Fatalf("record %d is\n%s\nwant\n%s\n(if that is right: go test ./collector -run TestGolden -update)", i+1, gotLines[i], wantLines[i])
				}
			}
			if len(gotLines) != len(wantLines) {
				t.Errorf("%d records, want %d", len(gotLines)-1, len(wantLines)-1)
			}
		})
	}
}

// check asserts what a golden file that was carelessly made anew would hide.
func (g *golden) check(t *testing.T, records []*exchange.Record, stats conn.Stats) {
	if len(records) != g.exchanges || stats.Connections != g.conns {
		t.Errorf("%d exchanges on %d connections, want %d on %d", len(records), stats.Connections, g.exchanges, g.conns)
	}
	if stats.Reused != g.exchanges-g.conns || len(stats.Incomplete)+len(stats.Unknown) > 0 ||
		stats.Lost+uint64(stats.Gaps+stats.Evicted+stats.Unrequested) > 0 {
		t.Errorf("stats: %+v", stats)
	}
	perConn := make(map[string][]int)
	inflight := 0
	for i, r := range records {
		if err := latency.Check(r); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
		if r.TTFB <= 0 || r.TTFB > r.Total {
			t.Errorf("record %d: first byte after %d of %d ns", i, r.TTFB, r.Total)
		}
		h, c := r.HTTP, &r.Connection
		if h.Version != g.version || h.Method != g.method || h.Path != g.path || h.Status != 200 ||
			h.RequestBodyBytes != g.request || h.ResponseBodyBytes != g.response {
			t.Errorf("record %d: %+v", i, *h)
		}
		if (r.TLS == nil) != (g.tls == "") {
			t.Errorf("record %d: TLS %+v", i, r.TLS)
		}
		if r.TLS != nil && (r.TLS.ALPN != g.alpn || r.TLS.Version != g.tls || r.TLS.Library != "openssl") {
			t.Errorf("record %d: TLS %+v", i, *r.TLS)
		}
		if !r.Quality.Plaintext || !r.Quality.Complete || r.Quality.LostEvents != 0 || !c.SeenFromStart {
			t.Errorf("record %d: %+v", i, r.Quality)
		}
		if setUp := r.Timeline.SYN != 0; setUp != (c.Sequence == 1) || c.Reused == setUp {
			t.Errorf("record %d: set-up charged %v, sequence %d, reused %v", i, setUp, c.Sequence, c.Reused)
		}
		perConn[c.ID] = append(perConn[c.ID], c.Sequence)
		inflight = max(inflight, c.Inflight)
	}
	for id, sequence := range perConn {
		slices.Sort(sequence)
		for i, n := range sequence {
			if n != i+1 {
				t.Errorf("connection %s has sequence numbers %v", id, sequence)
				break
			}
		}
	}
	if inflight < g.inflight {
		t.Errorf("at most %d exchanges open at a time, want %d or more", inflight, g.inflight)
	}
}

// replay takes recorded events through all stages.
func replay(t testing.TB, file string) ([]*exchange.Record, conn.Stats) {
	t.Helper()
	events, err := readEvents(file)
	if err != nil {
		t.Fatal(err)
	}
	var records []*exchange.Record
	var decoder event.Decoder
	var last int64
	tracker := conn.New(conn.Config{
		Policy: header.NewPolicy(nil),
		Epoch:  func(mono int64) time.Time { return time.Unix(0, mono).UTC() },
	}, func(r *exchange.Record) {
		latency.Split(r)
		records = append(records, r.Clone())
	})
	for _, raw := range events {
		ev, err := decoder.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, ev.Head().At)
		tracker.Handle(ev)
	}
	tracker.Flush(last, "observation ended")
	return records, tracker.Stats()
}

// TestGoldenEvents holds the recordings to what may be in a repository.
func TestGoldenEvents(t *testing.T) {
	for _, g := range goldens() {
		events, err := readEvents(filepath.Join("testdata", g.name+".events"))
		if err != nil {
			t.Fatal(err)
		}
		kinds := make(map[event.Kind]int)
		var decoder event.Decoder
		for _, raw := range events {
			ev, err := decoder.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			kinds[ev.Head().Kind]++
			for _, body := range []string{"ssssssss", "bbbbbbbb", "uuuuuuuu"} {
				if bytes.Contains(raw, []byte(body)) {
					t.Errorf("%s: an event has body bytes", g.name)
				}
			}
		}
		for _, kind := range []event.Kind{event.KindConn, event.KindSegment, event.KindPlain, event.KindClose, event.KindProcess} {
			if kinds[kind] == 0 {
				t.Errorf("%s: no event of kind %d among %v", g.name, kind, slices.Sorted(maps.Keys(kinds)))
			}
		}
	}
}

// recordAll makes the recordings, against real servers.
func recordAll(t *testing.T) {
	nghttpd, nginx := testbed.Nghttpd(t), testbed.StartNginx(t)
	for _, g := range goldens() {
		ob := observe(t)
		ob.must(g.argv(nghttpd, nginx)...)
		ob.end()
		var file bytes.Buffer
		for _, raw := range ob.raw {
			file.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(raw))))
			file.Write(raw)
		}
		testbed.WriteFile(t, filepath.Join("testdata", g.name+".events"), file.Bytes())
	}
}

// readEvents reads a recording: each event after its length, 32 bits little-endian.
func readEvents(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var events [][]byte
	for len(data) > 0 {
		if len(data) < 4 || int(binary.LittleEndian.Uint32(data)) > len(data)-4 {
			return nil, fmt.Errorf("read %s: %w", path, io.ErrUnexpectedEOF)
		}
		n := int(binary.LittleEndian.Uint32(data))
		events = append(events, data[4:4+n])
		data = data[4+n:]
	}
	return events, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
	"github.com/peel-dev/peel/cmd/accuracy/truth"
)

// TestMain lets the test binary be the line's process, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == lineCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTruthAlone makes exchanges with each client, without peel.
func TestTruthAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes network namespaces: run it as root")
	}
	if err := checkTools(); err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), t.TempDir(), "none")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	sleeps := []time.Duration{0, 8 * ms}
	path := delayline.Path{Up: delayline.Way{Delay: 3 * ms}, Down: delayline.Way{Delay: 2 * ms}}
	for _, c := range []testCase{
		{name: "curl", program: curl, upload: 100_000},
		{name: "curl-ipv6", program: curl, ipv6: true, work: truth.Work{Size: 50_000}},
		{name: "curl-plain", program: curl, plain: true, http1: true},
		{name: "curl-new", program: curlNew},
		{name: "python", program: python, upload: 1000, think: ms},
		{name: "nghttp", program: nghttp, streams: 3},
		{name: "h2load", program: h2load, streams: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.n, c.parallel, c.sleeps, c.path = 8, 2, sleeps, path
			res, err := b.run(t.Context(), c)
			if err != nil || len(res.problems) > 0 || len(res.rows) != c.n {
				t.Fatalf("%d exchanges, %q, %v", len(res.rows), res.problems, err)
			}
			for _, x := range res.rows {
				if x.Truth.Server < x.Sleep || x.Truth.Up < int64(path.Up.Delay) || x.Truth.Down < int64(path.Down.Delay) {
					t.Errorf("slept %v, line %+v: %+v", time.Duration(x.Sleep), path, x.Truth)
				}
			}
		})
	}
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes network namespaces: run it as root")
	}
	b, err := newBench(t.Context(), t.TempDir(), "none")
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	began := time.Now()
	c := testCase{name: "long", program: curl, n: 1000, parallel: 1, sleeps: []time.Duration{time.Second}}
	if _, err := b.run(ctx, c); err == nil || time.Since(began) > casePatience/2 {
		t.Errorf("ended after %v with %v", time.Since(began), err)
	}
}

func TestCases(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range cases(1) {
		if names[c.name] {
			t.Errorf("%s: the name is there twice", c.name)
		}
		names[c.name] = true
		ids, slept, n := make(map[string]bool), make(map[time.Duration]bool), 0
		for _, requests := range c.requests() {
			for _, r := range requests {
				if ids[r.id] || strings.ContainsAny(r.id, "/?%") {
					t.Errorf("%s: id %q", c.name, r.id)
				}
				ids[r.id], slept[r.sleep] = true, true
				n++
			}
		}
		if n != c.n || len(slept) != len(c.sleeps) {
			t.Errorf("%s: %d exchanges of %d, %d server times of %d", c.name, n, c.n, len(slept), len(c.sleeps))
		}
	}
	for pattern, want := range map[string]int{"warm-*": 4, "sse": 1, "*": len(names)} {
		if got, err := choose(cases(1), pattern); err != nil || len(got) != want {
			t.Errorf("%s: %d cases, %v; want %d", pattern, len(got), err, want)
		}
	}
	for _, pattern := range []string{"nothing", "["} {
		if _, err := choose(cases(1), pattern); !errors.Is(err, errUsage) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	for _, c := range cases(0.001) {
		if c.n < c.parallel {
			t.Errorf("%s: a client has nothing to do", c.name)
		}
	}
}

func TestParseFlags(t *testing.T) {
	o, err := parse([]string{"--peel", "/p", "--cases", "h1*", "--n", "0.5", "--json", "f"}, io.Discard)
	if want := (options{peel: "/p", pattern: "h1*", scale: 0.5, json: "f"}); err != nil || o != want {
		t.Errorf("%+v, %v; want %+v", o, err, want)
	}
	for _, args := range [][]string{{"--n", "0"}, {"--n", "101"}, {"more"}, {"--unknown"}} {
		if _, err := parse(args, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parse([]string{"-h"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

func TestQuantile(t *testing.T) {
	values := make([]int64, 0, 200)
	for i := int64(200); i > 0; i-- {
		values = append(values, i)
	}
	for _, tt := range []struct {
		values []int64
		q      float64
		want   int64
	}{
		{values, 0.5, 100}, {values, 0.99, 198}, {values, 1, 200}, {values, 0, 1},
		{values[:1], 0.99, 200}, {nil, 0.5, 0}, {[]int64{3, 1, 2}, 0.5, 2},
	} {
		if got := quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile %v of %d values = %d, want %d", tt.q, len(tt.values), got, tt.want)
		}
	}
}

func TestFigures(t *testing.T) {
	var f figures
	if f.error() != "–" || f.share() != "–" || f.width() != "–" {
		t.Errorf("nothing: %s, %s, %s", f.error(), f.share(), f.width())
	}
	for range 1999 {
		f.add(bounded{Value: 100_000, Low: 90_000, High: 130_000}, 130_000)
	}
	f.add(bounded{Value: 100_000, Low: 90_000, High: 120_000}, 89_999)
	if f.error() != "30 / 30" || f.width() != "40" || f.held != 1999 || f.share() != "99.9" {
		t.Errorf("%s, %s, %d, %s", f.error(), f.width(), f.held, f.share())
	}
}

const lines = `{"role":"client","connection":{"local":"198.18.0.1:40000","sequence":2},"http":{"path":"/e/c.0.0"},"phases_ns":{"tls":0,"wait":30},"breakdown_ns":{"wait":{"server":{"value":11,"low":9,"high":12},"network":{"value":19,"low":18,"high":21}}},"components_ns":{"server":{"value":11,"low":9,"high":12}},"quality":{"complete":true,"rtt_source":"rtt_min"}}
{"role":"client","http":{"path":"/e/c.0.1"},"phases_ns":{"tls":50,"wait":30},"breakdown_ns":{"tls":{"server":{"value":20,"low":0,"high":40}},"wait":{"network":{"value":30,"low":0,"high":30}}},"quality":{"complete":false}}
{"role":"client","http":{"path":"/e/c.0.1"}}
{"role":"server","http":{"path":"/e/c.0.0"}}
{"role":"client","http":{"path":"/e/c.0.2"},"phases_ns":{},"quality":{"notes":["why"]}}
`

func TestMatch(t *testing.T) {
	var records []*record
	if err := readRecords(strings.NewReader(lines), func(r *record) { records = append(records, r) }); err != nil {
		t.Fatal(err)
	}
	c := testCase{name: "c", n: 4, parallel: 1, sleeps: []time.Duration{0, ms}}
	res := match(c, []truth.Exchange{
		{ID: "c.0.0", Wait: 30, Server: 10, Network: 20},
		{ID: "c.0.1", Wait: 30, Server: 5, Network: 25, Handshake: 30, HasHandshake: true},
		{ID: "c.0.2"}, {ID: "c.0.3"},
	}, records)
	want := []string{
		"1 exchanges have more than one record", "1 exchanges have no record", "1 records are not complete",
		"1 records are of role server", `1 records have no wait: ["why"]`,
	}
	if strings.Join(res.problems, "\n") != strings.Join(want, "\n") {
		t.Errorf("problems %q, want %q", res.problems, want)
	}
	if len(res.rows) != 2 || res.n != 4 || res.records != 5 {
		t.Fatalf("%d rows, %d truths, %d records", len(res.rows), res.n, res.records)
	}
	if x := res.rows[1]; x.Sleep != int64(ms) || x.Server != (bounded{}) || x.Handshake == nil || x.Handshake.Value != 20 || x.RTTSource != "?" {
		t.Errorf("second row %+v", x)
	}
	a := res.figures()
	if a.server.held != 1 || a.network.held != 2 || a.handshake.held != 1 || len(a.handshake.errors) != 1 || len(a.streamed.errors) != 0 {
		t.Errorf("figures %+v", a)
	}
	if err := readRecords(strings.NewReader(lines+"{"), func(*record) {}); err == nil || !strings.Contains(err.Error(), "line 6") {
		t.Errorf("half a line: %v", err)
	}
}

func TestTable(t *testing.T) {
	res := result{testCase: testCase{name: "sse", work: truth.Work{Chunks: 2}}, n: 2, problems: []string{"1 is odd"}}
	for i, source := range []string{"syn", "rtt_min", "rtt_min"} {
		s := bounded{int64(i+1) * 1000, 0, 3000}
		res.rows = append(res.rows, row{Server: s, Total: map[string]bounded{"server": s}, RTTSource: source, Truth: truth.Exchange{Pauses: 10_000, Network: 20_000}})
	}
	var out bytes.Buffer
	table(&out, []result{res})
	for _, want := range []string{
		"| sse | 2 | 3 | 2 / 3 | 20 / 20 | – | 0 | 3 | 100.0 | 0.0 | – | rtt_min 2, syn 1 | 20 / 20 | 0 / 0 |",
		"| all | 2 | 3 | 2 / 3 |",
		"| sse | 3 | 8 / 9 | 3 | 0.0 |",
		"- sse: 1 is odd",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestUndisturbed(t *testing.T) {
	at := func(network int64) row { return row{Truth: truth.Exchange{Network: network}} }
	steady := result{testCase: testCase{path: delayline.Steady(ms)}, rows: []row{at(2_000_000), at(2_500_000), at(2_500_001)}}
	lossy := result{testCase: testCase{path: delayline.Path{Down: delayline.Way{Loss: 0.1}}}, rows: []row{at(0)}}
	jitter := result{testCase: testCase{path: delayline.Path{Up: delayline.Way{Jitter: 1}}}, rows: []row{at(0)}}
	if got := len(undisturbed([]result{steady, lossy, jitter}).server.errors); got != 2 {
		t.Errorf("%d exchanges, want 2", got)
	}
	if len(steady.rows) != 3 || steady.rows[2].Truth.Network != 2_500_001 {
		t.Errorf("rows were changed: %v", steady.rows)
	}
}

// TestNoRecordFails runs the program with a peel that sees nothing.
func TestNoRecordFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes network namespaces: run it as root")
	}
	blind := filepath.Join(t.TempDir(), "peel")
	script := "#!/bin/sh\nfor a; do [ \"$last\" = --write ] && : >\"$a\"; last=$a; done\necho watching >&2\nexec sleep 100\n"
	if err := os.WriteFile(blind, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(t.TempDir(), "rows")
	var out bytes.Buffer
	err := run(t.Context(), []string{"--peel", blind, "--cases", "h1-plain", "--n", "0.02", "--json", rows}, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "h1-plain") || !strings.Contains(out.String(), "exchanges have no record") {
		t.Errorf("%v\n%s", err, out.String())
	}
	b, err := os.ReadFile(rows)
	if err != nil || len(b) != 0 && !json.Valid(b) {
		t.Errorf("rows %q, %v", b, err)
	}
}

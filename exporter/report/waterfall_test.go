package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
)

// golden compares got with a file of testdata; UPDATE_GOLDEN=1 rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
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
		t.Errorf("%s differs (UPDATE_GOLDEN=1 rewrites it)\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

// fits holds that no line is wider than w, none ends in a space, and ASCII is
// ASCII.
func fits(t *testing.T, st Style, out string) {
	t.Helper()
	for line := range strings.SplitSeq(out, "\n") {
		if n := width(line); n > st.width() {
			t.Errorf("%d columns, want at most %d: %q", n, st.width(), line)
		}
		if strings.HasSuffix(line, " ") {
			t.Errorf("space at the end of %q", line)
		}
		for _, r := range line {
			if r < ' ' || !st.Unicode && r > '~' {
				t.Errorf("%q in %q", r, line)
			}
		}
	}
}

func styles() map[string]Style {
	out := map[string]Style{}
	for _, w := range []int{60, 100, 160} {
		out[fmt.Sprintf("%d", w)] = Style{Width: w, Unicode: true}
		out[fmt.Sprintf("%d-ascii", w)] = Style{Width: w}
	}
	return out
}

func TestWaterfallGolden(t *testing.T) {
	for name, st := range styles() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			for _, k := range kinds() {
				Waterfall(&out, k.r, st)
				out.WriteString("\n")
			}
			golden(t, "waterfall-"+name+".txt", out.String())
			fits(t, st, out.String())
		})
	}
}

// TestVerdict: the last line of each must name whom to blame.
func TestVerdict(t *testing.T) {
	want := map[string]string{
		"new-slow-server": "> server 72 %: 88.2 ms [88.0-88.3] before its first byte",
		"new":             "> handshake 64 %: 60.3 ms to open the connection (connect 29.0 ms, tls 31.3 ms); reuse saves it",
		"reused":          "> network 86 %: 9.8 ms [9.7-10.1] for the round trip",
		"upload":          "> network 72 %: 232 ms [230-235] mostly to carry the request",
		"lossy":           "> network 94 %: 246 ms [213-253] to carry the answer, loss recovery included",
		"stream":          "> server 99.4 %: 38.6 s [38.4-38.8] to produce the answer after its first byte",
		"plain-http":      "> server 35 % or network 24 %: [53.0-88.0] and [31.0-66.0] overlap, the data do not decide",
		"incomplete":      "> so far: server 99.4 %: 5.00 s [4.99-5.01] before its first byte",
		"early-answer":    "> network 70 %: 14.0 ms [12.0-16.0] to carry the request",
		"undecided":       "> network 53 % or server 46 %: [9.0-19.0] and [11.0-21.0] overlap, the data do not decide",
		"wire-only":       "> server 71 %: 25.0 ms [22.0-27.0] before its first byte",
		"slow-reader":     "> client 93 %: 464 ms [443-474] mostly reading the answer too slowly: its receive window was closed",
	}
	for _, k := range kinds() {
		var out bytes.Buffer
		Waterfall(&out, k.r, Style{Width: 160})
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := lines[len(lines)-1]; got != want[k.name] {
			t.Errorf("%s:\ngot  %s\nwant %s", k.name, got, want[k.name])
		}
	}
}

// TestStretches: marks place the phases, and blocked has what they leave,
// also between connect and tls.
func TestStretches(t *testing.T) {
	const n = 1000
	r := &exchange.Record{
		Total: 100,
		Timeline: exchange.Timeline{Need: n, SYN: n + 5, SYNACK: n + 15, Hello: n + 20, Secured: n + 40, FirstOut: n + 50,
			LastOut: n + 50, FirstIn: n + 90, LastIn: n + 98, LastRead: n + 100},
	}
	for ph, total := range map[exchange.Phase]int64{exchange.Connect: 10, exchange.TLS: 20, exchange.Blocked: 20,
		exchange.Wait: 40, exchange.Receive: 8, exchange.Read: 2} {
		r.Phases[ph] = exchange.Split{Seen: true, Total: total}
	}
	marked := [exchange.NumPhases][]stretch{
		exchange.Connect: {{5, 15}}, exchange.TLS: {{20, 40}}, exchange.Blocked: {{0, 5}, {15, 20}, {40, 50}},
		exchange.Wait: {{50, 90}}, exchange.Receive: {{90, 98}}, exchange.Read: {{98, 100}},
	}
	if got := stretches(r); !reflect.DeepEqual(got, marked) {
		t.Errorf("with marks: %v, want %v", got, marked)
	}
	r.Timeline = exchange.Timeline{}
	ordered := [exchange.NumPhases][]stretch{
		exchange.Connect: {{0, 10}}, exchange.TLS: {{10, 30}}, exchange.Blocked: {{30, 50}},
		exchange.Wait: {{50, 90}}, exchange.Receive: {{90, 98}}, exchange.Read: {{98, 100}},
	}
	if got := stretches(r); !reflect.DeepEqual(got, ordered) {
		t.Errorf("without marks: %v, want %v", got, ordered)
	}
}

// TestBars: each phase has its bar, in its parties' characters, where it lies.
func TestBars(t *testing.T) {
	var out bytes.Buffer
	Waterfall(&out, kinds()[1].r, Style{Width: 100, Unicode: true}) // a new connection
	last := 0
	for line := range strings.SplitSeq(out.String(), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || !slices.Contains([]string{"dns", "connect", "tls", "blocked", "wait", "read"}, fields[0]) || len(fields) < 3 || fields[1] == "1" {
			continue
		}
		bar := string([]rune(line)[leftWidth+1:])
		at := strings.IndexAny(bar, "▒█▄")
		if at < 0 {
			t.Errorf("no bar in %q", line)
			continue
		}
		if col := width(bar[:at]); col < last {
			t.Errorf("%s begins at column %d, before the phase ahead of it at %d", fields[0], col, last)
		} else {
			last = col
		}
	}
}

// TestExactRival: a rival without bounds has its value in the verdict.
func TestExactRival(t *testing.T) {
	got := extent(exchange.Bounded{Value: 55 * ms, Low: 55 * ms, High: 55 * ms}, Style{})
	if !strings.Contains(got, "55") {
		t.Errorf("%q does not say how long", got)
	}
}

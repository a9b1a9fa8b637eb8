package demo

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/exporter/report"
)

const msec = int64(time.Millisecond)

// record is a client's, with the server's part of phases as given.
func record(path string, parts map[exchange.Phase]exchange.Bounded) *exchange.Record {
	r := &exchange.Record{Role: "client", HTTP: &exchange.HTTP{Path: path}}
	for phase, part := range parts {
		r.Phases[phase].Seen = true
		r.Phases[phase].Total = part.High
		r.Phases[phase].Parts[exchange.Server] = part
	}
	return r
}

func sample() ([]Step, []*exchange.Record, func(string) (Truth, bool)) {
	steps := []Step{
		{Name: "new connection, GET, HTTP/2", Expect: []Expect{{ID: "demo-01", Phase: exchange.TLS}, {ID: "demo-01", Phase: exchange.Wait}}},
		{Name: "stream of 12 chunks, 20ms apart, HTTP/2", Expect: []Expect{
			{ID: "demo-02", Phase: exchange.Wait}, {ID: "demo-02", Phase: exchange.Receive, Added: 240 * time.Millisecond}}},
		{Name: "two on one connection, HTTP/1.1", Expect: []Expect{
			{ID: "demo-03", Phase: exchange.Wait, Added: 5 * time.Millisecond}, {ID: "demo-04", Phase: exchange.Wait, Added: 15 * time.Millisecond}}},
		{Name: "plain HTTP", Expect: []Expect{{ID: "demo-05", Phase: exchange.Wait}}},
	}
	records := []*exchange.Record{
		{Role: "client"}, // without plaintext there is no path
		record("/v1/models/demo-01", map[exchange.Phase]exchange.Bounded{
			exchange.TLS:  {Value: 1_210_400, Low: 1_150_999, High: 1_259_001},
			exchange.Wait: {Value: 190_000, Low: 150_000, High: 200_000},
		}),
		// The same exchange at the server's end does not count.
		{Role: "server", HTTP: &exchange.HTTP{Path: "/v1/models/demo-01"}},
		record("/v1/stream/demo-02", map[exchange.Phase]exchange.Bounded{
			exchange.Receive: {Value: 243 * msec, Low: 242 * msec, High: 244 * msec},
		}),
		record("/v1/messages/demo-03", map[exchange.Phase]exchange.Bounded{
			exchange.Wait: {Value: 5_300_000, Low: 5_200_000, High: 5_400_000},
		}),
		record("/v1/messages/demo-05", map[exchange.Phase]exchange.Bounded{
			exchange.Wait: {Value: 5 * msec, Low: 5 * msec, High: 5 * msec},
		}),
	}
	truths := map[string]Truth{
		"demo-01": {Sequence: 1, HelloArrived: msec, FlightWritten: msec + 1_190_000, RequestArrived: 5 * msec, FirstWritten: 5*msec + 200_000, LastWritten: 6 * msec},
		"demo-02": {Sequence: 1, RequestArrived: 1, FirstWritten: msec, LastWritten: 243*msec + 500_000},
		"demo-03": {Sequence: 1, RequestArrived: msec, FirstWritten: msec + 5_100_000, LastWritten: 9 * msec},
		"demo-04": {Sequence: 2, RequestArrived: msec, FirstWritten: msec + 15_100_000, LastWritten: 19 * msec},
	}
	return steps, records, func(id string) (Truth, bool) {
		t, ok := truths[id]
		return t, ok
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name  string
		width int
		color bool
		want  string
	}{
		{"wide", 132, false, `
Server time in ms: measured [low–high] from outside, true by its own clock.

step                                     phase      added  measured  [low–high]            true  difference  holds
new connection, GET, HTTP/2              tls        0.000     1.210  [1.150–1.260]        1.190      +0.020  yes
                                         wait       0.000     0.190  [0.150–0.200]        0.200      -0.010  yes
stream of 12 chunks, 20ms apart, HTTP/2  wait     wait not seen
                                         receive  240.000   243.000  [242.000–244.000]  242.500      +0.500  yes
two on one connection, HTTP/1.1          wait       5.000     5.300  [5.200–5.400]        5.100      +0.200  no
                                         wait     exchange not seen
plain HTTP                               wait     no truth known

3 of 4 bounds hold the true value; 3 could not be compared.
`},
		{"80 columns", 80, false, `
Server time in ms: measured [low–high] from outside, true by its own clock.

  phase      added  measured  [low–high]            true  difference  holds
new connection, GET, HTTP/2
  tls        0.000     1.210  [1.150–1.260]        1.190      +0.020  yes
  wait       0.000     0.190  [0.150–0.200]        0.200      -0.010  yes
stream of 12 chunks, 20ms apart, HTTP/2
  wait     wait not seen
  receive  240.000   243.000  [242.000–244.000]  242.500      +0.500  yes
two on one connection, HTTP/1.1
  wait       5.000     5.300  [5.200–5.400]        5.100      +0.200  no
  wait     exchange not seen
plain HTTP
  wait     no truth known

3 of 4 bounds hold the true value; 3 could not be compared.
`},
		{"narrow, in color", 46, true, "\n" +
			"Server time in ms: measured [low–high] from\n" +
			"outside, true by its own clock.\n" +
			"\n" +
			"  phase    [low–high]            true  holds\n" +
			"new connection, GET, HTTP/2\n" +
			"  tls      [1.150–1.260]        1.190  \x1b[32myes\x1b[0m\n" +
			"  wait     [0.150–0.200]        0.200  \x1b[32myes\x1b[0m\n" +
			"stream of 12 chunks, 20ms apart, HTTP/2\n" +
			"  wait     \x1b[33mwait not seen\x1b[0m\n" +
			"  receive  [242.000–244.000]  242.500  \x1b[32myes\x1b[0m\n" +
			"two on one connection, HTTP/1.1\n" +
			"  wait     [5.200–5.400]        5.100  \x1b[31mno\x1b[0m\n" +
			"  wait     \x1b[33mexchange not seen\x1b[0m\n" +
			"plain HTTP\n" +
			"  wait     \x1b[33mno truth known\x1b[0m\n" +
			"\n" +
			"3 of 4 bounds hold the true value; 3 could not\n" +
			"be compared.\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, records, truth := sample()
			var out strings.Builder
			if err := Compare(&out, steps, records, truth, report.Style{Width: tt.width, Color: tt.color, Unicode: true}); err != nil {
				t.Fatal(err)
			}
			if got := "\n" + out.String(); got != tt.want {
				t.Errorf("got:%s\nwant:%s", got, tt.want)
			}
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(line) - 1; n > tt.width && !tt.color {
					t.Errorf("%d columns: %q", n, line)
				}
			}
		})
	}
}

func TestCompareInASCII(t *testing.T) {
	steps, records, truth := sample()
	var out strings.Builder
	if err := Compare(&out, steps, records, truth, report.Style{Width: 80}); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(out.String(), func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
		t.Errorf("not ASCII: %s", out.String()[i:])
	}
}

// The server had the first copy of a request whose ACK came late.
func TestCompareOfRequestSentAgain(t *testing.T) {
	const sentAgain = 5 * msec
	steps := []Step{{Name: "POST", Expect: []Expect{{ID: "demo-01", Phase: exchange.Wait}}}}
	truth := func(string) (Truth, bool) {
		return Truth{RequestArrived: msec, FirstWritten: msec + 5_300_000}, true
	}
	for _, tt := range []struct {
		name   string
		resent bool
		want   string
	}{
		{"once", false, "  wait   0.000     0.350  [0.000-0.400]  5.300      -4.950  no\n"},
		{"again", true, "  wait*  0.000     0.350  [0.000-5.400]  5.300      -4.950  yes\n\n* The request was sent again"},
	} {
		r := record("/v1/messages/demo-01", map[exchange.Phase]exchange.Bounded{
			// A closed window's time is known, and no part of the wait.
			exchange.Send: {Value: 2 * msec, Low: 2 * msec, High: 2*msec + sentAgain},
			exchange.Wait: {Value: 350_000, Low: 0, High: 400_000},
		})
		r.Evidence.RequestResent = tt.resent
		var out strings.Builder
		if err := Compare(&out, steps, []*exchange.Record{r}, truth, report.Style{Width: 70}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s:\n%s\nwant in it:\n%s", tt.name, out.String(), tt.want)
		}
	}
}

func TestCompareOfWriterThatFails(t *testing.T) {
	steps, records, truth := sample()
	full := errors.New("disk full")
	if err := Compare(writer(func([]byte) (int, error) { return 0, full }), steps, records, truth, report.Style{Width: 80}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestTruthOf(t *testing.T) {
	all := Truth{Sequence: 1, HelloArrived: 10, FlightWritten: 13, RequestArrived: 20, FirstWritten: 25, LastWritten: 32}
	for _, tt := range []struct {
		name  string
		truth Truth
		phase exchange.Phase
		want  time.Duration
		ok    bool
	}{
		{"handshake", all, exchange.TLS, 3, true},
		{"wait", all, exchange.Wait, 5, true},
		{"receive", all, exchange.Receive, 7, true},
		{"not a server's phase", all, exchange.Connect, 0, false},
		{"handshake of an earlier request", Truth{Sequence: 2, HelloArrived: 10, FlightWritten: 13}, exchange.TLS, 0, false},
		{"no TLS", Truth{Sequence: 1}, exchange.TLS, 0, false},
		{"no answer", Truth{Sequence: 1, RequestArrived: 20}, exchange.Wait, 0, false},
		{"request not read", Truth{Sequence: 1, FirstWritten: 25}, exchange.Wait, 0, false},
	} {
		if got, ok := tt.truth.Of(tt.phase); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

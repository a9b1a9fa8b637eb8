package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
	"github.com/peel-dev/peel/cmd/accuracy/truth"
)

// row is an exchange, true and as peel has it. Times are ns.
type row struct {
	Case  string         `json:"case"`
	Sleep int64          `json:"sleep"`
	Truth truth.Exchange `json:"truth"`

	Local     string             `json:"local"`
	Sequence  int                `json:"sequence"`
	Wait      int64              `json:"wait"`
	Server    bounded            `json:"server"`  // of wait
	Network   bounded            `json:"network"` // of wait
	Handshake *bounded           `json:"handshake,omitempty"`
	Total     map[string]bounded `json:"components"`
	Complete  bool               `json:"complete"`
	RTTSource string             `json:"rtt_source"`
	Notes     []string           `json:"notes,omitempty"`
	Phases    map[string]int64   `json:"phases"`
}

// result is a case that was run.
type result struct {
	testCase testCase
	n        int // exchanges with a known truth
	records  int // of peel, with or without
	rows     []row
	line     delayline.Stats
	problems []string
}

// match joins what is true with what peel says, by the exchanges' names.
func match(c testCase, truths []truth.Exchange, records []*record) result {
	res := result{testCase: c, n: len(truths), records: len(records)}
	sleeps := c.serverTimes()
	byID := make(map[string]*record, len(records))
	reasons := make(map[string]int)
	for _, r := range records {
		if r.Role != "client" {
			reasons["records are of role "+r.Role]++
			continue
		}
		if byID[r.id()] != nil {
			reasons["exchanges have more than one record"]++
			continue
		}
		byID[r.id()] = r
	}
	for _, t := range truths {
		r := byID[t.ID]
		if r == nil {
			reasons["exchanges have no record"]++
			continue
		}
		wait, ok := r.Phases["wait"]
		if !ok {
			reasons[fmt.Sprintf("records have no wait: %q", r.Quality.Notes)]++
			continue
		}
		if !r.Quality.Complete {
			reasons["records are not complete"]++
		}
		parts := r.Breakdown["wait"] // a part that is nought is left out
		x := row{
			Case: c.name, Sleep: int64(sleeps[t.ID]), Truth: t,
			Local: r.Connection.Local, Sequence: r.Connection.Sequence,
			Wait: wait, Server: parts["server"], Network: parts["network"],
			Total: r.Components, Complete: r.Quality.Complete,
			RTTSource: cmp.Or(r.Quality.RTTSource, "?"), Notes: r.Quality.Notes, Phases: r.Phases,
		}
		if r.Phases["tls"] > 0 && t.HasHandshake {
			b := r.Breakdown["tls"]["server"]
			x.Handshake = &b
		}
		res.rows = append(res.rows, x)
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		res.problems = append(res.problems, fmt.Sprintf("%d %s", reasons[why], why))
	}
	return res
}

// figures compare one part with its truth, over many exchanges.
type figures struct {
	errors []int64 // absolute, ns
	widths []int64 // of the bounds
	held   int
}

func (f *figures) add(b bounded, v int64) {
	e := b.Value - v
	f.errors = append(f.errors, max(e, -e))
	f.widths = append(f.widths, b.High-b.Low)
	if b.holds(v) {
		f.held++
	}
}

func (f *figures) merge(o figures) {
	f.errors = append(f.errors, o.errors...)
	f.widths = append(f.widths, o.widths...)
	f.held += o.held
}

// quantile returns the least of the values that at least the share q of them
// do not exceed; 0 when there are none.
func quantile(values []int64, q float64) int64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// all are a case's figures.
type all struct {
	server, network, handshake figures
	streamed                   figures // the server's part of a streamed answer
}

func (r *result) figures() all {
	var a all
	for _, x := range r.rows {
		a.server.add(x.Server, x.Truth.Server)
		a.network.add(x.Network, x.Truth.Network)
		if x.Handshake != nil {
			a.handshake.add(*x.Handshake, x.Truth.Handshake)
		}
		if r.testCase.work.Chunks > 0 {
			a.streamed.add(x.Total["server"], x.Truth.Server+x.Truth.Pauses)
		}
	}
	return a
}

func (a *all) merge(o all) {
	a.server.merge(o.server)
	a.network.merge(o.network)
	a.handshake.merge(o.handshake)
	a.streamed.merge(o.streamed)
}

// micros writes ns as µs.
func micros(ns int64) string { return fmt.Sprintf("%.0f", float64(ns)/1e3) }

func (f *figures) error() string {
	if len(f.errors) == 0 {
		return "–"
	}
	return micros(quantile(f.errors, 0.5)) + " / " + micros(quantile(f.errors, 0.99))
}

func (f *figures) width() string {
	if len(f.errors) == 0 {
		return "–"
	}
	return micros(quantile(f.widths, 0.5))
}

// share never rounds up to 100.
func (f *figures) share() string {
	n := len(f.errors)
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", math.Floor(1000*float64(f.held)/float64(n))/10)
}

// sources is how many exchanges rest on which source, most first.
func (r *result) sources() string {
	count := make(map[string]int)
	for _, x := range r.rows {
		count[x.RTTSource]++
	}
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, count[name])
	}
	return strings.Join(names, ", ")
}

// calm is how much more than the set delays the network may take on a path
// without jitter and loss before the machine, not the path, is at work.
const calm = 500_000

// undisturbed are the figures of the exchanges that only the path delayed.
func undisturbed(results []result) all {
	var sum all
	for _, r := range results {
		up, down := r.testCase.path.Up, r.testCase.path.Down
		if up.Jitter+down.Jitter > 0 || up.Loss+down.Loss > 0 {
			continue
		}
		left := r
		left.rows = slices.DeleteFunc(slices.Clone(r.rows), func(x row) bool {
			return x.Truth.Network-int64(up.Delay+down.Delay) > calm
		})
		sum.merge(left.figures())
	}
	return sum
}

// overDelay is what the network took beyond the path's two delays.
func (r *result) overDelay() string {
	set := int64(r.testCase.path.Up.Delay + r.testCase.path.Down.Delay)
	over := make([]int64, len(r.rows))
	for i, x := range r.rows {
		over[i] = x.Truth.Network - set
	}
	return micros(quantile(over, 0.5)) + " / " + micros(quantile(over, 0.99))
}

// table writes the results as Markdown.
func table(w io.Writer, results []result) {
	fmt.Fprint(w, "Errors, widths and lateness in µs: median / P99. Errors are absolute. Holds: share of exchanges whose bounds\n"+
		"hold the truth, %: server and network part of the wait, server part of the handshake. Over delay: what the network\n"+
		"took beyond the delays that were set, jitter and loss included. Line: by how much it missed its own times.\n\n")
	fmt.Fprintln(w, "| case | n | matched | server error | network error | handshake error | n | server width | server holds | network holds | handshake holds | round trip from | over delay | line |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|")
	var sum all
	n, matched, streamed := 0, 0, false
	for _, r := range results {
		a := r.figures()
		line(w, r.testCase.name, r.n, len(r.rows), a, r.sources(), r.overDelay(),
			micros(int64(r.line.LateP50))+" / "+micros(int64(r.line.LateP99)))
		sum.merge(a)
		n += r.n
		matched += len(r.rows)
		streamed = streamed || len(a.streamed.errors) > 0
	}
	line(w, "all", n, matched, sum, "", "", "")
	if u := undisturbed(results); len(u.server.errors) > 0 {
		fmt.Fprintf(w, "\nA machine that is busy or stalls adds to the network. On the paths without jitter and loss, %d exchanges had\n"+
			"no more than %s µs added: server error %s, width %s; the bounds of server and network hold in %s and %s %%.\n",
			len(u.server.errors), micros(calm), u.server.error(), u.server.width(), u.server.share(), u.network.share())
	}
	if streamed {
		fmt.Fprintln(w, "\nStreamed answers: all of the server's time, pauses between its events included.")
		fmt.Fprintln(w, "\n| case | n | server error | width | holds |")
		fmt.Fprintln(w, "|---|---:|---:|---:|---:|")
		for _, r := range results {
			if s := r.figures().streamed; len(s.errors) > 0 {
				fmt.Fprintf(w, "| %s | %d | %s | %s | %s |\n", r.testCase.name, len(s.errors), s.error(), s.width(), s.share())
			}
		}
	}
	var problems []string
	for _, r := range results {
		for _, p := range r.problems {
			problems = append(problems, r.testCase.name+": "+p)
		}
	}
	if len(problems) > 0 {
		fmt.Fprintf(w, "\nNot as it should be:\n\n- %s\n", strings.Join(problems, "\n- "))
	}
}

func line(w io.Writer, name string, n, matched int, a all, sources, over, late string) {
	fmt.Fprintf(w, "| %s | %d | %d | %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", name, n, matched,
		a.server.error(), a.network.error(), a.handshake.error(), len(a.handshake.errors),
		a.server.width(), a.server.share(), a.network.share(), a.handshake.share(), sources, over, late)
}

package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// header says how and where the tables came about.
func header(w io.Writer, args []string) {
	var uts unix.Utsname
	kernel := "unknown"
	if unix.Uname(&uts) == nil {
		kernel = unix.ByteSliceToString(uts.Release[:])
	}
	fmt.Fprintf(w, "`%s`, %d CPUs, Linux %s; ratios with the observer to without: median [lower quartile … upper]; the CPU of `peel run` includes its start\n",
		strings.TrimSpace("go run ./cmd/costbench "+strings.Join(args, " ")), runtime.NumCPU(), kernel)
}

// table prints a Markdown table of all observers.
func table(w io.Writer, streams, n int, results []result) {
	var base []load
	for _, r := range results {
		base = append(base, r.base...)
	}
	middle := func(of func(load) float64) float64 {
		var v []float64
		for _, l := range base {
			v = append(v, of(l))
		}
		slices.Sort(v)
		return quantile(v, 0.5)
	}
	fmt.Fprintf(w, "\nh2load -c %d -m %d -n %d; without any observer: %.0f requests/s, mean %.0f µs, P50 %.0f µs, P99 %.0f µs, %.1f µs of CPU a request\n\n",
		connections, streams, n,
		middle(func(l load) float64 { return l.rate }), middle(func(l load) float64 { return l.mean }),
		middle(func(l load) float64 { return l.p50 }), middle(func(l load) float64 { return l.p99 }),
		middle(func(l load) float64 { return l.cpu })/1e3)
	fmt.Fprintln(w, "| observer | requests/s | mean latency | P50 | P99 | CPU a request, client + server | observer's CPU a request, µs | exchanges it saw | it missed, by its own words |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, r := range results {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %.2f | %s | %s |\n", r.name,
			quartiles(r.rate), quartiles(r.mean), quartiles(r.p50), quartiles(r.p99), quartiles(r.cpu),
			quantile(sorted(r.observer), 0.5)/1e3, share(r.saw), strings.ReplaceAll(r.missed, "|", "/"))
	}
}

// share is the median, in percent; an observer that saw none knows none.
func share(v []float64) string {
	if m := quantile(sorted(v), 0.5); m > 0 {
		return fmt.Sprintf("%.2f %%", 100*m)
	}
	return "–"
}

func quartiles(v []float64) string {
	v = sorted(v)
	return fmt.Sprintf("%.3f [%.3f … %.3f]", quantile(v, 0.5), quantile(v, 0.25), quantile(v, 0.75))
}

func sorted(v []float64) []float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v
}

// quantile returns the q-th of a sorted, non-empty sample, interpolated.
func quantile(v []float64, q float64) float64 {
	at := q * float64(len(v)-1)
	i := int(at)
	if i == len(v)-1 {
		return v[i]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

func mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/exporter/jsonl"
	"github.com/peel-dev/peel/exporter/report"
)

// silence is how long watch waits before it says that nothing came.
const silence = 3 * time.Second

func watchCommand() *cobra.Command {
	var choose chooseFlags
	var output outputFlags
	var duration time.Duration
	c := &cobra.Command{
		Use:   "watch [flags]",
		Short: "Observe the connections that running programs open",
		Long: "watch observes every connection that is opened from now on, by programs that run already\n" +
			"or start later. Exchanges come as lines on a terminal and as JSON in a pipe.\n\n" +
			"So that others do not pay for it, TLS libraries are probed late where the flags allow: with\n" +
			"--port or --cidr when the first such connection is opened, with --pid in that process alone\n" +
			"until it has a child. What is sent in the first 20 ms after that can be missed.",
		Example: "  peel watch --comm python3 --port 443\n  peel watch --host 'api.*' -o json | jq .components_ns",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return watch(c, &choose, &output, duration)
		},
	}
	choose.register(c)
	output.register(c)
	c.Flags().DurationVar(&duration, "duration", 0, "end after this time")
	return c
}

func watch(c *cobra.Command, choose *chooseFlags, output *outputFlags, duration time.Duration) error {
	choice, err := choose.choice()
	if err != nil {
		return err
	}
	if err := output.check(); err != nil {
		return err
	}
	if duration < 0 {
		return fmt.Errorf("--duration %s: must not be negative", duration)
	}
	stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
	if output.output == "" {
		output.output = "json"
		if file, ok := stdout.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			output.output = "text"
		}
	}
	records, err := output.open()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE) // the reader of the output has gone: end with the summary
	defer stop()
	if duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, duration)
		defer cancel()
	}

	show := newShow(stdout, output.output)
	summary := report.NewSummary(0)
	var seen atomic.Int64
	observer, err := collector.Open(collector.Config{
		Logger:  choose.logger(stderr),
		Choice:  choice,
		Headers: choose.headers,
		Node:    hostname(),
		Emit: func(r *exchange.Record) {
			records.add(r)
			summary.Add(r)
			seen.Add(1)
			if err := show.record(r); err != nil {
				stop() // the reader of the pipe has gone
			}
		},
		Idle: func(report func() collector.Report, elapsed time.Duration) {
			show.flush()
			records.flush()
			if seen.Load() == 0 {
				show.nothing(stderr, report, elapsed)
			}
		},
	})
	if err != nil {
		return failure(errors.Join(err, records.close()))
	}
	began := time.Now()
	fmt.Fprintln(stderr, "peel: watching; end with Ctrl-C")
	err = observer.Run(ctx)
	show.flush()
	summary.Write(stderr, style(stderr), extra(observer.Report(), time.Since(began)))
	err = errors.Join(err, show.err, observer.Close(), records.close())
	return failure(err)
}

// show prints exchanges as they come.
type show struct {
	w       io.Writer
	kind    string
	st      report.Style
	lines   *jsonl.Writer
	err     error
	headed  bool
	noticed bool
}

func newShow(w io.Writer, kind string) *show {
	return &show{w: w, kind: kind, st: style(w), lines: jsonl.NewWriter(w)}
}

func (s *show) record(r *exchange.Record) error {
	if s.err != nil {
		return s.err
	}
	switch s.kind {
	case "json":
		s.err = s.lines.Write(r)
	case "wide":
		if !s.headed {
			s.headed = true
			report.WideHeader(s.w, s.st)
		}
		report.Wide(s.w, r, s.st)
	default:
		report.Line(s.w, r, s.st)
	}
	return s.err
}

func (s *show) flush() {
	if s.kind == "json" && s.err == nil {
		s.err = s.lines.Flush()
	}
	if errors.Is(s.err, syscall.EPIPE) {
		s.err = nil // the reader had enough
	}
}

// nothing says once why there is nothing to show.
func (s *show) nothing(w io.Writer, report func() collector.Report, elapsed time.Duration) {
	if s.noticed || elapsed < silence {
		return
	}
	s.noticed = true
	r := report()
	fmt.Fprintf(w, "peel: no exchange yet after %s: %d connections watched (%d open now), %d bytes out, %d bytes in\n",
		elapsed.Round(time.Second), r.Connections, r.OpenConns, r.BytesOut, r.BytesIn)
	for _, why := range whyNothing(r) {
		fmt.Fprintln(w, "peel:  ", why)
	}
}

// whyNothing gives the reasons that the counts speak of.
func whyNothing(r collector.Report) []string {
	var why []string
	if r.Connections == 0 {
		why = append(why, "no connection that the flags choose was opened since peel began; those that were open before are not observed")
	}
	for reason, n := range r.Unknown {
		why = append(why, fmt.Sprintf("%d connections ended without one: %s", n, reason))
	}
	if r.Unmatched > 0 {
		why = append(why, fmt.Sprintf("%d connections went to another --host", r.Unmatched))
	}
	if r.OpenExchanges > 0 {
		why = append(why, fmt.Sprintf("%d requests wait for the end of their answer", r.OpenExchanges))
	}
	if n := r.Reasons[probe.CallElsewhere]; n > 0 && r.Connections > 0 {
		why = append(why, fmt.Sprintf("%d TLS library calls could not be tied to a watched connection", n))
	}
	if r.OpenConns > 0 && r.OpenExchanges == 0 {
		why = append(why, fmt.Sprintf("%d open connections have not carried a request that can be read: their TLS library is none of the %d that are probed, or they are idle", r.OpenConns, r.Libraries))
	}
	return why
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/peel-dev/peel/cmd/peel/internal/demo"
	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/exporter/report"
)

// demoClientName is the hidden command that serves as client where the host
// has no other.
const demoClientName = "demo-client"

func demoCommand() *cobra.Command {
	var choose chooseFlags
	return &cobra.Command{
		Use:   "demo",
		Short: "Observe a local API stand-in with known delays: measured beside true",
		Long: "demo starts a stand-in of an LLM API on loopback, calls it with the host's own curl or python3,\n" +
			"observes the calls, and prints what was measured beside what the server knows to be true.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runDemo(c, &choose)
		},
	}
}

func demoClientCommand() *cobra.Command {
	return &cobra.Command{
		Use:                demoClientName,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			return failure(demo.Client(c.Context(), args))
		},
	}
}

func runDemo(c *cobra.Command, choose *chooseFlags) error {
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return failure(fmt.Errorf("find own program: %w", err))
	}
	stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
	log := choose.logger(stderr)
	d, err := demo.Start(ctx, demo.Config{Logger: log, Client: []string{self, demoClientName}})
	if err != nil {
		return failure(err)
	}
	var mu sync.Mutex
	var records []*exchange.Record
	observer, err := collector.Open(collector.Config{
		Logger:  log,
		Node:    hostname(),
		Command: true,
		Emit: func(r *exchange.Record) {
			mu.Lock()
			defer mu.Unlock()
			records = append(records, r.Clone())
		},
	})
	if err != nil {
		return failure(errors.Join(err, d.Close()))
	}
	observing, done := context.WithCancel(ctx)
	defer done()
	ended := make(chan error, 1)
	go func() { ended <- observer.Run(observing) }()
	err = observer.WatchCommand(self, os.Environ(), os.Getpid())

	st := style(stdout)
	err = errors.Join(err, d.Introduce(stdout, st.Width))
	for _, step := range d.Steps() {
		if err != nil || ctx.Err() != nil {
			break
		}
		command := exec.CommandContext(ctx, step.Argv[0], step.Argv[1:]...)
		if out, cerr := command.CombinedOutput(); cerr != nil {
			err = fmt.Errorf("%s: %s: %w: %s", step.Name, step.Argv[0], cerr, out)
		}
	}
	time.Sleep(100 * time.Millisecond) // the last connection's end
	done()
	err = errors.Join(err, <-ended)
	if err == nil && len(records) > 0 {
		fmt.Fprint(stdout, "\nThe slowest one, by phase:\n\n")
		report.Waterfall(stdout, slowestOf(records), st)
		fmt.Fprintln(stdout)
		err = demo.Compare(stdout, d.Steps(), records, d.Truth, st)
	}
	if err == nil && len(records) == 0 {
		err = errors.New("no exchange was seen; see peel doctor")
	}
	return failure(errors.Join(err, observer.Close(), d.Close()))
}

// slowestOf picks the exchange that shows most.
func slowestOf(records []*exchange.Record) *exchange.Record {
	slow := records[0]
	for _, r := range records {
		if r.Total > slow.Total {
			slow = r
		}
	}
	return slow
}

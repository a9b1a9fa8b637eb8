package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/exporter/jsonl"
	"github.com/peel-dev/peel/exporter/report"
)

// slowest is how many exchanges a person is shown one by one.
const slowest = 10

func runCommand() *cobra.Command {
	var choose chooseFlags
	var output outputFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Observe a command and all its children",
		Long: "run observes every exchange of a command and its children, from the first one on. The\n" +
			"command's output and exit status are its own; what peel has to say goes to standard error.",
		Example: "  peel run -- curl -s https://example.com\n  peel run --write calls.jsonl -- python3 client.py",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return run(c, args, &choose, &output)
		},
	}
	c.Flags().SetInterspersed(false)
	choose.register(c)
	output.register(c)
	return c
}

func run(c *cobra.Command, args []string, choose *chooseFlags, output *outputFlags) error {
	choice, err := choose.choice()
	if err != nil {
		return err
	}
	if err := output.check(); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		code := exitNotFound
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EISDIR) {
			code = exitNotExec
		}
		return &exitError{code: code, err: fmt.Errorf("run %s: %w", args[0], errors.Unwrap(err))}
	}
	records, err := output.open()
	if err != nil {
		return err
	}

	stderr := c.ErrOrStderr()
	summary := report.NewSummary(slowest)
	var lines *jsonl.Writer
	if output.output == "json" {
		lines = jsonl.NewWriter(stderr)
	}
	st := style(stderr)
	observer, err := collector.Open(collector.Config{
		Logger:  choose.logger(stderr),
		Choice:  choice,
		Headers: choose.headers,
		Node:    hostname(),
		Command: true,
		Emit: func(r *exchange.Record) {
			records.add(r)
			switch output.output {
			case "json":
				err = errors.Join(err, lines.Write(r))
			case "wide":
				if summary.Len() == 0 {
					report.WideHeader(stderr, st)
				}
				report.Wide(stderr, r, st)
			}
			summary.Add(r)
		},
	})
	if err != nil {
		return failure(errors.Join(err, records.close()))
	}
	status, began, rerr := observeCommand(c.Context(), observer, path, args)
	if rerr == nil {
		switch output.output {
		case "json":
			err = errors.Join(err, lines.Flush())
		default:
			summary.Write(stderr, st, extra(observer.Report(), time.Since(began)))
		}
	}
	// A command that was not started, or a record that is missing, must not
	// look like success.
	err = errors.Join(err, rerr, observer.Close(), records.close())
	if status == 0 && err != nil {
		status = exitFailure
	}
	if status != 0 || err != nil {
		return &exitError{code: status, err: err}
	}
	return nil
}

// observeCommand starts the command, observes until it ends, and returns its
// exit status as a shell gives it.
func observeCommand(ctx context.Context, o *collector.Observer, path string, args []string) (int, time.Time, error) {
	began := time.Now()
	if err := o.WatchCommand(args[0], os.Environ(), os.Getpid()); err != nil {
		return exitFailure, began, err
	}
	// The command gets the terminal's signals itself; peel stays until it has
	// ended, then tells what it saw.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	observing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- o.Run(observing) }()

	command := exec.Command(path)
	command.Args = args
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		stop()
		code := exitNotExec
		if errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		return code, began, errors.Join(fmt.Errorf("run %s: %w", args[0], err), <-ended)
	}
	exited := make(chan error, 1)
	go func() { exited <- command.Wait() }()
	var observed error
	for waiting := true; waiting; {
		select {
		case sig := <-signals:
			if !fromTerminal(sig) {
				if err := command.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
					observed = errors.Join(observed, fmt.Errorf("pass on %s: %w", sig, err))
				}
			}
		case err := <-exited:
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				observed = errors.Join(observed, fmt.Errorf("wait for %s: %w", args[0], err))
			}
			waiting = false
		}
	}
	stop()
	observed = errors.Join(observed, <-ended)
	state := command.ProcessState
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), began, observed
	}
	return state.ExitCode(), began, observed
}

// fromTerminal says whether the command got the signal from the terminal too,
// as all of its foreground process group do.
func fromTerminal(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

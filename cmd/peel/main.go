// Command peel shows where the time of an API call goes, and whether a
// published claim about it is true.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/probe"
)

// Exit codes.
const (
	exitFailure  = 1
	exitUsage    = 2
	exitUnable   = 3 // the kernel or the privileges cannot serve
	exitNotFound = 127
	exitNotExec  = 126
)

// exitError ends the program with a code; err may be nil when all is said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() { os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "peel",
		Short:         "Show where the time of an API call goes",
		Long:          "peel times the requests of the programs on this host in the kernel and splits each\ninto network, handshake, server and client time, with bounds.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), watchCommand(), doctorCommand(), demoCommand(), demoClientCommand())
	// What cobra finds wrong is wrong usage; what our functions return says
	// for itself what it is.
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintln(stderr, "peel:", exit.err)
		}
		return exit.code
	case errors.Is(err, probe.ErrUnable):
		fmt.Fprintln(stderr, "peel:", err)
		fmt.Fprintln(stderr, "peel: see what this host offers: peel doctor")
		return exitUnable
	default:
		fmt.Fprintln(stderr, "peel:", err)
		fmt.Fprintln(stderr, "peel: see peel --help")
		return exitUsage
	}
}

// failure is an error that is not wrong usage.
func failure(err error) error {
	if err == nil || errors.Is(err, probe.ErrUnable) || errors.Is(err, collector.ErrChoice) {
		return err
	}
	return &exitError{code: exitFailure, err: err}
}

// Costbench measures what an observer costs the observed: h2load against
// nghttpd over TLS on loopback, with the observer and without, interleaved.
// Both saturate their processors, the worst case for any relative figure.
// It prints a Markdown table of ratios: median and quartiles over the pairs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == measureCommand {
		os.Exit(measure(os.Args[2], os.Args[3:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "costbench:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "costbench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

type options struct {
	pairs    int
	requests int // of a run with one stream; four times as many with more
	streams  []int
	only     []string
	peel     string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var streams, only string
	fs := flag.NewFlagSet("costbench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.pairs, "pairs", 5, "pairs of runs without and with each observer")
	fs.IntVar(&o.requests, "requests", 60000, "requests of a run with one stream; four times as many with more")
	fs.StringVar(&streams, "streams", "1,10", "streams at once on each of the 8 connections, separated by commas")
	fs.StringVar(&only, "only", "", "observers to measure, separated by commas: "+strings.Join(observerNames(), " "))
	fs.StringVar(&o.peel, "peel", "", "the peel to measure (default: build ./cmd/peel)")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	for s := range strings.SplitSeq(streams, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return o, fmt.Errorf("%w: --streams %s", errUsage, streams)
		}
		o.streams = append(o.streams, n)
	}
	o.only = observerNames()
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(observerNames(), name) {
			return o, fmt.Errorf("%w: no observer %q, there are %s", errUsage, name, strings.Join(observerNames(), " "))
		}
	}
	if o.pairs < 1 || o.requests < 1 || fs.NArg() > 0 {
		return o, fmt.Errorf("%w: --pairs and --requests are at least 1, and there are no arguments", errUsage)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if err := checkTools(o.only); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(memoryDir(), "costbench-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	if o.peel == "" && slices.ContainsFunc(o.only, func(name string) bool { return strings.HasPrefix(name, "peel") }) {
		o.peel = dir + "/peel"
		build := exec.CommandContext(ctx, "go", "build", "-o", o.peel, "github.com/peel-dev/peel/cmd/peel")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building peel: %w\n%s", err, out)
		}
	}
	b, err := newBench(ctx, dir)
	if err != nil {
		return err
	}
	defer b.close()

	header(stdout, args)
	for _, streams := range o.streams {
		n := o.requests
		if streams > 1 {
			n *= 4
		}
		var results []result
		for _, obs := range observers(o.peel, b.port, b.libssl) {
			if !slices.Contains(o.only, obs.name) {
				continue
			}
			r, err := b.compare(ctx, obs, o.pairs, n, streams, stderr)
			if err != nil {
				return fmt.Errorf("measuring %s: %w", obs.name, err)
			}
			results = append(results, r)
		}
		table(stdout, streams, n, results)
	}
	return nil
}

// checkTools says how to get what is missing.
func checkTools(only []string) error {
	packages := map[string]string{"h2load": "nghttp2-client", "nghttpd": "nghttp2-server"}
	for _, name := range []string{"tcpdump", "bpftrace"} {
		if slices.Contains(only, name) {
			packages[name] = name
		}
	}
	var missing []string
	for tool, pkg := range packages {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("tools are missing: apt-get install -y %s", strings.Join(missing, " "))
	}
	if os.Geteuid() != 0 {
		return errors.New("observers need root: run it as root")
	}
	return nil
}

// memoryDir is where h2load's log costs no disk writes.
func memoryDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// Accuracy measures the error of peel's split against known truth. Real
// clients talk to a server of its own over a line with a set delay, jitter and
// loss, in two network namespaces; packet captures at both ends and the
// server's knowledge of its own bytes give the true times of every exchange.
// It prints a Markdown table: for each case the error of peel's parts, the
// width of their bounds, and how often the bounds hold the truth.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
	"github.com/peel-dev/peel/cmd/accuracy/truth"
)

// lineCommand makes this program the delay line's process.
const lineCommand = "delay-line"

func main() {
	if len(os.Args) == 2 && os.Args[1] == lineCommand {
		// Ctrl-C is for the parent, which then ends this one's input.
		signal.Ignore(os.Interrupt, syscall.SIGTERM)
		if err := delayline.Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "accuracy: delay line:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

type options struct {
	peel    string
	json    string
	pattern string
	scale   float64
	list    bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.peel, "peel", "", "the peel to measure (default: build ./cmd/peel); \"none\": only the truth")
	fs.StringVar(&o.json, "json", "", "write every exchange to this `file`, one JSON object a line")
	fs.StringVar(&o.pattern, "cases", "*", "only cases whose name matches this `glob`")
	fs.Float64Var(&o.scale, "n", 1, "times as many exchanges in each case")
	fs.BoolVar(&o.list, "list", false, "show the cases")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 || o.scale <= 0 || o.scale > 100 {
		return o, fmt.Errorf("%w: -n is more than 0 and at most 100, and there are no arguments", errUsage)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	list, err := choose(cases(o.scale), o.pattern)
	if err != nil {
		return err
	}
	if o.list {
		for _, c := range list {
			fmt.Fprintf(stdout, "%-18s %5d exchanges\n", c.name, c.n)
		}
		return nil
	}
	if err := checkTools(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "accuracy-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	if o.peel == "" {
		o.peel = filepath.Join(dir, "peel")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.peel, "github.com/peel-dev/peel/cmd/peel")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building peel: %w\n%s", err, out)
		}
	}
	rows := io.Discard
	if o.json != "" {
		f, err := os.Create(o.json)
		if err != nil {
			return fmt.Errorf("writing rows: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		rows = f
	}
	b, err := newBench(ctx, dir, o.peel)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	var results []result
	var failed []string
	encoder := json.NewEncoder(rows)
	for i, c := range list {
		began := time.Now()
		res, err := b.run(ctx, c)
		if err != nil && ctx.Err() == nil {
			res.problems = append(res.problems, err.Error())
		}
		if ctx.Err() != nil {
			failed = append(failed, "it was interrupted")
			break
		}
		for _, x := range res.rows {
			if err := encoder.Encode(x); err != nil {
				return fmt.Errorf("writing rows: %w", err)
			}
		}
		if err != nil || res.n == 0 || len(res.rows) == 0 {
			failed = append(failed, c.name)
		}
		results = append(results, res)
		fmt.Fprintf(stderr, "%2d of %d: %s: %d exchanges, %d matched, %.0f s\n",
			i+1, len(list), c.name, res.n, len(res.rows), time.Since(began).Seconds())
	}
	if len(results) > 0 {
		table(stdout, results)
	}
	if len(failed) > 0 {
		return fmt.Errorf("not measured: %s", strings.Join(failed, ", "))
	}
	return nil
}

// checkTools says how to get what is missing.
func checkTools() error {
	var missing []string
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("tools are missing: apt-get install -y %s", strings.Join(slices.Compact(missing), " "))
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and peel need root: run it as root")
	}
	return nil
}

// bench is the line, the server at its far end and the captures at both.
type bench struct {
	dir, peel string
	line      *delayline.Line
	truth     truth.Observer
}

func newBench(ctx context.Context, dir, peel string) (*bench, error) {
	b := &bench{dir: dir, peel: peel}
	err := b.start(ctx)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) start(ctx context.Context) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	// Not ended by ctx: what is under way ends in order.
	if b.line, err = delayline.Start(context.WithoutCancel(ctx), []string{self, lineCommand}); err != nil {
		return err
	}
	if err := b.line.Server.Do(func() (err error) {
		if b.truth.Server, err = truth.StartServer(); err != nil {
			return err
		}
		b.truth.Remote, err = truth.StartCapture(delayline.Device, truth.Serving)
		return err
	}); err != nil {
		return err
	}
	return b.line.Client.Do(func() (err error) {
		b.truth.Client, err = truth.StartCapture(delayline.Device, truth.Serving)
		return err
	})
}

func (b *bench) close() error {
	var errs []error
	for _, c := range []*truth.Capture{b.truth.Client, b.truth.Remote} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if b.truth.Server != nil {
		errs = append(errs, b.truth.Server.Close())
	}
	if b.line != nil {
		errs = append(errs, b.line.Close())
	}
	return errors.Join(errs...)
}

// casePatience bounds a case.
const casePatience = 2 * time.Minute

func (b *bench) run(ctx context.Context, c testCase) (result, error) {
	failed := result{testCase: c}
	ctx, cancel := context.WithTimeout(ctx, casePatience)
	defer cancel()
	if _, err := b.line.Set(c.path); err != nil {
		return failed, err
	}
	load := load{dir: b.dir, client: b.line.Client}
	var files []string
	var watch *watcher
	switch {
	case b.peel == "none":
	case c.run:
		for i := range c.parallel {
			files = append(files, filepath.Join(b.dir, fmt.Sprintf("%s-%d.jsonl", c.name, i)))
		}
		load.wrap = func(client int) []string {
			return []string{b.peel, "run", "--write", files[client], "--"}
		}
	default:
		files = append(files, filepath.Join(b.dir, c.name+".jsonl"))
		var err error
		if watch, err = startWatch(ctx, b.peel, files[0], casePatience+startPatience); err != nil {
			return failed, err
		}
	}
	errs := []error{load.run(ctx, c)}
	if watch != nil {
		errs = append(errs, watch.stop())
	}
	truths, problems, err := b.truth.Take(5 * time.Second)
	errs = append(errs, err)
	line, err := b.line.Set(delayline.Path{})
	errs = append(errs, err)
	var records []*record
	for _, f := range files {
		errs = append(errs, readFile(f, func(r *record) { records = append(records, r) }))
	}
	res := match(c, truths, records)
	res.line = line
	res.problems = append(res.problems, problems...)
	if line.Overflowed > 0 {
		res.problems = append(res.problems, fmt.Sprintf("%d packets overflowed the line", line.Overflowed))
	}
	if line.Ordinary {
		res.problems = append(res.problems, "the line was not scheduled in real time")
	}
	if len(truths) < c.n {
		res.problems = append(res.problems, fmt.Sprintf("%d exchanges of %d have no truth", c.n-len(truths), c.n))
	}
	if b.peel == "none" {
		res.rows = alone(c, truths)
		res.problems = problems
	}
	return res, errors.Join(errs...)
}

// alone are the rows when there is no peel: it knows everything.
func alone(c testCase, truths []truth.Exchange) []row {
	known := func(v int64) bounded { return bounded{v, v, v} }
	sleeps := c.serverTimes()
	rows := make([]row, len(truths))
	for i, t := range truths {
		rows[i] = row{
			Case: c.name, Sleep: int64(sleeps[t.ID]), Truth: t, Wait: t.Wait,
			Server: known(t.Server), Network: known(t.Network),
			Total: map[string]bounded{"server": known(t.Server + t.Pauses)}, RTTSource: "truth",
		}
	}
	return rows
}

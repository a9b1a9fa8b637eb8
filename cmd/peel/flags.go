package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/peel-dev/peel/collector"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/exporter/jsonl"
	"github.com/peel-dev/peel/exporter/report"
)

// chooseFlags are the flags that choose what is observed, alike everywhere.
type chooseFlags struct {
	hosts, comms, cgroups, headers []string
	ports                          []uint
	cidrs                          []string
	pids                           []int
	role                           string
	debug                          bool
	flags                          *pflag.FlagSet
}

func (f *chooseFlags) register(c *cobra.Command) {
	f.flags = c.Flags()
	c.Flags().StringSliceVar(&f.hosts, "host", nil, "only servers of this name (`glob` over SNI or authority)")
	c.Flags().UintSliceVar(&f.ports, "port", nil, "only servers at this port")
	c.Flags().StringSliceVar(&f.cidrs, "cidr", nil, "only peers in this network (`addr/bits`)")
	c.Flags().IntSliceVar(&f.pids, "pid", nil, "only this process and its later children")
	c.Flags().StringSliceVar(&f.comms, "comm", nil, "only programs of this `name` and their later children")
	c.Flags().StringSliceVar(&f.cgroups, "cgroup", nil, "only processes of this cgroup-2 `folder` and their later children")
	c.Flags().StringVar(&f.role, "role", "client", "connections this host opens (client), accepts (server), or both")
	c.Flags().StringSliceVar(&f.headers, "header", nil, "keep this header field's value too; a secret stays \"present\"")
	c.Flags().BoolVar(&f.debug, "debug", false, "log what peel does")
}

func (f *chooseFlags) choice() (collector.Choice, error) {
	choice := collector.Choice{
		Hosts: f.hosts, PIDs: f.pids, Comms: f.comms, Cgroups: f.cgroups, Role: f.role,
	}
	// An empty list would choose everything: a script's unset variable must not.
	for _, name := range []string{"host", "port", "cidr", "pid", "comm", "cgroup"} {
		if flag := f.flags.Lookup(name); flag.Changed && flag.Value.String() == "[]" {
			return choice, fmt.Errorf("--%s: must not be empty", name)
		}
	}
	for _, port := range f.ports {
		if port == 0 || port > 65535 {
			return choice, fmt.Errorf("--port %d: must be 1 to 65535", port)
		}
		choice.Ports = append(choice.Ports, uint16(port))
	}
	for _, text := range f.cidrs {
		prefix, err := netip.ParsePrefix(text)
		if addr, aerr := netip.ParseAddr(text); aerr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return choice, fmt.Errorf("--cidr %q: want an address or address/bits, as 10.0.0.0/8", text)
		}
		choice.CIDRs = append(choice.CIDRs, prefix)
	}
	if err := choice.Check(); err != nil {
		return choice, fmt.Errorf("--%w", err)
	}
	return choice, nil
}

func (f *chooseFlags) logger(w io.Writer) *slog.Logger {
	level := slog.LevelWarn
	if f.debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// outputFlags say what becomes of the records.
type outputFlags struct {
	write  string
	force  bool
	output string
}

func (f *outputFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.write, "write", "", "write the exchanges to this `file`, one JSON object a line")
	c.Flags().BoolVar(&f.force, "force", false, "overwrite the file of --write")
	c.Flags().StringVarP(&f.output, "output", "o", "", "text, wide or json")
}

func (f *outputFlags) check() error {
	switch f.output {
	case "", "text", "wide", "json":
		return nil
	}
	return fmt.Errorf("--output %q: must be text, wide or json", f.output)
}

// recorder writes records to a file. After the first error it writes no more
// and counts what is missing.
type recorder struct {
	path    string
	file    *os.File
	out     *jsonl.Writer
	err     error
	missing int
}

func (f *outputFlags) open() (*recorder, error) {
	if f.write == "" {
		return nil, nil
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if f.force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	file, err := os.OpenFile(f.write, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--write %s: the file exists; overwrite it with --force", f.write)
	}
	if err != nil {
		return nil, fmt.Errorf("--write: %w", err)
	}
	return &recorder{path: f.write, file: file, out: jsonl.NewWriter(file)}, nil
}

func (r *recorder) add(record *exchange.Record) {
	if r == nil {
		return
	}
	if r.err == nil {
		r.err = r.out.Write(record)
	}
	if r.err != nil {
		r.missing++
	}
}

// flush makes what was written visible to readers.
func (r *recorder) flush() {
	if r == nil || r.err != nil {
		return
	}
	r.err = r.out.Flush()
}

// close says whether every record reached the file.
func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	r.flush()
	err := errors.Join(r.err, r.file.Close())
	if err == nil {
		return nil
	}
	if r.missing > 0 {
		return fmt.Errorf("write %s: %w; %d exchanges are missing in it", r.path, err, r.missing)
	}
	return fmt.Errorf("write %s: %w; its end is missing", r.path, err)
}

// style fits text to where it goes. NO_COLOR and TERM=dumb are honoured; see
// no-color.org.
func style(w io.Writer) report.Style {
	st := report.Style{Width: 100, Unicode: utf8Locale()}
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
			st.Width = columns
		}
		return st
	}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
		st.Width = width
	}
	st.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return st
}

// utf8Locale goes by the variables in the order that POSIX gives them.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// extra is what the summary says beside the exchanges.
func extra(r collector.Report, elapsed time.Duration) report.Extra {
	e := report.Extra{
		Elapsed:     elapsed,
		Connections: r.Connections,
		Unmatched:   r.Unmatched,
		BytesOut:    r.BytesOut,
		BytesIn:     r.BytesIn,
		Unknown:     make(map[string]int),
		Incomplete:  make(map[string]int),
		Lost:        make(map[string]int),
		Dropped:     make(map[string]int),
	}
	maps.Copy(e.Unknown, r.Unknown)
	maps.Copy(e.Incomplete, r.Incomplete)
	for reason, n := range r.Reasons {
		switch reason {
		case "ring_full":
			e.Lost["ring buffer full"] = int(n)
		case "not_http", probe.CallElsewhere:
		default:
			e.Dropped[strings.ReplaceAll(reason, "_", " ")] = int(n)
		}
	}
	for name, n := range map[string]int{"evicted": r.Evicted, "framing lost": r.Gaps, "answer without its request": r.Unrequested} {
		if n > 0 {
			e.Dropped[name] = n
		}
	}
	if r.Undecoded > 0 {
		e.Lost["not decoded"] = int(r.Undecoded)
	}
	if r.Residuals > 0 {
		e.Hints = append(e.Hints, fmt.Sprintf("%d exchanges do not add up; please report this", r.Residuals))
	}
	for path, why := range r.Refused {
		e.Hints = append(e.Hints, fmt.Sprintf("%s: %s", path, why))
	}
	for _, hook := range r.Hooks {
		if hook.Err() != nil {
			e.Hints = append(e.Hints, fmt.Sprintf("%s is not served here: %s", hook.Purpose, hook.Remedy))
		}
	}
	return e
}

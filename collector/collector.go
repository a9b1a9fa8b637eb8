// Package collector joins the stages: the kernel's events become connections,
// those become exchanges, and each exchange is split before it is handed on.
// It is the only place that starts goroutines.
package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/peel-dev/peel/collector/conn"
	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/latency"
	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/collector/probe/target"
	"github.com/peel-dev/peel/collector/wire/header"
)

// Config says what to observe and who gets it.
type Config struct {
	Logger *slog.Logger
	Choice Choice
	// Headers are names of header fields to keep beside the usual ones.
	Headers []string
	Node    string
	// Command: only the children that WatchChildren names are observed.
	Command bool
	// Emit gets every exchange once it has ended, on Run's goroutine. The
	// record holds until Emit returns; Record.Clone keeps it.
	Emit func(*exchange.Record)
	// Idle, if set, is called on Run's goroutine when the events at hand are
	// handled: many times a second.
	Idle func(report func() Report, elapsed time.Duration)
	// RingSize is the ring buffer's bytes; 0 for the default.
	RingSize uint32
	// Avoid names hooks that are not to be tried, so that the next best serve.
	Avoid []string
}

// Observer is a running observation.
type Observer struct {
	cfg       Config
	log       *slog.Logger
	probe     *probe.Probe
	tracker   *conn.Tracker
	processes *processes
	librarian *librarian
	decoder   event.Decoder
	undecoded uint64
	residuals uint64
	tap       func(raw []byte) // tests: sees each event first
	began     time.Time
	expired   time.Time
}

// Open attaches to the kernel. The error wraps probe.ErrUnable when this host
// cannot be observed, and ErrChoice when cfg.Choice cannot be met.
func Open(cfg Config) (*Observer, error) {
	if err := cfg.Choice.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChoice, err)
	}
	role := cfg.Choice.Role
	reach := cfg.reach()
	p, err := probe.Open(probe.Options{
		Logger:  cfg.Logger,
		Targets: cfg.Command || cfg.Choice.targets(),
		Comms:   cfg.Choice.Comms,
		Ports:   cfg.Choice.Ports,
		CIDRs:   cfg.Choice.CIDRs,
		Client:  role != "server",
		Server:  role == "server" || role == "both",
		// A command's children are named while they live.
		Wake:     reach != reachHost || cfg.Command,
		RingSize: cfg.RingSize,
		Avoid:    cfg.Avoid,
	})
	if err != nil {
		return nil, err
	}
	o := &Observer{
		cfg:       cfg,
		log:       cfg.Logger,
		probe:     p,
		processes: newProcesses(),
		librarian: newLibrarian(cfg.Logger, p, reach),
	}
	pids, err := cfg.Choice.processes(p.Cgroup())
	for _, pid := range pids {
		err = errors.Join(err, p.Watch(pid))
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	o.tracker = conn.New(conn.Config{
		Logger:    cfg.Logger,
		Policy:    header.NewPolicy(cfg.Headers),
		Node:      cfg.Node,
		Epoch:     epoch(),
		Match:     cfg.Choice.match(),
		LocalAddr: localAddr(),
	}, o.emit)
	o.librarian.begin(pids)
	return o, nil
}

// reach is as narrow as the choice allows without missing requests: processes
// that begin later may live too briefly to be probed one by one.
func (cfg *Config) reach() reach {
	switch {
	case cfg.Command, len(cfg.Choice.Comms) > 0, len(cfg.Choice.Cgroups) > 0:
		return reachHost
	case len(cfg.Choice.PIDs) > 0:
		return reachWithin
	case len(cfg.Choice.Ports) > 0 || len(cfg.Choice.CIDRs) > 0:
		return reachLater
	default:
		return reachHost
	}
}

// WatchCommand makes the children of this process observed from their start,
// and probes what the command would load from an unusual place.
func (o *Observer) WatchCommand(argv0 string, env []string, self int) error {
	if exe, err := target.Command(argv0, env); err == nil && exe.SSL {
		o.librarian.attach(exe.Path, 0)
	}
	return o.probe.WatchChildren(self)
}

// Run observes until ctx ends, then emits what is still open.
func (o *Observer) Run(ctx context.Context) error {
	o.began = time.Now()
	done := o.librarian.start(ctx)
	err := o.probe.Read(ctx, o.handle, o.idle)
	o.tracker.Flush(monotonic(), "observation ended")
	<-done
	return err
}

// Close detaches everything.
func (o *Observer) Close() error { return o.probe.Close() }

func (o *Observer) handle(raw []byte) {
	if o.tap != nil {
		o.tap(raw)
	}
	ev, err := o.decoder.Decode(raw)
	if err != nil {
		o.undecoded++
		o.log.Debug("an event cannot be decoded", "err", err)
		return
	}
	switch ev := ev.(type) {
	case *event.Process:
		o.processes.changed(ev)
		switch ev.Change {
		case event.Forked:
			o.librarian.child()
		case event.Executed:
			o.librarian.executed(int(ev.PID))
		}
		return
	case *event.Conn:
		if o.processes.connected(ev) || o.librarian.reach != reachHost {
			o.librarian.connected(int(ev.PID))
		}
	}
	o.tracker.Handle(ev)
}

func (o *Observer) idle() {
	if now := time.Now(); now.Sub(o.expired) >= time.Second {
		o.expired = now
		o.tracker.Expire(monotonic())
	}
	if o.cfg.Idle != nil {
		o.cfg.Idle(o.Report, time.Since(o.began))
	}
}

// emit splits a record and hands it on.
func (o *Observer) emit(r *exchange.Record) {
	if known, ok := o.processes.known[r.Process.PID]; ok {
		r.Process.Exe = known.exe
		if r.Process.Comm == "" {
			r.Process.Comm = known.comm
		}
	}
	latency.Split(r)
	if err := latency.Check(r); err != nil {
		o.residuals++
		o.log.Error("a record does not add up", "connection", r.Connection.ID, "err", err)
	}
	o.cfg.Emit(r)
}

// Report is what was seen so far beside the exchanges, and what was not.
type Report struct {
	conn.Stats
	Hooks     []probe.Hook
	Reasons   map[string]uint64 // the kernel side's early exits and drops
	Libraries int               // probed files
	Refused   map[string]string // files that could not be probed, and why
	Undecoded uint64            // events that could not be decoded
	Residuals uint64            // records that did not add up: bugs
}

// Report may be called from Emit, from Idle, and after Run.
func (o *Observer) Report() Report {
	r := Report{
		Stats:     o.tracker.Stats(),
		Hooks:     o.probe.Hooks(),
		Reasons:   o.probe.Reasons(),
		Refused:   make(map[string]string),
		Undecoded: o.undecoded,
		Residuals: o.residuals,
	}
	r.BytesOut, r.BytesIn = o.probe.Traffic()
	for _, lib := range o.probe.Libraries() {
		if lib.Err != nil {
			r.Refused[lib.Path] = lib.Err.Error()
		} else {
			r.Libraries++
		}
	}
	return r
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot happen: the clock always exists
	}
	return ts.Nano()
}

// epoch anchors CLOCK_MONOTONIC to the wall clock, once: durations never mix
// the two.
func epoch() func(int64) time.Time {
	var wall time.Time
	var mono, closest int64
	for range 5 { // the reading least disturbed
		before := monotonic()
		now := time.Now()
		after := monotonic()
		if width := after - before; closest == 0 || width < closest {
			closest, mono, wall = width, before+width/2, now.Round(0)
		}
	}
	return func(at int64) time.Time { return wall.Add(time.Duration(at - mono)) }
}

// localAddr says whether an address is this host's.
func localAddr() func(netip.Addr) bool {
	own := make(map[netip.Addr]bool)
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				own[prefix.Addr().Unmap()] = true
			}
		}
	}
	return func(a netip.Addr) bool { return a.IsLoopback() || own[a.Unmap()] }
}

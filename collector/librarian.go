package collector

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/collector/probe/target"
)

// When a process that began is looked at: its libraries come one by one.
func looks() []time.Duration {
	return []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}
}

const (
	// maxLooks bounds the processes that wait to be looked at.
	maxLooks = 1024
	// reapEvery is how often the probes of ended processes are taken away.
	reapEvery = 2 * time.Second
)

// reach is where and when libraries are probed. Every process in which one is
// pays for it, observed or not.
type reach uint8

const (
	reachHost   reach = iota // everywhere, at once
	reachLater               // everywhere, from the first wanted connection on
	reachWithin              // only in the processes that are observed, until one has children
)

// librarian finds the TLS libraries and has them probed.
type librarian struct {
	log    *slog.Logger
	probe  *probe.Probe
	reach  reach
	begun  chan int
	born   chan struct{}
	inside map[int]bool // processes probed on their own
	wide   bool         // reachWithin no longer holds
	awake  atomic.Bool  // a wanted connection was opened
}

func newLibrarian(log *slog.Logger, p *probe.Probe, r reach) *librarian {
	if r == reachWithin && !p.Scopes() {
		r = reachHost
	}
	return &librarian{log: log, probe: p, reach: r, begun: make(chan int, maxLooks), born: make(chan struct{}, 1), inside: make(map[int]bool)}
}

// host probes what programs of this host would load, before they do.
func (l *librarian) host() {
	libs, err := target.Libraries("/")
	if err != nil {
		l.log.Debug("the host's libraries cannot be listed", "err", err)
	}
	for _, path := range libs {
		l.attach(path, 0)
	}
}

// begin probes what can be probed before anything happens: what programs would
// load, and what the running processes pids have loaded; nil means all of them.
func (l *librarian) begin(pids []int) {
	switch l.reach {
	case reachLater:
		return
	case reachHost:
		l.host()
	}
	if pids == nil && l.reach == reachHost {
		all, err := runningProcesses()
		if err != nil {
			l.log.Warn("running processes cannot be listed", "err", err)
			return
		}
		pids = all
	}
	for _, pid := range pids {
		l.process(pid)
	}
}

func (l *librarian) process(pid int) {
	libs, err := target.MappedBy(pid)
	if err != nil {
		return // it has ended, or is a kernel thread
	}
	for _, lib := range libs {
		l.attach(lib.Path, pid)
	}
}

func (l *librarian) attach(path string, pid int) {
	if l.reach == reachWithin && !l.wide {
		l.inside[pid] = true
	} else {
		pid = 0
	}
	lib, fresh, err := l.probe.AttachLibrary(path, pid)
	switch {
	case errors.Is(err, target.ErrNoSSL):
	case err != nil && (fresh || lib == nil):
		l.log.Debug("a library is not probed", "err", err)
	case fresh:
		for _, site := range lib.Sites {
			l.log.Debug("a library is probed", "path", path, "pid", pid, "site", site.String())
		}
	}
}

// connected has a process looked at that opened a wanted connection.
func (l *librarian) connected(pid int) {
	l.awake.Store(true)
	l.look(pid)
}

// executed has a process looked at that began a program, unless nothing is
// wanted of any process yet.
func (l *librarian) executed(pid int) {
	if l.reach != reachLater || l.awake.Load() {
		l.look(pid)
	}
}

// look has a process looked at. A process too many is found by a later look
// at another one where files count, not processes.
func (l *librarian) look(pid int) {
	select {
	case l.begun <- pid:
	default:
	}
}

// child has the host's libraries probed everywhere: a child may live too
// briefly to be probed on its own.
func (l *librarian) child() {
	if l.reach != reachWithin {
		return
	}
	select {
	case l.born <- struct{}{}:
	default:
	}
}

func (l *librarian) widen() {
	if l.wide {
		return
	}
	l.wide = true
	l.host()
	for pid := range l.inside {
		l.process(pid)
		l.detach(pid)
	}
}

func (l *librarian) detach(pid int) {
	delete(l.inside, pid)
	if err := l.probe.DetachProcess(pid); err != nil {
		l.log.Warn("the probes of a process stay", "err", err)
	}
}

// reap takes the probes of ended processes away.
func (l *librarian) reap() {
	for pid := range l.inside {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		l.detach(pid)
	}
}

// start looks at processes until ctx ends; the channel closes when it has.
func (l *librarian) start(ctx context.Context) <-chan struct{} {
	type visit struct {
		pid  int
		at   time.Time
		turn int
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var visits []visit
		woken := false
		tick := time.NewTicker(10 * time.Millisecond)
		tick.Stop()
		defer tick.Stop()
		reap := time.NewTicker(reapEvery)
		defer reap.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-reap.C:
				l.reap()
			case <-l.born:
				l.widen()
			case pid := <-l.begun:
				if l.reach == reachLater && !woken {
					woken = true
					l.host()
				}
				l.process(pid)
				if len(visits) < maxLooks {
					visits = append(visits, visit{pid: pid, at: time.Now(), turn: 1})
				}
				tick.Reset(10 * time.Millisecond)
			case now := <-tick.C:
				kept := visits[:0]
				for _, v := range visits {
					if now.Sub(v.at) >= looks()[v.turn] {
						l.process(v.pid)
						v.turn++
					}
					if v.turn < len(looks()) {
						kept = append(kept, v)
					}
				}
				visits = kept
				if len(visits) == 0 {
					tick.Stop()
				}
			}
		}
	}()
	return done
}

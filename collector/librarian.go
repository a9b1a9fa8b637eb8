package collector

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/peel-dev/peel/collector/probe"
	"github.com/peel-dev/peel/collector/probe/target"
)

// When a process that began is looked at: its libraries come one by one.
func looks() []time.Duration {
	return []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}
}

// maxLooks bounds the processes that wait to be looked at.
const maxLooks = 1024

// librarian finds the TLS libraries and has them probed.
type librarian struct {
	log   *slog.Logger
	probe *probe.Probe
	begun chan int
}

func newLibrarian(log *slog.Logger, p *probe.Probe) *librarian {
	return &librarian{log: log, probe: p, begun: make(chan int, maxLooks)}
}

// host probes what programs of this host would load, before they do.
func (l *librarian) host() {
	libs, err := target.Libraries("/")
	if err != nil {
		l.log.Debug("the host's libraries cannot be listed", "err", err)
	}
	for _, path := range libs {
		l.attach(path)
	}
}

// running probes what running processes have loaded; none named: all.
func (l *librarian) running(pids []int) {
	if len(pids) == 0 {
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
		l.attach(lib.Path)
	}
}

func (l *librarian) attach(path string) {
	lib, fresh, err := l.probe.AttachLibrary(path)
	switch {
	case errors.Is(err, target.ErrNoSSL):
	case err != nil && (fresh || lib == nil):
		l.log.Debug("a library is not probed", "err", err)
	case fresh:
		for _, site := range lib.Sites {
			l.log.Debug("a library is probed", "path", path, "site", site.String())
		}
	}
}

// look has a process looked at. A process too many is found by a later look
// at another one, since files count, not processes.
func (l *librarian) look(pid int) {
	select {
	case l.begun <- pid:
	default:
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
		tick := time.NewTicker(10 * time.Millisecond)
		tick.Stop()
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case pid := <-l.begun:
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

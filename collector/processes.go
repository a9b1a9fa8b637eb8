package collector

import (
	"os"
	"strconv"

	"github.com/peel-dev/peel/collector/event"
)

// maxProcesses bounds the processes whose names are kept.
const maxProcesses = 8192

// process is what is known of a client.
type process struct {
	comm, exe string
}

// processes remembers who a process is, since a short-lived one is gone when
// its last exchange is made up.
type processes struct {
	known map[uint32]process
	order []uint32 // oldest first
}

func newProcesses() *processes {
	return &processes{known: make(map[uint32]process)}
}

// learn reads what /proc says of pid now. comm serves where it says nothing.
func (p *processes) learn(pid uint32, comm string) process {
	known, ok := p.known[pid]
	proc := "/proc/" + strconv.FormatUint(uint64(pid), 10)
	if exe, err := os.Readlink(proc + "/exe"); err == nil {
		known.exe = exe
	}
	if name := commOf(int(pid)); name != "" {
		known.comm = name
	} else if comm != "" {
		known.comm = comm
	}
	if !ok {
		if len(p.order) >= maxProcesses {
			delete(p.known, p.order[0])
			p.order = p.order[1:]
		}
		p.order = append(p.order, pid)
	}
	p.known[pid] = known
	return known
}

// connected makes sure that a connection's owner is known. It reports whether
// the owner is new.
func (p *processes) connected(c *event.Conn) bool {
	if c.PID == 0 {
		return false
	}
	known, ok := p.known[c.PID]
	if !ok {
		known = p.learn(c.PID, c.Comm)
	}
	if c.Comm == "" {
		c.Comm = known.comm
	}
	return !ok
}

// changed follows a watched process.
func (p *processes) changed(ev *event.Process) {
	if ev.Change == event.Executed {
		delete(p.known, ev.PID) // another program now; its place in order stays
		p.learn(ev.PID, ev.Comm)
	}
}

package collector

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrChoice says that a Choice names what is not there or means nothing.
var ErrChoice = errors.New("choose what to observe")

// Choice says which connections are observed: those that meet every kind of
// condition given, by any one of its values. Nothing given means all.
type Choice struct {
	Hosts   []string       // globs over SNI or authority
	Ports   []uint16       // the peer's; for accepted connections this host's
	CIDRs   []netip.Prefix // the peer's address
	PIDs    []int          // and their later children
	Comms   []string       // names of programs, and their later children
	Cgroups []string       // cgroup-2 folders, absolute or below the mount
	Role    string         // client (also when empty), server, both
}

// Check reports a value that can mean nothing.
func (c *Choice) Check() error {
	for _, glob := range c.Hosts {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("host %q: %w", glob, err)
		}
	}
	for _, pid := range c.PIDs {
		if pid <= 0 {
			return fmt.Errorf("pid %d: must be positive", pid)
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("pid %d: there is no such process", pid)
		}
	}
	if slices.Contains(c.Comms, "") {
		return errors.New("comm: must not be empty")
	}
	switch c.Role {
	case "", "client", "server", "both":
	default:
		return fmt.Errorf("role %q: must be client, server or both", c.Role)
	}
	return nil
}

func (c *Choice) targets() bool {
	return len(c.PIDs) > 0 || len(c.Comms) > 0 || len(c.Cgroups) > 0
}

// match is nil when every host is wanted.
func (c *Choice) match() func(string, netip.AddrPort) bool {
	if len(c.Hosts) == 0 {
		return nil
	}
	return func(host string, peer netip.AddrPort) bool {
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		for _, glob := range c.Hosts {
			glob = strings.ToLower(glob)
			if ok, err := path.Match(glob, host); ok && err == nil {
				return true
			}
			if glob == peer.Addr().String() {
				return true
			}
		}
		return false
	}
}

// processes lists those that run already and are wanted.
func (c *Choice) processes(cgroupRoot string) ([]int, error) {
	pids := append([]int(nil), c.PIDs...)
	for _, group := range c.Cgroups {
		if !strings.HasPrefix(group, cgroupRoot) {
			group = filepath.Join(cgroupRoot, group)
		}
		list, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if err != nil {
			return nil, fmt.Errorf("%w: list the processes of cgroup: %w", ErrChoice, err)
		}
		for field := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(c.Comms) == 0 {
		return pids, nil
	}
	all, err := runningProcesses()
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		comm := commOf(pid)
		for _, want := range c.Comms {
			if comm != "" && comm == want[:min(len(want), 15)] {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

func runningProcesses() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func commOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "" // it has ended
	}
	return strings.TrimSuffix(string(b), "\n")
}

package probe

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/peel-dev/peel/bpf"
)

// Purpose is something that peel needs the kernel for.
type Purpose string

// The purposes, in the order in which they are set up.
const (
	Names     Purpose = "process names"
	Plaintext Purpose = "plaintext"
	Join      Purpose = "plaintext to socket"
	Segments  Purpose = "segments"
	Records   Purpose = "TLS records"
	RoundTrip Purpose = "round trip"
	Connect   Purpose = "connect"
)

// Attempt is a hook that could serve a purpose, and why it does not.
type Attempt struct {
	Hook string
	Err  error // nil: it serves
}

// Hook says what serves a purpose on this host: the last attempt, unless that
// failed too. What stands before it would be better.
type Hook struct {
	Purpose  Purpose
	Needed   bool // without it peel cannot do its main job
	Attempts []Attempt
	Remedy   string // what to do when it fails, in a command where there is one
}

// Serving is the hook that serves, "" for none.
func (h Hook) Serving() string {
	if n := len(h.Attempts); n > 0 && h.Attempts[n-1].Err == nil {
		return h.Attempts[n-1].Hook
	}
	return ""
}

// Err is why nothing serves the purpose, nil when something does.
func (h Hook) Err() error {
	if n := len(h.Attempts); n > 0 {
		return h.Attempts[n-1].Err
	}
	return errors.New("not tried")
}

// candidate is one way to serve a purpose. Which candidate serves is seen by
// loading and attaching it, never by the kernel's version.
type candidate struct {
	hook     string
	programs []string
	multi    bool // uprobe_multi instead of a perf event
	attach   func(*Probe, map[string]*ebpf.Program) error
}

// need is a row of the table: a purpose, its candidates from the best to the
// last resort, and what to do when all fail.
type need struct {
	purpose    Purpose
	needed     bool
	candidates []candidate
	// with is the purpose whose programs serve this one too.
	with   Purpose
	remedy string
}

// needs is the table of hooks.
func needs() []need {
	library := []string{
		bpf.ObserverProgLibraryWriteBytes, bpf.ObserverProgLibraryReadBytes,
		bpf.ObserverProgLibraryWriteDone, bpf.ObserverProgLibraryReadDone,
		bpf.ObserverProgLibraryWriteFlags,
	}
	current := append([]string{bpf.ObserverProgLibraryReturn}, library...)
	old := append([]string{bpf.ObserverProgOldLibraryReturn}, library...)
	return []need{
		{purpose: Names, remedy: "give CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN", candidates: []candidate{
			{hook: "cgroup/connect, tp_btf/sched_process", attach: (*Probe).attachProcess, programs: []string{
				bpf.ObserverProgObserveConnect4, bpf.ObserverProgObserveConnect6,
				bpf.ObserverProgProcessFork, bpf.ObserverProgProcessExec, bpf.ObserverProgProcessExit,
			}},
		}},
		{purpose: Join, remedy: "use Linux 6.3 or later, or a kernel with CONFIG_KPROBES", candidates: []candidate{
			{hook: "tp_btf/sock_send_length, sock_recv_length", attach: (*Probe).attachTracing,
				programs: []string{bpf.ObserverProgTraceSend, bpf.ObserverProgTraceReceive}},
			{hook: "fexit/tcp_sendmsg, tcp_recvmsg", attach: (*Probe).attachTracing,
				programs: []string{bpf.ObserverProgFexitSend, bpf.ObserverProgFexitReceive}},
			{hook: "kprobe, kretprobe/tcp_sendmsg, tcp_recvmsg", attach: (*Probe).attachKprobes,
				programs: []string{
					bpf.ObserverProgKprobeSend, bpf.ObserverProgKprobeSent,
					bpf.ObserverProgKprobeReceive, bpf.ObserverProgKprobeReceived,
				}},
		}},
		{purpose: Plaintext, remedy: "give CAP_BPF and CAP_PERFMON; before Linux 6.6 CAP_SYS_ADMIN too", candidates: []candidate{
			{hook: "uprobe_multi", multi: true, programs: current, attach: (*Probe).keepLibrary},
			{hook: "uprobe by perf event", programs: current, attach: (*Probe).keepLibrary},
			{hook: "uprobe by perf event, without bpf_loop", programs: old, attach: (*Probe).keepLibrary},
		}},
		{purpose: Segments, needed: true, remedy: "give CAP_BPF and CAP_NET_ADMIN, or run as root", candidates: []candidate{
			{hook: "cgroup_skb", attach: (*Probe).attachSegments,
				programs: []string{bpf.ObserverProgObserveEgress, bpf.ObserverProgObserveIngress}},
			{hook: "cgroup_skb without bpf_loop", attach: (*Probe).attachSegments,
				programs: []string{bpf.ObserverProgOldEgress, bpf.ObserverProgOldIngress}},
		}},
		{purpose: Records, with: Segments},
		{purpose: RoundTrip, with: Segments},
		// Last: from here on connections are marked.
		{purpose: Connect, needed: true, remedy: "give CAP_BPF and CAP_NET_ADMIN, or run as root", candidates: []candidate{
			{hook: "sockops", attach: (*Probe).attachSockets, programs: []string{bpf.ObserverProgObserveSocket}},
		}},
	}
}

// errAvoided is why a hook in Options.Avoid does not serve.
var errAvoided = errors.New("not to be tried")

// setUp serves one need with the first candidate that loads and attaches.
func (p *Probe) setUp(n need) Hook {
	hook := Hook{Purpose: n.purpose, Needed: n.needed, Remedy: n.remedy}
	for _, c := range n.candidates {
		err := p.try(c)
		hook.Attempts = append(hook.Attempts, Attempt{Hook: c.hook, Err: err})
		if err == nil {
			break
		}
	}
	return hook
}

func (p *Probe) try(c candidate) error {
	if slices.Contains(p.avoid, c.hook) {
		return errAvoided
	}
	if c.multi {
		if err := haveUprobeMulti(); err != nil {
			return err
		}
	}
	spec := p.spec.Copy()
	for name, program := range spec.Programs {
		if !slices.Contains(c.programs, name) {
			delete(spec.Programs, name)
		} else if c.multi {
			program.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: p.maps.Maps})
	if err != nil {
		return fmt.Errorf("load %s: %w", c.hook, err)
	}
	defer coll.Close() // a program lives on in its link
	attached := len(p.links)
	if err := c.attach(p, coll.Programs); err != nil {
		err = fmt.Errorf("attach %s: %w", c.hook, err)
		for _, l := range p.links[attached:] {
			err = errors.Join(err, l.Close())
		}
		p.links = p.links[:attached]
		return err
	}
	p.multi = p.multi || c.multi
	return nil
}

func (p *Probe) keep(l link.Link, err error) error {
	if err != nil {
		return err
	}
	p.links = append(p.links, l)
	return nil
}

func (p *Probe) attachTracing(programs map[string]*ebpf.Program) error {
	for name, program := range programs {
		if err := p.keep(link.AttachTracing(link.TracingOptions{Program: program})); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (p *Probe) attachKprobes(programs map[string]*ebpf.Program) error {
	for _, k := range []struct {
		program, symbol string
		attach          func(string, *ebpf.Program, *link.KprobeOptions) (link.Link, error)
	}{
		{bpf.ObserverProgKprobeSent, "tcp_sendmsg", link.Kretprobe},
		{bpf.ObserverProgKprobeReceived, "tcp_recvmsg", link.Kretprobe},
		{bpf.ObserverProgKprobeSend, "tcp_sendmsg", link.Kprobe},
		{bpf.ObserverProgKprobeReceive, "tcp_recvmsg", link.Kprobe},
	} {
		if err := p.keep(k.attach(k.symbol, programs[k.program], nil)); err != nil {
			return fmt.Errorf("%s: %w", k.symbol, err)
		}
	}
	return nil
}

func (p *Probe) attachProcess(programs map[string]*ebpf.Program) error {
	for name, program := range programs {
		var err error
		switch name {
		case bpf.ObserverProgObserveConnect4:
			err = p.attachCgroup(ebpf.AttachCGroupInet4Connect, program)
		case bpf.ObserverProgObserveConnect6:
			err = p.attachCgroup(ebpf.AttachCGroupInet6Connect, program)
		default:
			err = p.keep(link.AttachTracing(link.TracingOptions{Program: program}))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (p *Probe) attachSegments(programs map[string]*ebpf.Program) error {
	for name, program := range programs {
		where := ebpf.AttachCGroupInetIngress
		if strings.HasSuffix(name, "egress") {
			where = ebpf.AttachCGroupInetEgress
		}
		if err := p.attachCgroup(where, program); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (p *Probe) attachSockets(programs map[string]*ebpf.Program) error {
	return p.attachCgroup(ebpf.AttachCGroupSockOps, programs[bpf.ObserverProgObserveSocket])
}

func (p *Probe) attachCgroup(where ebpf.AttachType, program *ebpf.Program) error {
	return p.keep(link.AttachCgroup(link.CgroupOptions{Path: p.cgroup, Attach: where, Program: program}))
}

// keepLibrary keeps the programs for AttachLibrary.
func (p *Probe) keepLibrary(programs map[string]*ebpf.Program) error {
	p.library = make(map[string]*ebpf.Program, len(programs))
	for name, program := range programs {
		clone, err := program.Clone()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.library[name] = clone
	}
	return nil
}

// missing says which of the capabilities that peel uses this process lacks,
// each with what it is for.
func missing() []string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	var effective uint64
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			effective, _ = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	var lacks []string
	for _, c := range []struct {
		bit  uint
		text string
	}{
		{39, "CAP_BPF (to load programs)"},
		{38, "CAP_PERFMON (for plaintext, process names)"},
		{12, "CAP_NET_ADMIN (for connect, segments, TLS records, round trip)"},
		{19, "CAP_SYS_PTRACE (to find the TLS libraries of other users' processes)"},
	} {
		if effective&(1<<c.bit) == 0 && effective&(1<<21) == 0 { // CAP_SYS_ADMIN stands for them before 5.8
			lacks = append(lacks, c.text)
		}
	}
	return lacks
}

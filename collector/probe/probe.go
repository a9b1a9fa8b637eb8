// Package probe loads and attaches the kernel side, chooses what serves on
// this kernel, and hands on the raw events. It and package bpf alone call the
// kernel's BPF.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/peel-dev/peel/bpf"
)

// Options say what to watch.
type Options struct {
	Logger *slog.Logger
	// Targets: only processes given to Watch, and their children.
	Targets bool
	// Comms: with Targets, processes that execute a program of such a name
	// are watched too. The kernel keeps 15 bytes of a name.
	Comms  []string
	Ports  []uint16       // peers' ports (a server's own); empty: all
	CIDRs  []netip.Prefix // peers' addresses; empty: all
	Client bool           // connections this host opens
	Server bool           // connections it accepts
	// Wake makes Read return at once when a watched process begins a program or
	// opens a connection, so that it can be named, and probed before its first
	// request.
	Wake bool
	// RingSize is the ring buffer's bytes, a power of two; 0: 16 MiB.
	RingSize uint32
	// Avoid names hooks that are not to be tried, so that the next best serve.
	Avoid []string
}

// Probe is the attached kernel side.
type Probe struct {
	log     *slog.Logger
	avoid   []string
	spec    *ebpf.CollectionSpec
	maps    *ebpf.Collection
	cgroup  string
	unmount func() error
	links   []link.Link
	library map[string]*ebpf.Program
	multi   bool
	hooks   []Hook
	attach  attachments
	reader  *ringbuf.Reader
}

// ErrUnable says that the kernel or the privileges cannot serve.
var ErrUnable = errors.New("this host cannot be observed")

// Open loads and attaches all but the library probes. The error wraps
// ErrUnable when this host cannot serve, and says what to do.
func Open(opts Options) (_ *Probe, err error) {
	p := &Probe{log: opts.Logger, avoid: opts.Avoid}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if lacks := missing(); len(lacks) > 0 {
		return nil, fmt.Errorf("%w: run as root (sudo), or give it %s", ErrUnable, strings.Join(lacks, ", "))
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return nil, fmt.Errorf("%w: read kernel types: %w; use a kernel with CONFIG_DEBUG_INFO_BTF", ErrUnable, err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("%w: raise the memory lock limit: %w; give it CAP_SYS_RESOURCE or Linux 5.11", ErrUnable, err)
	}
	p.cgroup, p.unmount, err = cgroupRoot()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnable, err)
	}
	if err := p.loadMaps(opts); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnable, err)
	}
	for _, n := range needs() {
		if n.with != "" {
			hook := p.hook(n.with)
			hook.Purpose, hook.Needed = n.purpose, false
			p.hooks = append(p.hooks, hook)
			continue
		}
		hook := p.setUp(n)
		p.hooks = append(p.hooks, hook)
		if err := hook.Err(); err != nil {
			if n.needed {
				return p, fmt.Errorf("%w: %s: %w; %s", ErrUnable, n.purpose, err, n.remedy)
			}
			p.log.Warn("a purpose is not served", "purpose", string(n.purpose), "err", err, "remedy", n.remedy)
		}
	}
	p.reader, err = ringbuf.NewReader(p.maps.Maps[bpf.ObserverMapEvents])
	if err != nil {
		return nil, fmt.Errorf("open ring buffer: %w", err)
	}
	return p, nil
}

func (p *Probe) hook(purpose Purpose) Hook {
	for _, h := range p.hooks {
		if h.Purpose == purpose {
			return h
		}
	}
	return Hook{}
}

// Hooks says what serves each purpose.
func (p *Probe) Hooks() []Hook { return p.hooks }

// Cgroup is the folder that peel is attached to.
func (p *Probe) Cgroup() string { return p.cgroup }

// loadMaps creates the maps, which all programs share, with the choice of what
// to watch in them.
func (p *Probe) loadMaps(opts Options) error {
	spec, err := bpf.LoadObserver()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	for name, value := range map[string]bool{
		bpf.ObserverVarFilterTargets: opts.Targets,
		bpf.ObserverVarFilterComms:   len(opts.Comms) > 0,
		bpf.ObserverVarFilterPorts:   len(opts.Ports) > 0,
		bpf.ObserverVarFilterCidrs:   len(opts.CIDRs) > 0,
		bpf.ObserverVarWantClient:    opts.Client,
		bpf.ObserverVarWantServer:    opts.Server,
		bpf.ObserverVarWakeOnConnect: opts.Wake,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if opts.RingSize != 0 {
		spec.Maps[bpf.ObserverMapEvents].MaxEntries = opts.RingSize
	}
	p.spec = spec
	bare := spec.Copy()
	bare.Programs = nil
	p.maps, err = ebpf.NewCollection(bare)
	if err != nil {
		return fmt.Errorf("create maps: %w", err)
	}
	for _, comm := range opts.Comms {
		var key [16]byte
		copy(key[:15], comm)
		if err := p.maps.Maps[bpf.ObserverMapComms].Put(key, uint8(1)); err != nil {
			return fmt.Errorf("choose program %s: %w", comm, err)
		}
	}
	for _, port := range opts.Ports {
		if err := p.maps.Maps[bpf.ObserverMapPorts].Put(port, uint8(1)); err != nil {
			return fmt.Errorf("choose port %d: %w", port, err)
		}
	}
	for _, prefix := range opts.CIDRs {
		bits := prefix.Bits()
		if prefix.Addr().Is4() {
			bits += 96
		}
		key := bpf.ObserverCidrKey{Prefixlen: uint32(bits), Addr: prefix.Masked().Addr().As16()}
		if err := p.maps.Maps[bpf.ObserverMapCidrs].Put(key, uint8(1)); err != nil {
			return fmt.Errorf("choose network %s: %w", prefix, err)
		}
	}
	return nil
}

// How a process is watched, as bpf/maps.h numbers it.
const (
	targetWatched uint8 = 1
	targetParent  uint8 = 2
)

// Watch watches a process, and the children it will have.
func (p *Probe) Watch(pid int) error {
	if err := p.maps.Maps[bpf.ObserverMapTargets].Put(uint32(pid), targetWatched); err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

// WatchChildren watches the children that a process will have, not itself.
func (p *Probe) WatchChildren(pid int) error {
	if err := p.maps.Maps[bpf.ObserverMapTargets].Put(uint32(pid), targetParent); err != nil {
		return fmt.Errorf("watch the children of process %d: %w", pid, err)
	}
	return nil
}

// How often the ring buffer is emptied. No event wakes the reader, since a
// wake-up costs its writer ten times the event; an idle reader slows down.
const (
	pollBusy = 5 * time.Millisecond
	pollIdle = 20 * time.Millisecond
)

// Read hands each event to handle until ctx ends; then it drains the ring
// buffer once more. After each pass it calls idle. raw holds until handle
// returns.
func (p *Probe) Read(ctx context.Context, handle func(raw []byte), idle func()) error {
	stop := context.AfterFunc(ctx, func() {
		if err := p.reader.Flush(); err != nil {
			p.log.Warn("the ring buffer cannot be flushed", "err", err)
		}
	})
	defer stop()
	var record ringbuf.Record
	for wait := pollBusy; ; {
		done := ctx.Err() != nil
		if done {
			wait = 0
		}
		p.reader.SetDeadline(time.Now().Add(wait))
		n := 0
		for n < maxPass {
			err := p.reader.ReadInto(&record)
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
				break
			}
			if err != nil {
				return fmt.Errorf("read ring buffer: %w", err)
			}
			if n == 0 {
				// What is there was there before, or it woke us: take all.
				p.reader.SetDeadline(time.Now())
			}
			handle(record.RawSample)
			n++
		}
		idle()
		if done && n < maxPass {
			return nil
		}
		wait = min(wait+time.Millisecond, pollIdle)
		if n > 0 {
			wait = pollBusy
		}
		if n == maxPass {
			wait = 0
		}
	}
}

// maxPass bounds the events between two calls of idle.
const maxPass = 1 << 16

// Traffic is the payload bytes that watched connections carried so far.
func (p *Probe) Traffic() (out, in uint64) {
	var sums [2]uint64
	for i := range sums {
		sums[i] = p.sum(bpf.ObserverMapTraffic, uint32(i))
	}
	return sums[0], sums[1]
}

// Reasons counts early exits and drops so far, by name; zeros are left out.
func (p *Probe) Reasons() map[string]uint64 {
	counts := make(map[string]uint64)
	for reason, name := range reasonNames() {
		if n := p.sum(bpf.ObserverMapReasons, uint32(reason)); n > 0 {
			counts[name] = n
		}
	}
	return counts
}

// Lost counts the events that found the ring buffer full.
func (p *Probe) Lost() uint64 {
	return p.sum(bpf.ObserverMapReasons, uint32(bpf.ObserverReasonREASON_RING_FULL))
}

func (p *Probe) sum(name string, key uint32) uint64 {
	var each []uint64
	if err := p.maps.Maps[name].Lookup(key, &each); err != nil {
		p.log.Warn("a counter cannot be read", "map", name, "err", err)
		return 0
	}
	var sum uint64
	for _, n := range each {
		sum += n
	}
	return sum
}

// Close detaches and unloads everything.
func (p *Probe) Close() error {
	var errs []error
	errs = append(errs, p.attach.close())
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	for _, program := range p.library {
		errs = append(errs, program.Close())
	}
	p.library = nil
	if p.reader != nil {
		errs = append(errs, p.reader.Close())
		p.reader = nil
	}
	if p.maps != nil {
		p.maps.Close()
		p.maps = nil
	}
	if p.unmount != nil {
		errs = append(errs, p.unmount())
		p.unmount = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close probe: %w", err)
	}
	return nil
}

func haveUprobeMulti() error {
	if err := features.HaveBPFLinkUprobeMulti(); err != nil {
		return fmt.Errorf("uprobe_multi: %w", err)
	}
	return nil
}

// CallElsewhere counts library calls on connections that are not watched.
const CallElsewhere = "library_call_elsewhere"

// reasonNames are the names of the reasons in bpf/maps.h.
func reasonNames() map[bpf.ObserverReason]string {
	return map[bpf.ObserverReason]string{
		bpf.ObserverReasonREASON_RING_FULL:      "ring_full",
		bpf.ObserverReasonREASON_CONNS_FULL:     "connections_full",
		bpf.ObserverReasonREASON_STORAGE_FAILED: "socket_storage_failed",
		bpf.ObserverReasonREASON_HEADER_UNREAD:  "segment_header_unread",
		bpf.ObserverReasonREASON_NOT_TLS_RECORD: "not_a_tls_record",
		bpf.ObserverReasonREASON_WALK_GAP:       "tls_record_behind_a_gap",
		bpf.ObserverReasonREASON_CALLS_FULL:     "library_calls_full",
		bpf.ObserverReasonREASON_CALL_ELSEWHERE: CallElsewhere,
		bpf.ObserverReasonREASON_CALL_REJOINED:  "library_session_moved",
		bpf.ObserverReasonREASON_CALL_UNREAD:    "library_buffer_unread",
		bpf.ObserverReasonREASON_SCAN_LIMIT:     "too_many_heads_in_a_call",
		bpf.ObserverReasonREASON_HEAD_LIMIT:     "http1_head_too_long",
		bpf.ObserverReasonREASON_FRAMING_LOST:   "http2_framing_lost",
		bpf.ObserverReasonREASON_NOT_HTTP:       "not_http",
	}
}

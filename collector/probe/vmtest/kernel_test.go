package vmtest

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/peel-dev/peel/collector/probe"
)

// The hooks, as package probe names them.
const (
	tracepoints  = "tp_btf/sock_send_length, sock_recv_length"
	fexit        = "fexit/tcp_sendmsg, tcp_recvmsg"
	kprobes      = "kprobe, kretprobe/tcp_sendmsg, tcp_recvmsg"
	uprobeMulti  = "uprobe_multi"
	uprobe       = "uprobe by perf event"
	uprobeOld    = "uprobe by perf event, without bpf_loop"
	cgroupSkb    = "cgroup_skb"
	cgroupSkbOld = "cgroup_skb without bpf_loop"
	sockops      = "sockops"
	names        = "cgroup/connect, tp_btf/sched_process"
)

// offers are the hooks that this kernel must be able to serve each purpose
// with, the best first. They are read off what the kernel says of itself, and
// off a program of two instructions where it says nothing.
func offers(t *testing.T) map[probe.Purpose][]string {
	t.Helper()
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatalf("read the kernel's types: %v", err)
	}
	offer := map[probe.Purpose][]string{
		probe.Names:     {names},
		probe.Connect:   {sockops},
		probe.Segments:  {cgroupSkbOld},
		probe.Plaintext: {uprobeOld},
	}
	better := func(purpose probe.Purpose, hook string) {
		offer[purpose] = append([]string{hook}, offer[purpose]...)
	}
	if hasKprobes(t) {
		better(probe.Join, kprobes)
	}
	if hasFexit(t) {
		better(probe.Join, fexit)
	}
	var tracepoint *btf.Typedef
	if has(t, spec.TypeByName("btf_trace_sock_send_length", &tracepoint)) {
		better(probe.Join, tracepoints)
	}
	if hasEnumerator(t, spec, "bpf_func_id", "BPF_FUNC_loop") {
		better(probe.Segments, cgroupSkb)
		better(probe.Plaintext, uprobe)
	}
	if hasEnumerator(t, spec, "bpf_attach_type", "BPF_TRACE_UPROBE_MULTI") {
		better(probe.Plaintext, uprobeMulti)
	}
	offer[probe.Records] = offer[probe.Segments]
	offer[probe.RoundTrip] = offer[probe.Segments]
	return offer
}

func has(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !errors.Is(err, btf.ErrNotFound) {
		t.Fatalf("search the kernel's types: %v", err)
	}
	return err == nil
}

func hasEnumerator(t *testing.T, spec *btf.Spec, enum, name string) bool {
	t.Helper()
	types, err := spec.AnyTypesByName(enum)
	if !has(t, err) {
		return false
	}
	for _, typ := range types {
		if e, ok := typ.(*btf.Enum); ok {
			for _, v := range e.Values {
				if v.Name == name {
					return true
				}
			}
		}
	}
	return false
}

// hasKprobes: the kernel has them as perf events since 4.17.
func hasKprobes(t *testing.T) bool {
	t.Helper()
	_, err := os.Stat("/sys/bus/event_source/devices/kprobe/type")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// hasFexit tries the smallest program: there are kernels that have all that
// it takes and refuse it.
func hasFexit(t *testing.T) bool {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.Tracing,
		AttachType:   ebpf.AttachTraceFExit,
		AttachTo:     "tcp_sendmsg",
		License:      "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Logf("no fexit: %v", err)
		return false
	}
	defer program.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: program})
	if err != nil {
		t.Logf("no fexit: %v", err)
		return false
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}

// ways lists ways to serve all purposes such that each hook serves in one at
// least: first the best of each, then the second best, and so on. What has no
// further one keeps its last.
func ways(offer map[probe.Purpose][]string) []map[probe.Purpose]string {
	var all []map[probe.Purpose]string
	for turn, more := 0, true; more; turn++ {
		way := make(map[probe.Purpose]string)
		more = false
		for purpose, hooks := range offer {
			if len(hooks) > turn+1 {
				more = true
			}
			way[purpose] = hooks[min(turn, len(hooks)-1)]
		}
		all = append(all, way)
	}
	return all
}

// avoid is what must not serve for the way to be taken.
func avoid(offer map[probe.Purpose][]string, way map[probe.Purpose]string) []string {
	var hooks []string
	for purpose, serves := range way {
		for _, hook := range offer[purpose] {
			if hook == serves {
				break
			}
			hooks = append(hooks, hook)
		}
	}
	return hooks
}

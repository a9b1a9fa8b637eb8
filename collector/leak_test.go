package collector

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/probe"
)

// held is what this process holds: descriptors by what they are, goroutines.
func held(t *testing.T) (fds map[string]int, goroutines int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	fds = make(map[string]int)
	for _, e := range entries {
		what, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			continue // the folder itself
		}
		what, _, _ = strings.Cut(what, ":[") // not the number of a socket or pipe
		fds[what]++
	}
	return fds, runtime.NumGoroutine()
}

// expectHeld waits for goroutines to end, and compares.
func expectHeld(t *testing.T, fds map[string]int, goroutines int) {
	t.Helper()
	var gotFDs map[string]int
	var got int
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		gotFDs, got = held(t)
		if got <= goroutines && len(more(gotFDs, fds)) == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	t.Errorf("left over: %v, %d goroutines where %d were", more(gotFDs, fds), got, goroutines)
}

// more is what is in a and not in b.
func more(a, b map[string]int) map[string]int {
	d := make(map[string]int)
	for k, n := range a {
		if n > b[k] {
			d[k] = n - b[k]
		}
	}
	return d
}

func quiet(command bool) Config {
	return Config{Logger: slog.New(slog.DiscardHandler), Command: command, Emit: func(*exchange.Record) {}}
}

// bpfFDs is how many BPF objects this process holds.
func bpfFDs(fds map[string]int) int {
	n := 0
	for what, count := range fds {
		if strings.Contains(what, "bpf") {
			n += count
		}
	}
	return n
}

// TestCloseLeavesNothing opens, runs and closes again and again.
func TestCloseLeavesNothing(t *testing.T) {
	round := func() {
		o, err := Open(quiet(true))
		if err != nil {
			t.Fatal(err)
		}
		if err := o.WatchCommand("curl", os.Environ(), os.Getpid()); err != nil {
			t.Fatal(err)
		}
		if fds, _ := held(t); bpfFDs(fds) < 10 {
			t.Errorf("only %d BPF objects are open while observing: %v", bpfFDs(fds), fds)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		time.Sleep(5 * time.Millisecond)
		stop()
		if err := errors.Join(<-ended, o.Close()); err != nil {
			t.Fatal(err)
		}
	}
	round() // what is made once stays
	fds, goroutines := held(t)
	for range 20 {
		round()
	}
	expectHeld(t, fds, goroutines)
}

// TestOpenThatEndsHalfWay lets Open run out of descriptors at each of its
// steps, and on a choice that cannot be served.
func TestOpenThatEndsHalfWay(t *testing.T) {
	o, err := Open(quiet(true))
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := held(t)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	fds, goroutines := held(t)

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	first := int(null.Fd()) // the lowest that is free
	null.Close()
	refused, unable := 0, 0
	for extra := 1; extra < bpfFDs(whole); extra += 4 {
		tight := limit
		tight.Cur = uint64(first + extra)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &tight); err != nil {
			t.Fatal(err)
		}
		o, err := Open(quiet(true))
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		refused++
		if errors.Is(err, probe.ErrUnable) {
			unable++
		}
	}
	if refused < 3 || unable == 0 {
		t.Errorf("Open was refused %d times, %d of them as unable: the limit does not bite", refused, unable)
	}
	for _, choice := range []Choice{
		{Cgroups: []string{"/no/such/cgroup"}},
		{Role: "neither"},
		{Hosts: []string{"["}},
		{PIDs: []int{-1}},
		{Comms: []string{""}},
	} {
		cfg := quiet(false)
		cfg.Choice = choice
		if o, err := Open(cfg); err == nil {
			t.Errorf("%+v is taken", choice)
			o.Close()
		}
	}
	expectHeld(t, fds, goroutines)
}

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/latency"
	"github.com/peel-dev/peel/collector/testbed"
	"github.com/peel-dev/peel/exporter/jsonl"
)

// asPeel makes the test's own program peel: what is tested needs no build.
const asPeel = "PEEL_TEST_AS_PEEL"

func TestMain(m *testing.M) {
	if os.Getenv(asPeel) != "" {
		main()
	}
	os.Exit(testbed.Main(m))
}

// result is how peel ended.
type result struct {
	code           int
	stdout, stderr string
}

// command is peel with a command line, not yet started.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return asPeelCommand(self, args...)
}

func asPeelCommand(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), asPeel+"=1", "LC_ALL=C.UTF-8")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// finish runs peel to its end.
func finish(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	stuck := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func peel(t testing.TB, args ...string) result {
	t.Helper()
	return finish(t, command(t, args...))
}

// observed runs "peel run --write" on a command and returns what it wrote.
func observed(t testing.TB, argv ...string) (result, []*exchange.Record) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "exchanges.jsonl")
	r := peel(t, append([]string{"run", "--write", file, "--"}, argv...)...)
	return r, readRecords(t, file)
}

// readRecords reads a file that --write made, and checks each record.
func readRecords(t testing.TB, path string) []*exchange.Record {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return decodeRecords(t, file)
}

func decodeRecords(t testing.TB, r io.Reader) []*exchange.Record {
	t.Helper()
	var records []*exchange.Record
	err := jsonl.Read(r, func(r *exchange.Record) error {
		records = append(records, r)
		return latency.Check(r)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(records, func(a, b *exchange.Record) int { return a.Start.Compare(b.Start) })
	return records
}

// live is a peel that runs beside the test.
type live struct {
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
}

// begin starts peel and waits until it says that it watches.
func begin(t testing.TB, args ...string) *live {
	t.Helper()
	p := &live{cmd: command(t, args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	if args[0] == "watch" {
		p.until(t, "peel: watching")
	}
	return p
}

// until waits for words on standard error.
func (p *live) until(t testing.TB, words string) {
	t.Helper()
	eventually(t, func() bool { return strings.Contains(p.stderr.String(), words) }, func() string {
		return "peel did not say " + words + " but\n" + p.stderr.String()
	})
}

// end sends a signal and waits for the end.
func (p *live) end(t testing.TB, sig os.Signal) result {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	return p.wait(t)
}

func (p *live) wait(t testing.TB) result {
	t.Helper()
	stuck := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() })
	defer stuck.Stop()
	p.cmd.Wait() // its status is looked at by who asked
	return result{p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

// eventually waits until done, for half a minute.
func eventually(t testing.TB, done func() bool, otherwise func() string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise())
		}
	}
}

// lockedBuffer takes a running program's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

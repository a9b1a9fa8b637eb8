package collector

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// observation is an Observer that watches what the test starts under it.
type observation struct {
	t        testing.TB
	observer *Observer
	log      bytes.Buffer
	stop     context.CancelFunc
	ended    chan error

	// To be read after end.
	raw     [][]byte
	records []*exchange.Record
	report  Report
}

// observe begins. What is started from now on is watched.
func observe(t testing.TB) *observation {
	t.Helper()
	ob := &observation{t: t, ended: make(chan error, 1)}
	var err error
	ob.observer, err = Open(Config{
		Logger:  slog.New(slog.NewTextHandler(&ob.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Command: true,
		Emit:    func(r *exchange.Record) { ob.records = append(ob.records, r.Clone()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ob.observer.tap = func(raw []byte) { ob.raw = append(ob.raw, bytes.Clone(raw)) }
	if err := ob.observer.WatchCommand("curl", os.Environ(), os.Getpid()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ob.stop = stop
	go func() { ob.ended <- ob.observer.Run(ctx) }()
	t.Cleanup(sync.OnceFunc(func() {
		stop()
		ob.observer.Close()
	}))
	return ob
}

// run runs a program to its end and returns its pid, its output and whether
// it was content.
func (ob *observation) run(stdin string, argv ...string) (pid uint32, output string, err error) {
	ob.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewBufferString(stdin)
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		ob.t.Fatal(err)
	}
	return uint32(cmd.Process.Pid), string(out), err
}

// must runs a program that has to succeed.
func (ob *observation) must(argv ...string) uint32 {
	ob.t.Helper()
	pid, output, err := ob.run("", argv...)
	if err != nil {
		ob.t.Fatalf("%q: %v\n%s", argv, err, output)
	}
	return pid
}

// end ends the observation and checks what must be true of any.
func (ob *observation) end() {
	ob.t.Helper()
	ob.stop()
	if err := <-ob.ended; err != nil {
		ob.t.Fatal(err)
	}
	ob.report = ob.observer.Report()
	if err := ob.observer.Close(); err != nil {
		ob.t.Error(err)
	}
	if ob.report.Undecoded > 0 || ob.report.Residuals > 0 {
		ob.t.Errorf("%d events not decoded, %d records do not add up\n%s", ob.report.Undecoded, ob.report.Residuals, ob.log.Bytes())
	}
	if ob.report.Exchanges != len(ob.records) {
		ob.t.Errorf("%d exchanges counted, %d emitted", ob.report.Exchanges, len(ob.records))
	}
}

// of returns the records of one process, in order of their begin.
func (ob *observation) of(pid uint32) []*exchange.Record {
	var own []*exchange.Record
	for _, r := range ob.records {
		if r.Process.PID == pid {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(a, b *exchange.Record) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Connection.Sequence, b.Connection.Sequence))
	})
	return own
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// observer is a command that wraps h2load, or one that runs beside it, or
// none at all: the null test, which shows what noise alone looks like.
type observer struct {
	name   string
	wrap   []string
	beside []string
	ready  string // what it prints once it observes
}

// sniff prints the first bytes of every write and read of a TLS library.
const sniff = `
uprobe:%[1]s:SSL_write { printf("%%d write %%d %%r\n", tid, arg2, buf(arg1, 64)); }
uprobe:%[1]s:SSL_read { @buf[tid] = arg1; }
uretprobe:%[1]s:SSL_read /@buf[tid]/ {
	if ((int32)retval > 0) { printf("%%d read %%d %%r\n", tid, retval, buf(@buf[tid], 64)); }
	delete(@buf[tid]);
}`

func observers(peel string, port int, libssl string) []observer {
	return []observer{
		{name: "none"},
		{name: "peel-run", wrap: []string{peel, "run", "--"}},
		{name: "peel-watch", beside: []string{peel, "watch", "--port", strconv.Itoa(port), "--comm", "h2load"}, ready: "watching"},
		{name: "peel-elsewhere", beside: []string{peel, "watch", "--port", "1"}, ready: "watching"},
		{name: "tcpdump", beside: []string{"tcpdump", "-i", "lo", "-w", "/dev/null"}, ready: "listening"},
		{name: "bpftrace", beside: []string{"bpftrace", "-e", fmt.Sprintf(sniff, libssl)}, ready: "Attaching"},
	}
}

func observerNames() []string {
	var names []string
	for _, o := range observers("", 0, "") {
		names = append(names, o.name)
	}
	return names
}

// result holds the ratios of each pair, with the observer to without.
type result struct {
	name                      string
	rate, mean, p50, p99, cpu []float64
	observer                  []float64 // ns a request
	base                      []load
	saw                       []float64 // share of the requests
	missed                    string    // the observer's own words, in the last pair
}

// compare runs pairs of without, with, with, without: a drift of the machine
// touches both alike.
func (b *bench) compare(ctx context.Context, o observer, pairs, n, streams int, progress io.Writer) (result, error) {
	r := result{name: o.name}
	for pair := range pairs {
		base1, err := b.load(ctx, nil, n, streams)
		if err != nil {
			return r, err
		}
		beside, err := startBeside(ctx, o)
		if err != nil {
			return r, err
		}
		with1, err := b.load(ctx, o.wrap, n, streams)
		if err != nil {
			beside.kill()
			return r, err
		}
		with2, err := b.load(ctx, o.wrap, n, streams)
		if err != nil {
			beside.kill()
			return r, err
		}
		used, said, err := beside.stop()
		if err != nil {
			return r, err
		}
		base2, err := b.load(ctx, nil, n, streams)
		if err != nil {
			return r, err
		}
		r.rate = append(r.rate, (1/base1.rate+1/base2.rate)/(1/with1.rate+1/with2.rate))
		r.mean = append(r.mean, (with1.mean+with2.mean)/(base1.mean+base2.mean))
		r.p50 = append(r.p50, (with1.p50+with2.p50)/(base1.p50+base2.p50))
		r.p99 = append(r.p99, (with1.p99+with2.p99)/(base1.p99+base2.p99))
		r.cpu = append(r.cpu, (with1.cpu+with2.cpu)/(base1.cpu+base2.cpu))
		r.observer = append(r.observer, (with1.observer+with2.observer)/2+float64(used)/float64(2*n))
		r.base = append(r.base, base1, base2)
		r.saw = append(r.saw, float64(said.saw+with1.said.saw+with2.said.saw)/float64(2*n))
		r.missed = cmp.Or(said.missed, with2.said.missed)
		fmt.Fprintf(progress, "%s -m %d, pair %d of %d: %.3f× requests/s\n", o.name, streams, pair+1, pairs, r.rate[pair])
	}
	return r, nil
}

// beside is an observer that runs beside the load. A nil one is none.
type beside struct {
	cmd    *exec.Cmd
	ended  chan struct{} // closed when it has ended
	output *listener
	before int64
}

// patience is how long an observer may take to start or to end: bpftrace
// compiles its program first.
const patience = 20 * time.Second

func startBeside(ctx context.Context, o observer) (*beside, error) {
	if o.beside == nil {
		return nil, nil
	}
	b := &beside{
		cmd:    exec.CommandContext(ctx, o.beside[0], o.beside[1:]...),
		ended:  make(chan struct{}),
		output: newListener(o.ready),
	}
	b.cmd.Stderr = b.output
	if o.name == "bpftrace" {
		b.cmd.Stdout = b.output // says there that it is ready
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", o.name, err)
	}
	go func() {
		b.cmd.Wait() //nolint:errcheck // its state says as much
		close(b.ended)
	}()
	select {
	case <-b.output.ready:
	case <-b.ended:
		return nil, fmt.Errorf("starting %s: it ended with %v: %s", o.name, b.cmd.ProcessState, b.output.text())
	case <-time.After(patience):
		b.kill()
		return nil, fmt.Errorf("starting %s: it never said %q: %s", o.name, o.ready, b.output.text())
	}
	// Some say so before their last probe is in place.
	time.Sleep(time.Second)
	var err error
	if b.before, err = processCPU(b.cmd.Process.Pid); err != nil {
		b.kill()
		return nil, fmt.Errorf("%w: %s", err, b.output.text())
	}
	return b, nil
}

func (b *beside) kill() {
	if b != nil {
		b.cmd.Process.Kill() //nolint:errcheck // it may be gone already
		<-b.ended
	}
}

// stop ends the observer; used is its CPU time since it was ready, ns.
func (b *beside) stop() (used int64, said words, err error) {
	if b == nil {
		return 0, words{}, nil
	}
	after, err := processCPU(b.cmd.Process.Pid)
	if err == nil {
		err = b.cmd.Process.Signal(os.Interrupt)
	}
	if err != nil {
		b.kill()
		return 0, words{}, fmt.Errorf("ending the observer: %w: %s", err, b.output.text())
	}
	select {
	case <-b.ended:
	case <-time.After(patience):
		b.kill()
		return 0, words{}, fmt.Errorf("ending the observer: it goes on after an interrupt: %s", b.output.text())
	}
	return after - b.before, b.output.words(), nil
}

// listener takes what an observer says: closes ready at a line with a word,
// keeps the last lines, for an error, and what it says of its own work.
type listener struct {
	word  string
	ready chan struct{}

	mu      sync.Mutex
	partial []byte
	heard   bool
	last    []string
	missed  []string
	saw     int
}

func newListener(word string) *listener {
	return &listener{word: word, ready: make(chan struct{})}
}

var (
	// How peel, bpftrace and tcpdump begin a line on what they missed.
	missedLine = regexp.MustCompile(`^([Ll]ost|events lost|dropped|incomplete|no exchange|\d+ packets dropped)\b`)
	// How peel begins its summary; thousands are set apart by spaces.
	sawLine = regexp.MustCompile(`^(\d[\d\pZ]*) exchanges? in `)
)

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.line(strings.TrimSpace(string(line)))
		l.partial = append(l.partial[:0], rest...)
	}
}

func (l *listener) line(s string) {
	if !l.heard && strings.Contains(s, l.word) {
		l.heard = true
		close(l.ready)
	}
	l.last = keepLast(l.last, s, 20)
	if missedLine.MatchString(s) {
		l.missed = keepLast(l.missed, strings.Join(strings.Fields(s), " "), 3)
	}
	if m := sawLine.FindStringSubmatch(s); m != nil {
		digits := strings.Join(strings.FieldsFunc(m[1], unicode.IsSpace), "")
		l.saw, _ = strconv.Atoi(digits) // digits only
	}
}

func keepLast(lines []string, s string, n int) []string {
	lines = append(lines, s)
	return lines[max(0, len(lines)-n):]
}

// text returns the last lines.
func (l *listener) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "\n") + string(l.partial)
}

// words are an observer's own on its work.
type words struct {
	saw    int // exchanges; 0 for one that knows none
	missed string
}

func (l *listener) words() words {
	l.mu.Lock()
	defer l.mu.Unlock()
	return words{saw: l.saw, missed: strings.Join(l.missed, "; ")}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/truth"
)

// bounded is a time as peel gives it, ns.
type bounded struct {
	Value int64 `json:"value"`
	Low   int64 `json:"low"`
	High  int64 `json:"high"`
}

func (b bounded) holds(v int64) bool { return b.Low <= v && v <= b.High }

// record is what of a line of peel's output matters here.
type record struct {
	Role       string `json:"role"`
	Connection struct {
		ID       string `json:"id"`
		Local    string `json:"local"`
		Reused   bool   `json:"reused"`
		Sequence int    `json:"sequence"`
	} `json:"connection"`
	HTTP struct {
		Version string `json:"version"`
		Path    string `json:"path"`
		Status  int    `json:"status"`
	} `json:"http"`
	Phases     map[string]int64              `json:"phases_ns"`
	Breakdown  map[string]map[string]bounded `json:"breakdown_ns"`
	Components map[string]bounded            `json:"components_ns"`
	Quality    struct {
		Complete   bool     `json:"complete"`
		LostEvents int      `json:"lost_events"`
		RTTSource  string   `json:"rtt_source"`
		Notes      []string `json:"notes"`
	} `json:"quality"`
}

// id is the exchange's name.
func (r *record) id() string {
	return r.HTTP.Path[strings.LastIndexByte(r.HTTP.Path, '/')+1:]
}

// maxLine bounds a record.
const maxLine = 1 << 20

func readRecords(r io.Reader, each func(*record)) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	for line := 1; scanner.Scan(); line++ {
		rec := new(record)
		if err := json.Unmarshal(scanner.Bytes(), rec); err != nil {
			return fmt.Errorf("reading peel's records, line %d: %w", line, err)
		}
		each(rec)
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading peel's records: %w", err)
	}
	return nil
}

func readFile(name string, each func(*record)) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("reading peel's records: %w", err)
	}
	defer f.Close()
	return readRecords(f, each)
}

const (
	// startPatience is how long peel may take to load and to find libraries.
	startPatience = 30 * time.Second
	// settle is for what a program does after it says that it is ready, or
	// after the last packet.
	settle = 500 * time.Millisecond
)

// watcher is a running peel watch.
type watcher struct {
	cmd   *exec.Cmd
	ended chan error
	said  *watchOutput
}

// startWatch returns once peel watches. It ends by itself after most.
func startWatch(ctx context.Context, peel, file string, most time.Duration) (*watcher, error) {
	w := &watcher{
		cmd: exec.CommandContext(ctx, peel, "watch", "--output", "json", "--write", file, "--duration", most.String(),
			"--port", strconv.Itoa(truth.PortTLS), "--port", strconv.Itoa(truth.PortPlain),
			// Programs by name: their libraries are probed before they begin.
			"--comm", "curl", "--comm", "nghttp", "--comm", "h2load", "--comm", "python3"),
		ended: make(chan error, 1),
		said:  &watchOutput{ready: make(chan struct{})},
	}
	w.cmd.Stderr = w.said
	w.cmd.Cancel = func() error { return w.cmd.Process.Signal(os.Interrupt) }
	w.cmd.WaitDelay = 10 * time.Second
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting peel watch: %w", err)
	}
	go func() { w.ended <- w.cmd.Wait() }()
	select {
	case <-w.said.ready:
		time.Sleep(settle)
		return w, nil
	case err := <-w.ended:
		return nil, fmt.Errorf("starting peel watch: it ended: %w: %s", err, w.said.tail())
	case <-time.After(startPatience):
		return nil, errors.Join(fmt.Errorf("starting peel watch: not ready after %v", startPatience), w.stop())
	}
}

// stop ends peel as Ctrl-C does.
func (w *watcher) stop() error {
	time.Sleep(settle)
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping peel watch: %w", err)
	}
	select {
	case err := <-w.ended:
		if err != nil {
			return fmt.Errorf("running peel watch: %w: %s", err, w.said.tail())
		}
		return nil
	case <-time.After(startPatience):
		w.cmd.Process.Kill() //nolint:errcheck // it may be gone by now
		<-w.ended            //nolint:errcheck // it was killed
		return errors.New("stopping peel watch: it did not end")
	}
}

// watchOutput keeps what peel says, and notices when it is ready.
type watchOutput struct {
	ready chan struct{}

	mu    sync.Mutex
	text  bytes.Buffer
	found bool
}

// keep bounds what is kept of a program's output.
const keep = 64 << 10

func (o *watchOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len() < keep {
		o.text.Write(b)
	}
	if !o.found && bytes.Contains(o.text.Bytes(), []byte("watching")) {
		o.found = true
		close(o.ready)
	}
	return len(b), nil
}

func (o *watchOutput) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return tail(o.text.Bytes())
}

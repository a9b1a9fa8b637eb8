package main

import (
	"bytes"
	"context"
	_ "embed" // client.py
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
)

//go:embed client.py
var clientScript []byte

const pythonPath = "/usr/bin/python3" // Debian's: linked to the system's libssl

// tools are what the clients need, and the Debian packages that have them.
var tools = map[string]string{
	"curl": "curl", pythonPath: "python3-minimal", "nghttp": "nghttp2-client", "h2load": "nghttp2-client", "ip": "iproute2",
}

// load makes a case's exchanges. wrap, if any, is put before each command;
// it is told the number of the client.
type load struct {
	dir    string
	client *delayline.Namespace
	wrap   func(client int) []string
}

func (l load) run(ctx context.Context, c testCase) error {
	var group sync.WaitGroup
	errs := make([]error, c.parallel)
	for i, requests := range c.requests() {
		group.Go(func() {
			commands, err := l.commands(c, i, requests)
			if err != nil {
				errs[i] = err
				return
			}
			for _, command := range commands {
				if l.wrap != nil {
					command = append(l.wrap(i), command...)
				}
				if errs[i] = l.exec(ctx, command); errs[i] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// commands returns what one client runs, one after the other.
func (l load) commands(c testCase, client int, requests []request) ([][]string, error) {
	file := filepath.Join(l.dir, fmt.Sprintf("%s-%d", c.name, client))
	urls := make([]string, len(requests))
	for i, r := range requests {
		urls[i] = c.origin() + r.target
	}
	switch c.program {
	case curl, curlNew:
		version := "--http2"
		if c.http1 {
			version = "--http1.1"
		}
		command := []string{"curl", "--silent", "--show-error", "--insecure", "--no-buffer", version, "--fail-early", "--max-time", "30"}
		if c.upload > 0 {
			body := file + ".body"
			if err := os.WriteFile(body, bytes.Repeat([]byte{'x'}, c.upload), 0o600); err != nil {
				return nil, fmt.Errorf("writing a request body: %w", err)
			}
			command = append(command, "--data-binary", "@"+body, "--header", "Expect:")
		}
		if c.program == curlNew {
			commands := make([][]string, len(urls))
			for i, u := range urls {
				commands[i] = append(slices.Clip(command), "--output", os.DevNull, u)
			}
			return commands, nil
		}
		var config strings.Builder
		for _, u := range urls {
			fmt.Fprintf(&config, "url = %q\noutput = %q\n", u, os.DevNull)
		}
		if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
			return nil, fmt.Errorf("writing curl's list: %w", err)
		}
		return [][]string{append(command, "--config", file)}, nil
	case python:
		type entry struct {
			Target string  `json:"target"`
			Body   int     `json:"body"`
			Think  float64 `json:"think"`
		}
		plan := struct {
			URL      string  `json:"url"`
			Requests []entry `json:"requests"`
		}{URL: c.origin()}
		for _, r := range requests {
			plan.Requests = append(plan.Requests, entry{r.target, c.upload, c.think.Seconds()})
		}
		b, err := json.Marshal(plan)
		if err == nil {
			err = os.WriteFile(file, b, 0o600)
		}
		if err == nil {
			err = os.WriteFile(file+".py", clientScript, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("writing Python's list: %w", err)
		}
		return [][]string{{pythonPath, file + ".py", file}}, nil
	case nghttp:
		var commands [][]string
		for len(urls) > 0 {
			n := min(c.streams, len(urls))
			commands = append(commands, append([]string{"nghttp", "--null-out", "--no-verify-peer", "--timeout=30s"}, urls[:n]...))
			urls = urls[n:]
		}
		return commands, nil
	default:
		if err := os.WriteFile(file, []byte(strings.Join(urls, "\n")+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("writing h2load's list: %w", err)
		}
		return [][]string{{
			"h2load", "--clients=1", "--requests=" + strconv.Itoa(len(urls)),
			"--max-concurrent-streams=" + strconv.Itoa(c.streams), "--input-file=" + file,
		}}, nil
	}
}

// exec runs a command in the client's namespace.
func (l load) exec(ctx context.Context, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var output bytes.Buffer
	cmd.Stderr = &output
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "SSLKEYLOGFILE=", "NO_COLOR=1")
	// A peel that is told to end does so, and takes its command along.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := l.client.Do(cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", command[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("running %s: %w: %s", command[0], err, tail(output.Bytes()))
	}
	return nil
}

// tail is the end of what a program said.
func tail(b []byte) string {
	b = bytes.TrimSpace(b)
	return string(b[max(0, len(b)-1000):])
}

package main

import (
	"fmt"
	"math"
	"path"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
	"github.com/peel-dev/peel/cmd/accuracy/truth"
)

// program is a client.
type program int

const (
	curl    program = iota // one connection a process, one request after the other
	curlNew                // one process and connection a request
	python                 // http.client: HTTP/1.1, one connection a process
	nghttp                 // streams requests at once, then the next process
	h2load                 // streams requests at once, one connection
)

// testCase is a path, a client and what it asks for.
type testCase struct {
	name    string
	path    delayline.Path
	program program
	run     bool // observed by peel run, not by peel watch
	plain   bool // HTTP without TLS
	http1   bool
	ipv6    bool

	n        int // exchanges
	parallel int // clients at once
	streams  int
	sleeps   []time.Duration // the server's, in turn
	work     truth.Work      // the rest of what the server does
	upload   int             // bytes
	think    time.Duration   // before each request
}

const ms = time.Millisecond

// cases are ordered as the table shows them. scale multiplies their
// exchanges.
func cases(scale float64) []testCase {
	mixed := []time.Duration{0, 1 * ms, 8 * ms, 50 * ms, 300 * ms}
	short := []time.Duration{0, 1 * ms, 8 * ms, 50 * ms}
	jitter := func(d, j time.Duration) delayline.Path {
		w := delayline.Way{Delay: d, Jitter: j}
		return delayline.Path{Up: w, Down: w, Seed: 1}
	}
	loss := func(d time.Duration, share float64) delayline.Path {
		w := delayline.Way{Delay: d, Loss: share}
		return delayline.Path{Up: w, Down: w, Seed: 1}
	}
	var list []testCase
	for _, d := range []time.Duration{1, 5, 20, 50} {
		list = append(list, testCase{
			name: fmt.Sprintf("warm-%dms", d), path: delayline.Steady(d * ms),
			program: curl, n: 500, parallel: 5, sleeps: mixed,
		})
	}
	for _, d := range []time.Duration{1, 5, 20, 50} {
		list = append(list, testCase{
			name: fmt.Sprintf("new-%dms", d), path: delayline.Steady(d * ms),
			program: curlNew, n: 200, parallel: 3, sleeps: mixed,
		})
	}
	list = append(list,
		testCase{name: "run-5ms", path: delayline.Steady(5 * ms), run: true, program: curl, n: 200, parallel: 2, sleeps: short},
		testCase{name: "asymmetric", path: delayline.Path{Up: delayline.Way{Delay: 2 * ms}, Down: delayline.Way{Delay: 20 * ms}}, program: curl, n: 250, parallel: 5, sleeps: mixed},
		testCase{name: "jitter-0-2ms", path: jitter(5*ms, 2*ms), program: curl, n: 500, parallel: 5, sleeps: mixed},
		testCase{name: "jitter-0-5ms", path: jitter(20*ms, 5*ms), program: curl, n: 500, parallel: 5, sleeps: mixed},
		testCase{name: "new-jitter-0-5ms", path: jitter(20*ms, 5*ms), program: curlNew, n: 150, parallel: 3, sleeps: short},
		testCase{name: "loss-1pct", path: loss(10*ms, 0.01), program: curl, n: 500, parallel: 5, sleeps: mixed},
		testCase{name: "loss-3pct", path: loss(10*ms, 0.03), program: curl, n: 500, parallel: 5, sleeps: mixed},
		testCase{name: "upload-100kB", path: delayline.Steady(5 * ms), program: curl, n: 200, parallel: 2, sleeps: short, upload: 100_000},
		testCase{name: "upload-600kB", path: delayline.Steady(20 * ms), program: curl, n: 60, parallel: 1, sleeps: short, upload: 600_000},
		testCase{name: "h1-upload-100kB", path: delayline.Steady(20 * ms), program: python, n: 120, parallel: 2, sleeps: short, upload: 100_000},
		testCase{name: "answer-200kB", path: delayline.Steady(10 * ms), program: curl, n: 200, parallel: 2, sleeps: short, work: truth.Work{Size: 200_000}},
		testCase{name: "idle-500ms", path: delayline.Steady(5 * ms), program: python, n: 200, parallel: 10, sleeps: short, think: 500 * ms},
		testCase{name: "streams-10", path: delayline.Steady(5 * ms), program: h2load, n: 500, parallel: 1, streams: 10, sleeps: mixed},
		testCase{name: "streams-100", path: delayline.Steady(5 * ms), program: h2load, n: 1000, parallel: 1, streams: 100, sleeps: mixed},
		testCase{name: "new-streams-10", path: delayline.Steady(5 * ms), program: nghttp, n: 300, parallel: 1, streams: 10, sleeps: short},
		testCase{name: "sse", path: delayline.Steady(5 * ms), program: curl, n: 100, parallel: 5, sleeps: mixed, work: truth.Work{Chunks: 20, Gap: 20 * ms}},
		testCase{name: "sse-1ms-gap", path: delayline.Steady(20 * ms), program: curl, n: 100, parallel: 2, sleeps: short, work: truth.Work{Chunks: 50, Gap: 1 * ms}},
		testCase{name: "ipv6", path: delayline.Steady(5 * ms), program: curl, ipv6: true, n: 250, parallel: 5, sleeps: mixed},
		testCase{name: "h1", path: delayline.Steady(5 * ms), program: python, n: 250, parallel: 5, sleeps: mixed, think: 2 * ms},
		testCase{name: "h1-curl", path: delayline.Steady(20 * ms), program: curl, http1: true, n: 250, parallel: 5, sleeps: mixed},
		testCase{name: "h1-plain", path: delayline.Steady(5 * ms), program: curl, plain: true, http1: true, n: 250, parallel: 5, sleeps: mixed},
		testCase{name: "h1-plain-new", path: delayline.Steady(5 * ms), program: curlNew, plain: true, http1: true, n: 150, parallel: 3, sleeps: short},
	)
	for i := range list {
		list[i].n = max(list[i].parallel*max(list[i].streams, 1), int(math.Round(scale*float64(list[i].n))))
	}
	return list
}

// choose returns the cases whose name matches a pattern.
func choose(list []testCase, pattern string) ([]testCase, error) {
	var out []testCase
	for _, c := range list {
		ok, err := path.Match(pattern, c.name)
		if err != nil {
			return nil, fmt.Errorf("%w: --cases %s: %w", errUsage, pattern, err)
		}
		if ok {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: --cases %s: no case has such a name; --list shows them", errUsage, pattern)
	}
	return out, nil
}

// origin is the scheme and authority that the client talks to.
func (c testCase) origin() string {
	scheme, host, port := "https", delayline.ServerAddr, truth.PortTLS
	if c.plain {
		scheme, port = "http", truth.PortPlain
	}
	if c.ipv6 {
		host = "[" + delayline.ServerAddr6 + "]"
	}
	return fmt.Sprintf("%s://%s:%d", scheme, host, port)
}

// request is one of a case's exchanges.
type request struct {
	id     string
	target string
	sleep  time.Duration
}

// requests returns the case's exchanges, dealt out to its clients. Each
// client has all the server times.
func (c testCase) requests() [][]request {
	out := make([][]request, c.parallel)
	for i := range c.n {
		client, k := i%c.parallel, i/c.parallel
		w := c.work
		w.Sleep = c.sleeps[k%len(c.sleeps)]
		id := fmt.Sprintf("%s.%d.%d", path.Base(c.name), client, k)
		out[client] = append(out[client], request{id: id, target: w.Target(id), sleep: w.Sleep})
	}
	return out
}

// serverTimes are the sleeps the server is asked for, by exchange.
func (c testCase) serverTimes() map[string]time.Duration {
	out := make(map[string]time.Duration, c.n)
	for _, requests := range c.requests() {
		for _, r := range requests {
			out[r.id] = r.sleep
		}
	}
	return out
}

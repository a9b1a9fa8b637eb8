package demo

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

// Step is one command to run under observation, and what it should show.
type Step struct {
	Name   string // for a person
	Argv   []string
	Expect []Expect
}

// Expect is one figure to compare: the server's part of a phase of one
// exchange.
type Expect struct {
	ID    string // the last element of the exchange's path
	Phase exchange.Phase
	Added time.Duration // what the server was told to add to its own work
}

// request is one exchange of a step, before it becomes a client's arguments.
type request struct {
	method, path string
	fields       []field
	expect       []Expect
}

type field struct{ name, value string }

// call is all requests of a step, on one connection.
type call struct {
	name     string
	addr     netip.AddrPort
	sni      string // empty: plain HTTP
	http2    bool
	requests []request
}

// plan lists the steps that the client can run. tls6 may be invalid.
func plan(cfg Config, c client, tls, tls6, cleartext netip.AddrPort) []Step {
	p := planner{}
	gap := time.Duration(cfg.Chunks) * cfg.Gap
	const short, long = 5 * time.Millisecond, 15 * time.Millisecond

	first := p.get()
	first.expect = append([]Expect{p.adds(exchange.TLS, 0)}, first.expect...)
	slow := p.get()
	slow.expect = append([]Expect{p.adds(exchange.TLS, cfg.Handshake)}, slow.expect...)

	sni := "api." + Domain
	calls := []call{
		{name: "new connection, GET", addr: tls, sni: sni, http2: true, requests: []request{first}},
		{name: fmt.Sprintf("slow handshake, %v", cfg.Handshake), addr: tls, sni: handshakeName(cfg.Handshake), http2: true, requests: []request{slow}},
		{name: fmt.Sprintf("POST, first byte after %v", cfg.FirstByte), addr: tls, sni: sni, http2: true, requests: []request{p.post(cfg.FirstByte)}},
		{name: fmt.Sprintf("stream of %d chunks, %v apart", cfg.Chunks, cfg.Gap), addr: tls, sni: sni, http2: true, requests: []request{p.stream(cfg.Chunks, cfg.Gap, gap)}},
		{name: "two on one connection", addr: tls, sni: sni, requests: []request{p.post(short), p.post(long)}},
	}
	if tls6.IsValid() {
		calls = append(calls, call{name: fmt.Sprintf("IPv6, POST, after %v", long), addr: tls6, sni: sni, http2: true, requests: []request{p.post(long)}})
	}
	if c.tool == own {
		// What needs no TLS, on the plain port.
		calls = calls[2:5]
		for i := range calls {
			calls[i].addr, calls[i].sni, calls[i].http2 = cleartext, "", false
		}
	} else {
		calls = append(calls, call{name: fmt.Sprintf("plain HTTP, POST, after %v", short), addr: cleartext, requests: []request{p.post(short)}})
	}

	steps := make([]Step, len(calls))
	for i, call := range calls {
		call.http2 = call.http2 && c.http2
		protocol := "HTTP/1.1"
		if call.http2 {
			protocol = "HTTP/2"
		}
		steps[i] = Step{Name: call.name + ", " + protocol, Argv: c.command(call)}
		for _, r := range call.requests {
			steps[i].Expect = append(steps[i].Expect, r.expect...)
		}
	}
	return steps
}

// planner numbers the requests.
type planner struct{ n int }

func (p *planner) next() string {
	p.n++
	return p.id()
}

func (p *planner) id() string { return fmt.Sprintf("demo-%02d", p.n) }

// adds is a figure of the latest request.
func (p *planner) adds(phase exchange.Phase, added time.Duration) Expect {
	return Expect{ID: p.id(), Phase: phase, Added: added}
}

func (p *planner) get() request {
	return request{
		method: "GET",
		path:   "/v1/models/" + p.next(),
		expect: []Expect{p.adds(exchange.Wait, 0)},
	}
}

func (p *planner) post(delay time.Duration) request {
	return request{
		method: "POST",
		path:   "/v1/messages/" + p.next(),
		fields: []field{{"Content-Type", "application/json"}, {delayField, delay.String()}},
		expect: []Expect{p.adds(exchange.Wait, delay)},
	}
}

func (p *planner) stream(chunks int, gap, total time.Duration) request {
	return request{
		method: "POST",
		path:   "/v1/stream/" + p.next(),
		fields: []field{
			{"Content-Type", "application/json"}, {"Accept", "text/event-stream"},
			{chunksField, fmt.Sprint(chunks)}, {gapField, gap.String()},
		},
		expect: []Expect{p.adds(exchange.Wait, 0), p.adds(exchange.Receive, total)},
	}
}

// command is the client's command line for a call.
func (c client) command(call call) []string {
	argv := append([]string{}, c.argv...)
	switch c.tool {
	case curl:
		return append(argv, curlArgs(call)...)
	case python:
		name := call.sni
		if name == "" {
			name = "-"
		}
		argv = append(argv, call.addr.Addr().String(), fmt.Sprint(call.addr.Port()), name, requestBody)
	case own:
		argv = append(argv, call.addr.String())
	}
	for _, r := range call.requests {
		words := []string{r.method, r.path}
		for _, f := range r.fields {
			words = append(words, f.name+"="+f.value)
		}
		argv = append(argv, strings.Join(words, " "))
	}
	return argv
}

// curlArgs leaves nothing to the user's own settings, proxies or resolver.
func curlArgs(call call) []string {
	args := []string{"-q"} // must come first
	for i, r := range call.requests {
		if i > 0 {
			args = append(args, "--next")
		}
		args = append(args, "--silent", "--show-error", "--fail", "--max-time", "120", "--noproxy", "*", "--output", "/dev/null")
		url := "http://" + call.addr.String()
		if call.sni != "" {
			host := fmt.Sprintf("%s:%d", call.sni, call.addr.Port())
			address := call.addr.Addr().String()
			if call.addr.Addr().Is6() {
				address = "[" + address + "]"
			}
			// The certificate is the stand-in's own.
			args = append(args, "--insecure", "--resolve", host+":"+address)
			url = "https://" + host
		}
		if call.http2 {
			args = append(args, "--http2")
		} else {
			args = append(args, "--http1.1")
		}
		for _, f := range r.fields {
			args = append(args, "--header", f.name+": "+f.value)
		}
		if r.method == "POST" {
			args = append(args, "--data", requestBody)
		}
		args = append(args, url+r.path)
	}
	return args
}

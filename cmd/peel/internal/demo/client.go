package demo

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed client.py
var clientPy string

// tool is a kind of client.
type tool int

const (
	curl   tool = iota // HTTPS and plain HTTP
	python             // the same, HTTP/1.1 only
	own                // plain HTTP/1.1 only: the function Client in its own process
)

// client is what the steps run.
type client struct {
	tool  tool
	argv  []string // what the steps' arguments follow
	name  string   // for a person
	http2 bool
	lacks []string // what it cannot show, for a person
}

const probeTimeout = 10 * time.Second

// findClient returns the first client of this host whose plaintext can be
// seen: curl, then python3, both only with a shared OpenSSL 3, then the
// program's own, which has no TLS.
func findClient(ctx context.Context, self []string) (client, error) {
	c, noCurl := findCurl(ctx)
	if noCurl == nil {
		return c, nil
	}
	c, noPython := findPython(ctx)
	if noPython == nil {
		c.lacks = []string{fmt.Sprintf("HTTP/2 is left out: %v", noCurl)}
		return c, nil
	}
	if len(self) == 0 {
		return client{}, fmt.Errorf("finding a client: %w", errors.Join(noCurl, noPython))
	}
	return client{
		tool:  own,
		argv:  self,
		name:  "peel's own client",
		lacks: []string{fmt.Sprintf("TLS and HTTP/2 are left out: %v; %v", noCurl, noPython)},
	}, nil
}

func findCurl(ctx context.Context) (client, error) {
	exe, err := exec.LookPath("curl")
	if err != nil {
		return client{}, errors.New("no curl on this host")
	}
	// A curl that has OpenSSL built in has no library to look at.
	if !linked(exe, "libcurl.", "libssl.") {
		return client{}, errors.New("curl does not use a shared TLS library")
	}
	out, err := output(ctx, exe, "-q", "--version")
	if err != nil {
		return client{}, fmt.Errorf("asking curl for its version: %w", err)
	}
	return parseCurl(exe, out)
}

// parseCurl reads what curl --version prints. Of several TLS libraries, those
// that are not in use stand in parentheses.
func parseCurl(exe, version string) (client, error) {
	words := strings.Fields(version)
	i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "OpenSSL/3") })
	if i < 0 || len(words) < 2 {
		return client{}, errors.New("curl does not use OpenSSL 3")
	}
	c := client{
		tool:  curl,
		argv:  []string{exe},
		name:  fmt.Sprintf("curl %s with %s", words[1], strings.Replace(words[i], "/", " ", 1)),
		http2: slices.Contains(words, "HTTP2"),
	}
	if !c.http2 {
		c.lacks = []string{"HTTP/2 is left out: this curl lacks it"}
	}
	return c, nil
}

// linked reports whether the program asks for a shared library whose name
// begins with one of the prefixes.
func linked(exe string, prefixes ...string) bool {
	f, err := elf.Open(exe)
	if err != nil {
		return false
	}
	defer f.Close()
	libs, err := f.ImportedLibraries()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(libs, func(lib string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(lib, p) })
	})
}

// pythonProbe prints the interpreter (what is found may be a wrapper), its
// version and OpenSSL's, and whether that is a shared library.
const pythonProbe = `import platform, ssl, sys
print(sys.executable, platform.python_version(), ssl.OPENSSL_VERSION, "libssl" in open("/proc/self/maps").read(), sep="\n")`

func findPython(ctx context.Context) (client, error) {
	exe, err := exec.LookPath("python3")
	if err != nil {
		return client{}, errors.New("no python3 on this host")
	}
	out, err := output(ctx, exe, "-I", "-c", pythonProbe)
	if err != nil {
		return client{}, fmt.Errorf("asking python3 for its TLS library: %w", err)
	}
	return parsePython(out)
}

func parsePython(out string) (client, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 || !filepath.IsAbs(lines[0]) {
		return client{}, errors.New("python3 does not say what it is")
	}
	fields := strings.Fields(lines[2])
	if len(fields) < 2 || fields[0] != "OpenSSL" || !strings.HasPrefix(fields[1], "3.") || lines[3] != "True" {
		return client{}, errors.New("python3 does not use a shared OpenSSL 3")
	}
	return client{
		tool: python,
		argv: []string{lines[0], "-I", "-c", clientPy},
		name: fmt.Sprintf("python %s with OpenSSL %s", lines[1], fields[1]),
	}, nil
}

func output(ctx context.Context, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	return string(out), err
}

// requestBody is what every POST sends.
const requestBody = `{"model":"stand-in-1","max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}`

// Client runs a step's requests over one connection of plain HTTP/1.1, one
// after the other. args is the server's address and then, for each request,
// one argument: its method, path and header fields as Name=value, with a space
// between them. It is for a process of its own that is observed.
func Client(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("running client: want an address and at least one request")
	}
	dialer := net.Dialer{Timeout: probeTimeout}
	transport := &http.Transport{
		MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, args[0])
		},
	}
	defer transport.CloseIdleConnections()
	for _, arg := range args[1:] {
		if err := exchangeOne(ctx, transport, args[0], arg); err != nil {
			return fmt.Errorf("running client: %s: %w", arg, err)
		}
	}
	return nil
}

func exchangeOne(ctx context.Context, via http.RoundTripper, addr, arg string) error {
	words := strings.Fields(arg)
	if len(words) < 2 {
		return errors.New("want a method and a path")
	}
	var body io.Reader
	if words[0] == http.MethodPost {
		body = bytes.NewReader([]byte(requestBody))
	}
	req, err := http.NewRequestWithContext(ctx, words[0], "http://"+addr+words[1], body)
	if err != nil {
		return err
	}
	for _, field := range words[2:] {
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			return fmt.Errorf("want Name=value, not %q", field)
		}
		req.Header.Set(name, value)
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return nil
}

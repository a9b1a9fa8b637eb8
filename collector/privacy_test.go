package collector

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/testbed"
)

// Markers of what must not get out of the kernel: bodies.
const (
	requestBody  = "QREQUESTBODYMARKER"
	responseBody = "QRESPONSEBODYMARKER"
)

// python is a client that writes to its socket exactly what the test says.
const rawPython = `
import socket, ssl, sys, time
host, port = sys.argv[1].rsplit(":", 1)
s = socket.create_connection((host, int(port)))
if sys.argv[2] == "tls":
    s = ssl._create_unverified_context().wrap_socket(s)
for part in sys.argv[3:]:
    s.sendall(part.encode().decode("unicode_escape").encode())
    time.sleep(0.02)
s.settimeout(0.3)
try:
    while s.recv(4096): pass
except OSError: pass
`

// TestBodiesStayInTheKernel looks for pieces of bodies in all that the kernel
// side reports.
func TestBodiesStayInTheKernel(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/whole", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, responseBody)
	})
	mux.HandleFunc("/chunked", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for range 3 {
			io.WriteString(w, responseBody+"0\r\n\r\n") // looks like the last chunk
			w.(http.Flusher).Flush()
		}
	})
	// A body that looks like a head.
	mux.HandleFunc("/head-like", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for range 3 {
			io.WriteString(w, "HTTP/1.1 200 OK\r\nx-body: "+responseBody+"\r\n\r\n")
			w.(http.Flusher).Flush()
		}
	})
	// The answer comes while the request's body still does.
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.WriteString(w, responseBody)
		w.(http.Flusher).Flush()
		io.Copy(io.Discard, r.Body)
	})
	s := serve(t, mux)
	mail := func(c net.Conn) {
		io.WriteString(c, "220 here\r\n")
		testbed.Drain(c)
	}
	plainMail := testbed.Serve(t, testbed.Listen(t), mail)
	tlsMail := testbed.Serve(t, testbed.Listen(t, "smtp"), mail)

	body := strings.Repeat(requestBody, 200)
	curl := func(args ...string) []string { return append([]string{"curl", "-sSk", "-m", "10"}, args...) }
	script := func(addr, how string, parts ...string) []string {
		return append([]string{testbed.Python, "-c", rawPython, addr, how}, parts...)
	}
	post := `POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n`
	var tests [][]string
	for _, path := range []string{"/whole", "/chunked", "/head-like"} {
		for _, to := range [][]string{
			{"https://" + s.tls + path},
			{"--http1.1", "https://" + s.tls + path},
			{"http://" + s.plain + path},
			{"--http2-prior-knowledge", "http://" + s.plain + path},
		} {
			tests = append(tests,
				curl(to...),
				curl(append(to, "-d", requestBody)...), // in the same write as the head
				curl(append(to, "-H", "Expect:", "-d", body)...),
				curl(append(to, "-H", "Expect: 100-continue", "-d", body)...),
				curl(append(to, "-H", "Transfer-Encoding: chunked", "-d", body)...),
			)
		}
	}
	for how, addr := range map[string]string{"tls": s.tls, "plain": s.plain} {
		tests = append(tests,
			// A chunk that ends like the last one, and one that looks like a method.
			script(addr, how, post, `1b\r\n`+requestBody+`    0\r\n\r\n\r\n`, `ABC\r\n`+strings.Repeat(requestBody, 152)+`QQQQQQQQQQQQ\r\n`, `0\r\n\r\n`),
			// A body after a head that states none, and lines that end with LF.
			script(addr, how, `GET /whole HTTP/1.1\r\nHost: x\r\n\r\n`, requestBody),
			script(addr, how, `POST /whole HTTP/1.1\nHost: x\nContent-Length: 36\n\n`, requestBody+requestBody),
		)
	}
	before := len(tests)
	// No HTTP at all.
	for how, addr := range map[string]string{"tls": tlsMail, "plain": plainMail} {
		tests = append(tests,
			script(addr, how, `EHLO localhost.localdomain\r\n`, `DATA\r\n`, `Subject: `+requestBody+`\r\n\r\n`+requestBody+`\r\n.\r\n`),
			script(addr, how, `LOGIN user `+requestBody+`\r\n`, `SELECT `+requestBody+`\r\n`),
		)
	}

	ob := observe(t)
	pids := make([]uint32, len(tests))
	for i, argv := range tests {
		pid, output, err := ob.run("", argv...)
		if err != nil {
			t.Errorf("%q: %v\n%s", argv, err, output)
		}
		pids[i] = pid
	}
	ob.end()
	for i := range before {
		if len(ob.of(pids[i])) == 0 {
			t.Errorf("%.200q was not seen", tests[i])
		}
	}
	leaks := make(map[string]bool)
	for _, raw := range ob.raw {
		for _, marker := range []string{requestBody, responseBody} {
			if i := bytes.Index(raw, []byte(marker)); i >= 0 && len(leaks) < 10 {
				leaks[string(raw[max(0, i-100):min(len(raw), i+100)])] = true
			}
		}
	}
	for leak := range leaks {
		t.Errorf("a body got out of the kernel: %q", leak)
	}
}

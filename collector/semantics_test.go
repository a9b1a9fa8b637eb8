package collector

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/peel-dev/peel/collector/conn"
	"github.com/peel-dev/peel/collector/testbed"
)

// api is a server with an answer of every kind. What it answers is known to
// the byte.
func api() http.Handler {
	answer := func(w http.ResponseWriter, n int) { w.Write(bytes.Repeat([]byte("a"), n)) }
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answer(w, 10)
	})
	mux.HandleFunc("/head", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
	})
	mux.HandleFunc("/204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/304", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"same"`)
		w.WriteHeader(http.StatusNotModified)
	})
	mux.HandleFunc("/chunked", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for range 5 {
			answer(w, 1000)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/until-close", func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
		rw.WriteString(strings.Repeat("a", 3000))
		rw.Flush()
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusEarlyHints)
		answer(w, 10)
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		answer(w, 10)
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "1")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		for i := range 6 {
			w.Header().Set(fmt.Sprintf("X-Large-%d", i), strings.Repeat("l{", 3000)) // 15-bit codes: huge when coded
		}
		answer(w, 10)
	})
	mux.HandleFunc("/500", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		answer(w, 10)
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 1000)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		answer(w, 10)
		w.(http.Flusher).Flush()
		io.Copy(io.Discard, r.Body)
	})
	return mux
}

// servers are the addresses of one handler.
type servers struct{ tls, plain string }

// serve serves handler over TLS, HTTP/2 and 1.1, and without.
func serve(t testing.TB, handler http.Handler) servers {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	secure := &http.Server{Handler: handler, ErrorLog: quiet, MaxHeaderBytes: 1 << 20}
	plain := &http.Server{Handler: handler, ErrorLog: quiet, MaxHeaderBytes: 1 << 20}
	plain.Protocols = new(http.Protocols)
	plain.Protocols.SetHTTP1(true)
	plain.Protocols.SetUnencryptedHTTP2(true)
	cert, certFile, keyFile := testbed.Certificate(t)
	secure.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	tlsListener, plainListener := testbed.Listen(t), testbed.Listen(t)
	go secure.ServeTLS(tlsListener, certFile, keyFile)
	go plain.Serve(plainListener)
	t.Cleanup(func() { secure.Close(); plain.Close() })
	return servers{tls: tlsListener.Addr().String(), plain: plainListener.Addr().String()}
}

// h2 is a server that follows a script once the client's first request
// is there: frames as no well-behaved server sends them.
func h2(t testing.TB, script func(fr *http2.Framer, stream uint32)) string {
	t.Helper()
	return testbed.Serve(t, testbed.Listen(t, "h2"), func(c net.Conn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c, preface); err != nil {
			return
		}
		fr := http2.NewFramer(c, c)
		fr.WriteSettings()
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if f.Header().Type == http2.FrameHeaders {
				script(fr, f.Header().StreamID)
			}
		}
	})
}

func block(fields ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// want is what must be known of an exchange. What is -1 may be anything.
type want struct {
	method, path string
	status       int
	request      int // body bytes
	response     int
	reset        string
	incomplete   bool
	notes        []string
}

// HTTP/1.1 bodies count as transferred: with chunk sizes, and trailers.
const (
	chunks   = 5*len("3e8\r\n\r\n") + len("0\r\n\r\n")
	trailing = len("a\r\n\r\n") + len("0\r\nX-Sum: 1\r\n\r\n")
)

func ok(path string) want { return want{method: "GET", path: path, status: 200, response: 10} }

// TestSemantics has real clients meet everything that HTTP allows.
func TestSemantics(t *testing.T) {
	s := serve(t, api())
	body := strings.Repeat("q", 20_000)
	chunky := "import http.client,sys\nhost,port=sys.argv[1].split(':')\nc=http.client.HTTPConnection(host,int(port))\n"
	scripted := map[string]string{
		"reset": h2(t, func(fr *http2.Framer, id uint32) { fr.WriteRSTStream(id, http2.ErrCodeEnhanceYourCalm) }),
		"reset-in-answer": h2(t, func(fr *http2.Framer, id uint32) {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true})
			fr.WriteData(id, false, make([]byte, 100))
			fr.WriteRSTStream(id, http2.ErrCodeInternal)
		}),
		"goaway": h2(t, func(fr *http2.Framer, id uint32) { fr.WriteGoAway(0, http2.ErrCodeNo, []byte("debug")) }),
		"padding": h2(t, func(fr *http2.Framer, id uint32) {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true, PadLength: 200})
			fr.WriteDataPadded(id, false, []byte("aaaaa"), make([]byte, 100))
			fr.WriteDataPadded(id, true, []byte("aaaaa"), make([]byte, 255))
		}),
		"continuation": h2(t, func(fr *http2.Framer, id uint32) {
			b := block(":status", "200", "x-large", strings.Repeat("v", 100), "server-timing", "db;dur=5")
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:1]})
			fr.WriteContinuation(id, false, b[1:5])
			fr.WriteContinuation(id, false, nil)
			fr.WriteContinuation(id, true, b[5:])
			fr.WriteData(id, true, []byte("aaaaaaaaaa"))
		}),
		"interim": h2(t, func(fr *http2.Framer, id uint32) {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "103", "link", "</x>"), EndHeaders: true})
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true})
			fr.WriteData(id, false, []byte("aaaaaaaaaa"))
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block("grpc-status", "0"), EndHeaders: true, EndStream: true})
		}),
		"tiny": h2(t, func(fr *http2.Framer, id uint32) {
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true})
			for range 500 {
				fr.WriteData(id, false, []byte("a"))
			}
			fr.WriteData(id, true, nil)
		}),
	}
	curl := func(args ...string) []string {
		return append([]string{"curl", "-sk", "-m", "20", "-o", "/dev/null"}, args...)
	}
	tests := []struct {
		name    string
		argv    []string
		version string
		mayFail bool // the client
		want    []want
	}{
		{name: "HEAD", argv: curl("-I", "https://"+s.tls+"/head"), version: "2", want: []want{{method: "HEAD", path: "/head", status: 200}}},
		{name: "HEAD then GET h1", argv: curl("-I", "http://"+s.plain+"/head", "--next", "-sk", "-o", "/dev/null", "http://"+s.plain+"/ok"),
			version: "1.1", want: []want{{method: "HEAD", path: "/head", status: 200}, ok("/ok")}},
		{name: "HEAD then GET h1 TLS", argv: curl("--http1.1", "-I", "https://"+s.tls+"/head", "--next", "--http1.1", "-sk", "-o", "/dev/null", "https://"+s.tls+"/ok"),
			version: "1.1", want: []want{{method: "HEAD", path: "/head", status: 200}, ok("/ok")}},
		{name: "204 304 keep-alive h1", argv: curl("http://"+s.plain+"/204", "http://"+s.plain+"/304", "http://"+s.plain+"/ok"),
			version: "1.1", want: []want{{method: "GET", path: "/204", status: 204}, {method: "GET", path: "/304", status: 304}, ok("/ok")}},
		{name: "204 304 h2", argv: curl("https://"+s.tls+"/204", "https://"+s.tls+"/304", "https://"+s.tls+"/ok"),
			version: "2", want: []want{{method: "GET", path: "/204", status: 204}, {method: "GET", path: "/304", status: 304}, ok("/ok")}},
		{name: "chunked answers h1", argv: curl("http://"+s.plain+"/chunked", "http://"+s.plain+"/chunked", "http://"+s.plain+"/ok"),
			version: "1.1", want: []want{{method: "GET", path: "/chunked", status: 200, response: 5000 + chunks}, {method: "GET", path: "/chunked", status: 200, response: 5000 + chunks}, ok("/ok")}},
		{name: "chunked answers h1 TLS", argv: curl("--http1.1", "https://"+s.tls+"/chunked", "https://"+s.tls+"/ok"),
			version: "1.1", want: []want{{method: "GET", path: "/chunked", status: 200, response: 5000 + chunks}, ok("/ok")}},
		{name: "chunked request h1", argv: curl("--http1.1", "-H", "Transfer-Encoding: chunked", "-d", body, "https://"+s.tls+"/ok", "https://"+s.tls+"/ok"),
			version: "1.1", want: []want{{method: "POST", path: "/ok", status: 200, request: -1, response: 10}, {method: "POST", path: "/ok", status: 200, request: -1, response: 10}}},
		{name: "chunked request piecewise", argv: []string{testbed.Python, "-c", chunky +
			"for _ in range(2):\n c.request('POST','/ok',(b'q'*500 for _ in range(3)),encode_chunked=True,headers={'Transfer-Encoding':'chunked'});c.getresponse().read()", s.plain},
			version: "1.1", want: []want{{method: "POST", path: "/ok", status: 200, request: -1, response: 10}, {method: "POST", path: "/ok", status: 200, request: -1, response: 10}}},
		// The kernel does not recognize where these chunks end, but that a
		// request follows the answer.
		{name: "request trailers h1", argv: []string{testbed.Python, "-c", rawPython, s.plain, "plain",
			`POST /ok HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nqqqqq\r\n`, `0\r\nX-T: 1\r\n\r\n`, `GET /ok HTTP/1.1\r\nHost: x\r\n\r\n`},
			version: "1.1", want: []want{{method: "POST", path: "/ok", status: 200, request: -1, response: 10, notes: []string{conn.NoteEarlyAnswer}}, ok("/ok")}},
		{name: "until close", argv: curl("--http1.1", "https://"+s.tls+"/until-close"),
			version: "1.1", want: []want{{method: "GET", path: "/until-close", status: 200, response: 3000}}},
		{name: "until close plain", argv: curl("http://" + s.plain + "/until-close"),
			version: "1.1", want: []want{{method: "GET", path: "/until-close", status: 200, response: 3000}}},
		{name: "100-continue h1", argv: curl("--http1.1", "-H", "Expect: 100-continue", "-d", body, "https://"+s.tls+"/ok"),
			version: "1.1", want: []want{{method: "POST", path: "/ok", status: 200, request: 20_000, response: 10, notes: []string{conn.NoteInterim}}}},
		{name: "100-continue h1 plain", argv: curl("-H", "Expect: 100-continue", "-d", body, "http://"+s.plain+"/ok"),
			version: "1.1", want: []want{{method: "POST", path: "/ok", status: 200, request: 20_000, response: 10, notes: []string{conn.NoteInterim}}}},
		{name: "early hints h1", argv: curl("http://" + s.plain + "/hints"), version: "1.1",
			want: []want{{method: "GET", path: "/hints", status: 200, response: 10, notes: []string{conn.NoteInterim}}}},
		{name: "early hints h2", argv: curl("https://" + s.tls + "/hints"), version: "2",
			want: []want{{method: "GET", path: "/hints", status: 200, response: 10, notes: []string{conn.NoteInterim}}}},
		{name: "trailers h1", argv: curl("http://"+s.plain+"/trailers", "http://"+s.plain+"/ok"), version: "1.1",
			want: []want{{method: "GET", path: "/trailers", status: 200, response: 10 + trailing}, ok("/ok")}},
		{name: "trailers h2", argv: curl("https://"+s.tls+"/trailers", "https://"+s.tls+"/ok"), version: "2",
			want: []want{{method: "GET", path: "/trailers", status: 200, response: 10}, ok("/ok")}},
		{name: "request trailers h2", argv: []string{"nghttp", "-n", "-d", "/etc/hostname", "--trailer", "x-sum: 1", "https://" + s.tls + "/ok"}, version: "2",
			want: []want{{method: "POST", path: "/ok", status: 200, request: -1, response: 10}}},
		{name: "large answer head h1", argv: curl("http://"+s.plain+"/large", "http://"+s.plain+"/ok"), version: "1.1",
			want: []want{ok("/large"), ok("/ok")}},
		{name: "large answer head h2", argv: curl("https://"+s.tls+"/large", "https://"+s.tls+"/ok"), version: "2",
			want: []want{ok("/large"), ok("/ok")}},
		{name: "large request head h1", argv: curl("--http1.1", "-H", "x-large: "+strings.Repeat("v", 12_000), "https://"+s.tls+"/ok", "https://"+s.tls+"/ok"), version: "1.1",
			want: []want{ok("/ok"), ok("/ok")}},
		{name: "large request head h2", argv: curl("-H", "x-large: "+strings.Repeat("v{", 15_000), "https://"+s.tls+"/ok", "https://"+s.tls+"/ok"), version: "2",
			want: []want{ok("/ok"), ok("/ok")}},
		{name: "nghttp --continuation", argv: []string{"nghttp", "-n", "--continuation", "https://" + s.tls + "/ok"}, version: "2", want: []want{ok("/ok")}},
		{name: "padding both ways", argv: []string{"nghttp", "-n", "-b", "200", "-d", "/etc/passwd", "https://" + s.tls + "/ok"}, version: "2",
			want: []want{{method: "POST", path: "/ok", status: 200, request: -1, response: 10}}},
		{name: "multiplexed", argv: []string{"nghttp", "-n", "-m", "20", "https://" + s.tls + "/chunked"}, version: "2",
			want: slices.Repeat([]want{{method: "GET", path: "/chunked", status: 200, response: 5000}}, 20)},
		{name: "upload h2", argv: curl("-d", body, "https://"+s.tls+"/ok"), version: "2",
			want: []want{{method: "POST", path: "/ok", status: 200, request: 20_000, response: 10}}},
		{name: "h2c", argv: curl("--http2-prior-knowledge", "http://"+s.plain+"/ok"), version: "2", want: []want{ok("/ok")}},
		{name: "error", argv: curl("https://" + s.tls + "/500"), version: "2", want: []want{{method: "GET", path: "/500", status: 500, response: 10}}},
		{name: "not found", argv: curl("http://" + s.plain + "/nowhere"), version: "1.1", want: []want{{method: "GET", path: "/nowhere", status: 404, response: -1}}},
		{name: "cut off h1", argv: curl("http://" + s.plain + "/abort"), version: "1.1", mayFail: true,
			want: []want{{method: "GET", path: "/abort", status: 200, response: 1000 + len("3e8\r\n\r\n"), incomplete: true}}},
		{name: "cut off h2", argv: curl("https://" + s.tls + "/abort"), version: "2", mayFail: true,
			want: []want{{method: "GET", path: "/abort", status: 200, response: 1000, reset: "INTERNAL_ERROR", incomplete: true}}},
		{name: "early answer", argv: curl("--http1.1", "-H", "Expect:", "-d", body, "http://"+s.plain+"/early"), version: "1.1", mayFail: true,
			want: []want{{method: "POST", path: "/early", status: 429, request: 20_000, response: 10 + len("a\r\n\r\n0\r\n\r\n")}}},
		{name: "client gives up", argv: []string{testbed.Python, "-c", chunky + "c.request('GET','/abort')\nc.sock.close()", s.plain}, version: "1.1", mayFail: true,
			want: []want{{method: "GET", path: "/abort", status: -1, response: -1, incomplete: true}}},
		{name: "upgrade", argv: curl("--http1.1", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "http://"+s.plain+"/ok"), version: "1.1", want: []want{ok("/ok")}},
		{name: "pipelined", argv: []string{testbed.Python, "-c", "import socket,sys\nh,p=sys.argv[1].split(':')\ns=socket.create_connection((h,int(p)))\n" +
			"s.sendall(b'GET /ok HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET /204 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\nwhile s.recv(4096): pass", s.plain},
			version: "1.1", want: []want{ok("/ok"), {method: "GET", path: "/204", status: 204}}},
		{name: "HTTP/1.0", argv: curl("--http1.0", "http://"+s.plain+"/ok"), version: "1.0", want: []want{ok("/ok")}},

		{name: "scripted: RST_STREAM", argv: curl("https://" + scripted["reset"] + "/"), version: "2", mayFail: true,
			want: []want{{method: "GET", path: "/", reset: "ENHANCE_YOUR_CALM", incomplete: true}}},
		{name: "scripted: RST_STREAM in the answer", argv: curl("https://" + scripted["reset-in-answer"] + "/"), version: "2", mayFail: true,
			want: []want{{method: "GET", path: "/", status: 200, response: 100, reset: "INTERNAL_ERROR", incomplete: true}}},
		{name: "scripted: GOAWAY", argv: []string{"nghttp", "-n", "-t", "5", "https://" + scripted["goaway"] + "/"}, version: "2", mayFail: true,
			want: []want{{method: "GET", path: "/", reset: "GOAWAY", incomplete: true, notes: []string{conn.NoteGoAway}}}},
		{name: "scripted: padding", argv: curl("https://" + scripted["padding"] + "/"), version: "2", want: []want{ok("/")}},
		{name: "scripted: CONTINUATION", argv: curl("https://" + scripted["continuation"] + "/"), version: "2", want: []want{ok("/")}},
		{name: "scripted: 103 and trailers", argv: curl("https://" + scripted["interim"] + "/"), version: "2",
			want: []want{{method: "GET", path: "/", status: 200, response: 10, notes: []string{conn.NoteInterim}}}},
		{name: "scripted: 500 frames", argv: curl("https://" + scripted["tiny"] + "/"), version: "2",
			want: []want{{method: "GET", path: "/", status: 200, response: 500}}},
	}

	ob := observe(t)
	pids := make([]uint32, len(tests))
	for i, tt := range tests {
		pid, output, err := ob.run("", tt.argv...)
		if err != nil && !tt.mayFail {
			t.Errorf("%s: %q: %v\n%s", tt.name, tt.argv, err, output)
		}
		pids[i] = pid
	}
	ob.end()
	t.Logf("incomplete: %v, unknown: %v, reasons: %v", ob.report.Incomplete, ob.report.Unknown, ob.report.Reasons)

	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			records := ob.of(pids[i])
			if len(records) != len(tt.want) {
				t.Errorf("%d exchanges, want %d", len(records), len(tt.want))
			}
			for j, w := range tt.want[:min(len(records), len(tt.want))] {
				r := records[j]
				got := want{method: r.HTTP.Method, path: r.HTTP.Path, status: r.HTTP.Status,
					request: int(r.HTTP.RequestBodyBytes), response: int(r.HTTP.ResponseBodyBytes),
					reset: r.HTTP.Reset, incomplete: !r.Quality.Complete, notes: r.Quality.Notes}
				if w.request == -1 {
					w.request = got.request
				}
				if w.response == -1 {
					w.response = got.response
				}
				if w.status == -1 {
					w.status = got.status
				}
				for _, note := range w.notes {
					if !slices.Contains(got.notes, note) {
						t.Errorf("exchange %d lacks the note %q: %q", j, note, got.notes)
					}
				}
				w.notes = got.notes
				if fmt.Sprint(got) != fmt.Sprint(w) {
					t.Errorf("exchange %d is\n%+v, want\n%+v", j, got, w)
				}
				if r.HTTP.Version != tt.version || r.Connection.Sequence != j+1 {
					t.Errorf("exchange %d: HTTP/%s, number %d of its connection, want HTTP/%s, %d", j, r.HTTP.Version, r.Connection.Sequence, tt.version, j+1)
				}
			}
		})
	}
}

package truth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The ports of the server: TLS, and plain HTTP/1.1.
const (
	PortTLS   = 8443
	PortPlain = 8080
)

// Serving reports whether a port is the server's.
func Serving(port uint16) bool { return port == PortTLS || port == PortPlain }

// Work is what a request asks of the server.
type Work struct {
	Sleep  time.Duration // before the first byte of the answer
	Size   int           // of the answer
	Chunks int           // event stream of so many chunks instead
	Gap    time.Duration // between chunks
}

// Target is the path and query that ask for the work, and name the exchange.
func (w Work) Target(id string) string {
	q := make(url.Values)
	if w.Sleep > 0 {
		q.Set("sleep", w.Sleep.String())
	}
	if w.Size > 0 {
		q.Set("size", strconv.Itoa(w.Size))
	}
	if w.Chunks > 0 {
		q.Set("chunks", strconv.Itoa(w.Chunks))
		q.Set("gap", w.Gap.String())
	}
	return (&url.URL{Path: prefix + id, RawQuery: q.Encode()}).String()
}

const prefix = "/e/"

// identify returns the exchange's name in a request target.
func identify(target string) string {
	path, _, _ := strings.Cut(target, "?")
	id, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return ""
	}
	return id
}

const (
	maxSleep = 10 * time.Second
	maxSize  = 16 << 20
)

func parseWork(q url.Values) (w Work, err error) {
	duration := func(name string) time.Duration {
		text := q.Get(name)
		if text == "" {
			return 0
		}
		d, e := time.ParseDuration(text)
		if e == nil && (d < 0 || d > maxSleep) {
			e = fmt.Errorf("%s %s: out of range", name, text)
		}
		err = errors.Join(err, e)
		return d
	}
	count := func(name string) int {
		text := q.Get(name)
		if text == "" {
			return 0
		}
		n, e := strconv.Atoi(text)
		if e == nil && (n < 0 || n > maxSize) {
			e = fmt.Errorf("%s %s: out of range", name, text)
		}
		err = errors.Join(err, e)
		return n
	}
	w = Work{Sleep: duration("sleep"), Gap: duration("gap"), Size: count("size"), Chunks: count("chunks")}
	return w, err
}

// Server answers as it is asked to, and remembers which bytes on the wire
// each message was.
type Server struct {
	config  *tls.Config
	http    *http.Server
	ready   *handoff // to http
	listens []net.Listener
	group   sync.WaitGroup

	mu   sync.Mutex
	taps []*tap
}

type tapKey struct{}

// StartServer listens in the network namespace that the calling thread is in.
func StartServer() (*Server, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	s := &Server{
		config: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}},
		ready:  &handoff{conns: make(chan net.Conn), closed: make(chan struct{})},
	}
	// What it gets is the plaintext of connections, whose preface tells HTTP/2.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:   http.HandlerFunc(s.answer),
		ErrorLog:  log.New(io.Discard, "", 0),
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 250},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if p, ok := c.(plainConn); ok {
				ctx = context.WithValue(ctx, tapKey{}, p.tap)
			}
			return ctx
		},
	}
	for _, port := range []uint16{PortTLS, PortPlain} {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("starting the server: %w", err), s.Close())
		}
		s.listens = append(s.listens, l)
		s.group.Go(func() { s.accept(l, port) })
	}
	s.group.Go(func() {
		s.http.Serve(s.ready) //nolint:errcheck // ends when the server is closed
	})
	return s, nil
}

// Close ends the server and its connections.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listens {
		errs = append(errs, l.Close())
	}
	errs = append(errs, s.http.Close())
	s.ready.Close()
	for _, t := range s.taken() {
		t.raw.Close()
	}
	s.group.Wait()
	return errors.Join(errs...)
}

func (s *Server) taken() []*tap {
	s.mu.Lock()
	defer s.mu.Unlock()
	taps := s.taps
	s.taps = nil
	return taps
}

// take returns the connections since the last call, once they have ended.
// Those that have not within patience are closed.
func (s *Server) take(patience time.Duration) []*tap {
	taps := s.taken()
	late := time.After(patience)
	for _, t := range taps {
		select {
		case <-t.done:
		case <-late:
			late = time.After(0)
			t.raw.Close()
			<-t.done
		}
	}
	return taps
}

func (s *Server) accept(l net.Listener, port uint16) {
	for {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		t := newTap(raw, port)
		s.mu.Lock()
		s.taps = append(s.taps, t)
		s.mu.Unlock()
		s.group.Go(func() { s.serve(t, port == PortTLS) })
	}
}

func (s *Server) serve(t *tap, secure bool) {
	c := t.raw
	if secure {
		t.secure = true
		over := tls.Server(wireConn{t.raw, t}, s.config)
		if err := over.Handshake(); err != nil {
			t.raw.Close()
			close(t.done)
			return
		}
		t.state = over.ConnectionState()
		if t.state.NegotiatedProtocol == "h2" {
			t.startHTTP2()
		}
		c = over
	}
	s.ready.give(plainConn{closing{c, sync.OnceFunc(func() { close(t.done) })}, t})
}

// answer does what the request asks for, after it was read whole.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	t, _ := r.Context().Value(tapKey{}).(*tap)
	var m *message
	if t != nil && t.streams == nil { // HTTP/2's frames tell more
		m = t.begin(identify(r.URL.Path))
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	if m != nil {
		t.ended(m)
	}
	work, err := parseWork(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if work.Sleep > 0 {
		time.Sleep(work.Sleep)
	}
	if work.Chunks > 0 {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w).Flush
		for i := range work.Chunks {
			if i > 0 {
				time.Sleep(work.Gap)
			}
			fmt.Fprintf(w, "event: delta\ndata: {\"index\":%d}\n\n", i)
			if err := flush(); err != nil {
				return
			}
		}
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(work.Size))
	block := make([]byte, 16<<10)
	for left := work.Size; left > 0; left -= min(left, len(block)) {
		if _, err := w.Write(block[:min(left, len(block))]); err != nil {
			return
		}
	}
}

// handoff is a listener whose connections others have accepted.
type handoff struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (h *handoff) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		c.Close()
	}
}

func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handoff) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handoff) Addr() net.Addr { return &net.TCPAddr{} }

// closing says when a connection is closed.
type closing struct {
	net.Conn
	closed func()
}

func (c closing) Close() error {
	err := c.Conn.Close()
	c.closed()
	return err
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "truth"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

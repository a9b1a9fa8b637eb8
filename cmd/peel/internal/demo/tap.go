package demo

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path"
	"sync"
	"sync/atomic"
)

// listener puts a tap on each connection it accepts: below TLS it takes the
// times, above TLS it finds the requests. A handshake runs on the first read.
type listener struct {
	net.Listener
	book *book
	tls  *tls.Config // nil: none
}

func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	sock := &socket{Conn: accepted}
	if sock.in, err = newArrivals(accepted); err != nil {
		return nil, errors.Join(err, accepted.Close())
	}
	c := &conn{Conn: sock, sock: sock, book: l.book}
	sock.onWrite = c.stamp
	if l.tls != nil {
		secure := tls.Server(sock, l.tls)
		c.Conn, c.secure = secure, secure
	}
	return c, nil
}

// socket is a connection below TLS.
type socket struct {
	net.Conn
	in      *arrivals
	onWrite func(at int64)
	arrived atomic.Int64 // when what was read last came to the host
	writes  atomic.Int32
}

func (s *socket) Read(b []byte) (int, error) {
	n, at, err := s.in.read(b)
	if n > 0 {
		s.arrived.Store(at)
	}
	return n, err
}

func (s *socket) Write(b []byte) (int, error) {
	at := now()
	s.writes.Add(1)
	s.onWrite(at)
	return s.Conn.Write(b)
}

// conn is the same connection above TLS, as the HTTP server sees it. It must
// not embed *tls.Conn: net/http would take its methods for TLS of its own.
type conn struct {
	net.Conn
	sock   *socket
	secure *tls.Conn // nil: none
	book   *book

	// Of the reading goroutine only.
	shaken bool
	h2in   *h2Requests // nil: HTTP/1

	mu       sync.Mutex
	sequence int
	hello    int64
	flight   int64
	current  *Truth // HTTP/1: the request that what is written answers
	h2out    *h2Responses
	writing  []*Truth // whose response is in the write under way
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	if !c.shaken {
		c.shaken = true
		c.secured()
	}
	if c.h2in != nil {
		c.h2in.read(b[:n], c.sock.arrived.Load())
	}
	return n, err
}

// secured runs when the first bytes of plaintext are there.
func (c *conn) secured() {
	if c.secure == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock.writes.Load() != 1 {
		c.hello, c.flight = 0, 0 // a HelloRetryRequest came before the flight
	}
	if c.secure.ConnectionState().NegotiatedProtocol == "h2" {
		c.h2out = newH2Responses()
		c.h2in = newH2Requests(c)
	}
}

func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	switch {
	case c.h2out != nil:
		c.writing = c.h2out.write(b, c.writing[:0])
	case c.current != nil:
		c.writing = append(c.writing[:0], c.current)
	}
	c.mu.Unlock()
	// The stamps are put before the bytes leave, so that a client which has
	// its answer finds the truth of it complete.
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	c.writing = c.writing[:0]
	c.mu.Unlock()
	return n, err
}

// stamp runs on each write to the socket, before it.
func (c *conn) stamp(at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secure != nil && c.flight == 0 && c.sock.writes.Load() == 1 {
		c.hello, c.flight = c.sock.arrived.Load(), at
	}
	for _, page := range c.writing {
		c.book.wrote(page, at)
	}
}

// open begins the truth of a request on this connection.
func (c *conn) open(id string) *Truth {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	return c.book.open(id, Truth{Sequence: c.sequence, HelloArrived: c.hello, FlightWritten: c.flight})
}

// received runs in the handler of an HTTP/1 request, once its body is read:
// what is written from here on is its response.
func (c *conn) received(id string) {
	page := c.open(id)
	c.book.arrived(page, c.sock.arrived.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = page
}

// began runs when an HTTP/1 request's head is read: what is written from here
// on (100 Continue) does not belong to the request before it.
func (c *conn) began() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = nil
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connFrom(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// requestID is the last element of a request's path, which is how records and
// truth find each other: a path survives in a record, a query does not.
func requestID(target string) string { return path.Base(target) }

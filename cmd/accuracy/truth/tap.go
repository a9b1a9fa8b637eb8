package truth

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/http2"
)

// tap is what the server knows of a connection: which bytes on the wire are
// which message.
type tap struct {
	key  endpoint
	done chan struct{} // closed when the connection is
	raw  net.Conn

	mu       sync.Mutex
	secure   bool
	state    tls.ConnectionState
	wireIn   recordWalk
	wireOut  recordWalk
	dataFrom int64 // wire position of the first plaintext written; -1: none yet
	plainIn  int64
	plainOut int64
	written  int64 // of plainOut: the last writes may find the client gone

	streams        *streams // HTTP/2
	framesIn       frameWalk
	framesOut      frameWalk
	messages       []*message // HTTP/1.1
	answeringPlain *message
}

func newTap(raw net.Conn, port uint16) *tap {
	t := &tap{raw: raw, done: make(chan struct{}), dataFrom: -1}
	t.key.serverPort = port
	if addr, err := netip.ParseAddrPort(raw.RemoteAddr().String()); err == nil {
		t.key.clientPort = addr.Port()
		t.key.ipv6 = addr.Addr().Unmap().Is6()
	}
	return t
}

// startHTTP2 is called before any plaintext passes.
func (t *tap) startHTTP2() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams = newStreams()
	t.framesIn.skip = len(http2.ClientPreface)
	t.framesIn.onFrame = t.streams.request
	t.framesOut.onFrame = t.streams.answer
}

// begin says that the request of an HTTP/1.1 connection that is being read is
// id's. All that is written from now on answers it.
func (t *tap) begin(id string) *message {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &message{id: id}
	if n := len(t.messages); n > 0 {
		m.request.lo = t.messages[n-1].request.hi
	}
	t.messages = append(t.messages, m)
	t.answeringPlain = m
	return m
}

// ended says that the request has been read: a client that does not pipeline
// has sent nothing behind it.
func (t *tap) ended(m *message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.request.hi, m.whole = t.plainIn, true
}

// wireConn is under TLS.
type wireConn struct {
	net.Conn
	tap *tap
}

func (c wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.mu.Lock()
	c.tap.wireIn.feed(b[:n])
	c.tap.mu.Unlock()
	return n, err
}

func (c wireConn) Write(b []byte) (int, error) {
	// Before the bytes leave: they may be answered before Write returns.
	c.tap.mu.Lock()
	c.tap.wireOut.feed(b)
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}

// plainConn is over TLS, or is the connection itself.
type plainConn struct {
	net.Conn
	tap *tap
}

func (c plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	t := c.tap
	t.mu.Lock()
	t.plainIn += int64(n)
	if t.streams != nil {
		t.framesIn.feed(b[:n])
	}
	t.mu.Unlock()
	return n, err
}

func (c plainConn) Write(b []byte) (int, error) {
	t := c.tap
	t.mu.Lock()
	if t.dataFrom < 0 {
		t.dataFrom = t.wireOut.pos
	}
	if t.streams != nil {
		t.framesOut.feed(b)
	} else if m := t.answeringPlain; m != nil {
		m.answer = append(m.answer, span{t.plainOut, t.plainOut + int64(len(b))})
	}
	t.plainOut += int64(len(b))
	t.mu.Unlock()
	n, err := c.Conn.Write(b)
	t.mu.Lock()
	t.written += int64(n)
	t.mu.Unlock()
	return n, err
}

// mappings tell the wire's bytes from the plaintext's, both ways.
func (t *tap) mappings() (in, out mapping) {
	if !t.secure {
		return mapping{direct: true}, mapping{direct: true}
	}
	skip := 0
	if t.state.Version == tls.VersionTLS13 {
		skip = 1 // the client's Finished
	}
	more := overhead(t.state.Version, t.state.CipherSuite)
	return newMapping(t.wireIn.records, 0, skip, more), newMapping(t.wireOut.records, max(t.dataFrom, 0), 0, more)
}

// sum is how much plaintext a mapping has.
func (m mapping) sum() int64 {
	if len(m.end) == 0 {
		return 0
	}
	return m.end[len(m.end)-1]
}

// all returns the connection's messages.
func (t *tap) all() []*message {
	if t.streams != nil {
		return t.streams.messages
	}
	return t.messages
}

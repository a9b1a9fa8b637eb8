package demo

import (
	"sync"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

// maxRequests bounds what the server remembers; far above what the steps need.
const maxRequests = 4096

// Truth is what the server saw of one request at its sockets, below TLS. Times
// are CLOCK_MONOTONIC nanoseconds, 0 for what was not seen. What is received
// has the kernel's time of its arrival, so that waking the server counts as
// the server's. They leave out what the kernel does after a write begins.
type Truth struct {
	Sequence int // of the request on its connection, from 1

	// Of the connection, on each of its requests; 0 without TLS, and when
	// the server asked for a second ClientHello.
	HelloArrived  int64 // the ClientHello's last byte came to the host
	FlightWritten int64 // the write of the server's flight was entered

	RequestArrived int64 // the request's last byte came to the host
	FirstWritten   int64 // the write with the response's first byte was entered
	LastWritten    int64 // the write with the response's last byte was entered
}

// Of returns the server's time in a phase: in tls from ClientHello to server
// flight, in wait from the request's last byte to the response's first, in
// receive from the response's first byte to its last. It is false for any
// other phase, for one that was not seen, and for the handshake of a
// connection that an earlier request had opened.
func (t Truth) Of(p exchange.Phase) (time.Duration, bool) {
	var from, to int64
	switch p {
	case exchange.TLS:
		if t.Sequence != 1 {
			return 0, false
		}
		from, to = t.HelloArrived, t.FlightWritten
	case exchange.Wait:
		from, to = t.RequestArrived, t.FirstWritten
	case exchange.Receive:
		from, to = t.FirstWritten, t.LastWritten
	}
	if from == 0 || to == 0 {
		return 0, false
	}
	return time.Duration(to - from), true
}

// book holds the truth of each request id; a request with an id that was
// there before takes its place.
type book struct {
	mu   sync.Mutex
	max  int
	lost int
	byID map[string]*Truth
}

func newBook(max int) *book { return &book{max: max, byID: make(map[string]*Truth)} }

// open begins a page. It is never nil: one too many is filled and forgotten.
func (b *book) open(id string, t Truth) *Truth {
	b.mu.Lock()
	defer b.mu.Unlock()
	page := &t
	if _, known := b.byID[id]; !known && len(b.byID) >= b.max {
		b.lost++
		return page
	}
	b.byID[id] = page
	return page
}

func (b *book) arrived(page *Truth, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	page.RequestArrived = at
}

// wrote notes a write that holds a part of the response.
func (b *book) wrote(page *Truth, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if page.FirstWritten == 0 {
		page.FirstWritten = at
	}
	page.LastWritten = at
}

func (b *book) truth(id string) (Truth, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	page, ok := b.byID[id]
	if !ok {
		return Truth{}, false
	}
	return *page, true
}

func (b *book) shed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

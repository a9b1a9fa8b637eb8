package demo

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// What is followed of one connection. The server refuses more streams at once
// and resets what it refuses, so only a broken client comes near.
const (
	maxBlock   = 64 << 10
	maxStreams = 1000
)

const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frameHeader is a frame's, with the types and flags that matter here (RFC
// 9113, sections 4.1 and 6).
type frameHeader struct {
	length int
	kind   uint8
	flags  uint8
	stream uint32
}

const frameHeaderLen = 9

const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRSTStream    = 0x3
	frameContinuation = 0x9
)

const (
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

func (h frameHeader) has(flag uint8) bool { return h.flags&flag != 0 }

// frames splits a stream of HTTP/2 frames that comes in arbitrary pieces.
type frames struct {
	skip int // of the client's preface
	head []byte
	left int
	cur  frameHeader
}

// feed calls part for each stretch of a frame in b: its payload's next bytes
// (maybe none yet), and whether the frame ends with them.
func (f *frames) feed(b []byte, part func(h frameHeader, payload []byte, end bool)) {
	n := min(f.skip, len(b))
	f.skip -= n
	b = b[n:]
	for len(b) > 0 {
		if f.left == 0 {
			n := min(frameHeaderLen-len(f.head), len(b))
			f.head = append(f.head, b[:n]...)
			b = b[n:]
			if len(f.head) < frameHeaderLen {
				return
			}
			f.cur = frameHeader{
				length: int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2]),
				kind:   f.head[3],
				flags:  f.head[4],
				stream: binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1),
			}
			f.head = f.head[:0]
			f.left = f.cur.length
		}
		n := min(f.left, len(b))
		f.left -= n
		part(f.cur, b[:n], f.left == 0)
		b = b[n:]
	}
}

// h2Requests finds the requests in what a client sends.
type h2Requests struct {
	frames frames
	conn   *conn
	hpack  *hpack.Decoder
	block  []byte
	ends   bool // the block's HEADERS had END_STREAM
	open   map[uint32]*Truth
	path   string
	broken bool // what follows cannot be read; no truth is better than a wrong one
}

func newH2Requests(c *conn) *h2Requests {
	r := &h2Requests{
		frames: frames{skip: len(clientPreface)},
		conn:   c,
		open:   make(map[uint32]*Truth),
	}
	r.hpack = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			r.path, _, _ = strings.Cut(f.Value, "?")
		}
	})
	return r
}

// read follows b, whose last byte came to the host at that time.
func (r *h2Requests) read(b []byte, at int64) {
	r.frames.feed(b, func(h frameHeader, payload []byte, end bool) {
		if !r.broken {
			r.part(h, payload, end, at)
		}
	})
}

func (r *h2Requests) part(h frameHeader, payload []byte, end bool, at int64) {
	switch h.kind {
	case frameHeaders, frameContinuation:
		if len(r.block)+len(payload) > maxBlock {
			r.broken = true
			return
		}
		r.block = append(r.block, payload...)
		if !end {
			return
		}
		if h.kind == frameHeaders {
			r.ends = h.has(flagEndStream)
			r.block = fragment(h, r.block)
		}
		if h.has(flagEndHeaders) {
			r.headers(h.stream, at)
		}
	case frameData:
		if end && h.has(flagEndStream) {
			r.ended(h.stream, at)
		}
	case frameRSTStream:
		delete(r.open, h.stream)
		r.conn.answers(h.stream, nil)
	}
}

func (r *h2Requests) headers(stream uint32, at int64) {
	r.path = ""
	_, err := r.hpack.Write(r.block)
	r.block = r.block[:0]
	if err != nil || r.hpack.Close() != nil {
		r.broken = true
		return
	}
	if r.path != "" && len(r.open) < maxStreams { // else trailers
		page := r.conn.open(requestID(r.path))
		r.open[stream] = page
		r.conn.answers(stream, page)
	}
	if r.ends {
		r.ended(stream, at)
	}
}

func (r *h2Requests) ended(stream uint32, at int64) {
	if page, ok := r.open[stream]; ok {
		r.conn.book.arrived(page, at)
		delete(r.open, stream)
	}
}

// fragment strips padding and priority off a HEADERS payload (RFC 9113,
// section 6.2).
func fragment(h frameHeader, b []byte) []byte {
	pad := 0
	if h.has(flagPadded) && len(b) > 0 {
		pad, b = int(b[0]), b[1:]
	}
	if h.has(flagPriority) {
		b = b[min(5, len(b)):]
	}
	return b[:max(len(b)-pad, 0)]
}

// h2Responses finds the responses in what the server sends.
type h2Responses struct {
	frames frames
	open   map[uint32]*Truth
}

func newH2Responses() *h2Responses { return &h2Responses{open: make(map[uint32]*Truth)} }

// write appends to pages whose response has bytes in b. Other frames of a
// stream (WINDOW_UPDATE, RST_STREAM) are no part of a response.
func (r *h2Responses) write(b []byte, pages []*Truth) []*Truth {
	r.frames.feed(b, func(h frameHeader, _ []byte, end bool) {
		page, ok := r.open[h.stream]
		if !ok {
			return
		}
		switch h.kind {
		case frameHeaders, frameContinuation, frameData:
			if !slices.Contains(pages, page) {
				pages = append(pages, page)
			}
			// The bit means END_STREAM on both, and nothing on CONTINUATION.
			if end && h.kind != frameContinuation && h.has(flagEndStream) {
				delete(r.open, h.stream)
			}
		case frameRSTStream:
			delete(r.open, h.stream)
		}
	})
	return pages
}

// answers says that what is written on the stream belongs to page; nil: to
// none.
func (c *conn) answers(stream uint32, page *Truth) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if page == nil {
		delete(c.h2out.open, stream)
	} else if len(c.h2out.open) < maxStreams {
		c.h2out.open[stream] = page
	}
}

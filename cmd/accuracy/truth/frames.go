package truth

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const frameHeader = 9

// span is a stretch of a direction's plaintext.
type span struct{ lo, hi int64 }

// frameWalk finds the HTTP/2 frames in a direction's plaintext.
type frameWalk struct {
	onFrame func(f frame)

	skip    int // of the client's preface
	pos     int64
	header  [frameHeader]byte
	have    int
	current frame
	left    int
	inside  bool
}

type frame struct {
	at      span
	kind    http2.FrameType
	flags   http2.Flags
	stream  uint32
	payload []byte // of HEADERS and CONTINUATION
}

func (w *frameWalk) feed(b []byte) {
	for {
		switch {
		case w.inside && w.left == 0:
			w.inside = false
			w.current.at.hi = w.pos
			w.onFrame(w.current)
		case len(b) == 0:
			return
		case w.skip > 0:
			n := min(w.skip, len(b))
			w.skip -= n
			w.pos += int64(n)
			b = b[n:]
		case w.inside:
			n := min(w.left, len(b))
			if w.current.kind == http2.FrameHeaders || w.current.kind == http2.FrameContinuation {
				w.current.payload = append(w.current.payload, b[:n]...)
			}
			w.left -= n
			w.pos += int64(n)
			b = b[n:]
		default:
			n := copy(w.header[w.have:], b)
			w.have += n
			w.pos += int64(n)
			b = b[n:]
			if w.have < frameHeader {
				continue
			}
			h := w.header[:]
			w.have, w.inside = 0, true
			w.left = int(h[0])<<16 | int(binary.BigEndian.Uint16(h[1:]))
			w.current = frame{
				at:     span{lo: w.pos - frameHeader},
				kind:   http2.FrameType(h[3]),
				flags:  http2.Flags(h[4]),
				stream: binary.BigEndian.Uint32(h[5:]) & (1<<31 - 1),
			}
		}
	}
}

// message is a request and the answer to it, by their plaintext.
type message struct {
	id      string
	stream  uint32
	request span
	whole   bool   // the request ended
	answer  []span // frames on HTTP/2, writes on HTTP/1.1
}

// streams follows the messages of an HTTP/2 connection from its frames.
type streams struct {
	messages []*message
	byStream map[uint32]*message
	decoder  *hpack.Decoder
	path     string
	block    []byte
	blockEnd bool // the block's HEADERS frame ends the stream
	err      error
}

func newStreams() *streams {
	s := &streams{byStream: make(map[uint32]*message)}
	s.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			s.path = f.Value
		}
	})
	return s
}

// request takes in a frame from the client.
func (s *streams) request(f frame) {
	switch f.kind {
	case http2.FrameHeaders:
		m := s.byStream[f.stream]
		if m == nil {
			m = &message{stream: f.stream, request: f.at}
			s.byStream[f.stream] = m
			s.messages = append(s.messages, m)
		}
		fragment, err := fragment(f)
		s.err = errors.Join(s.err, err)
		s.block = append(s.block[:0], fragment...)
		s.blockEnd = f.flags.Has(http2.FlagHeadersEndStream)
	case http2.FrameContinuation:
		s.block = append(s.block, f.payload...)
	case http2.FrameData:
		if m := s.byStream[f.stream]; m != nil {
			m.request.hi = f.at.hi
			m.whole = f.flags.Has(http2.FlagDataEndStream)
		}
		return
	default:
		return
	}
	// END_HEADERS is the same bit in both.
	if f.flags.Has(http2.FlagHeadersEndHeaders) {
		m := s.byStream[f.stream]
		s.path = ""
		if _, err := s.decoder.Write(s.block); err != nil {
			s.err = errors.Join(s.err, err)
		}
		s.err = errors.Join(s.err, s.decoder.Close())
		if m == nil {
			return
		}
		if m.id == "" {
			m.id = identify(s.path)
		}
		m.request.hi = f.at.hi
		m.whole = s.blockEnd
	}
}

// answer takes in a frame to the client.
func (s *streams) answer(f frame) {
	switch f.kind {
	case http2.FrameHeaders, http2.FrameContinuation, http2.FrameData:
		if m := s.byStream[f.stream]; m != nil {
			m.answer = append(m.answer, f.at)
		}
	}
}

// fragment is the header block in a HEADERS frame (RFC 9113, section 6.2).
func fragment(f frame) ([]byte, error) {
	b, padding := f.payload, 0
	if f.flags.Has(http2.FlagHeadersPadded) {
		if len(b) < 1 {
			return nil, errors.New("a HEADERS frame has no pad length")
		}
		padding, b = int(b[0]), b[1:]
	}
	if f.flags.Has(http2.FlagHeadersPriority) {
		if len(b) < 5 {
			return nil, errors.New("a HEADERS frame has no priority")
		}
		b = b[5:]
	}
	if padding > len(b) {
		return nil, errors.New("a HEADERS frame is padded beyond its end")
	}
	return b[:len(b)-padding], nil
}

// Package http2 reads HTTP/2 frames (RFC 9113) and HPACK header blocks
// (RFC 7541). It is made for a reader beside the connection, that may have
// come late or missed a part: it goes on where an endpoint would give up, and
// says what it does not know.
package http2

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// FrameHeaderLen is the length of a frame header, RFC 9113 section 4.1.
const FrameHeaderLen = 9

// Preface is what a client sends first, RFC 9113 section 3.4.
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// FrameType is a frame's type, RFC 9113 section 6.
type FrameType uint8

// The frame types.
const (
	Data FrameType = iota
	Headers
	Priority
	RSTStream
	Settings
	PushPromise
	Ping
	GoAway
	WindowUpdate
	Continuation
)

// String returns the type's name in RFC 9113.
func (t FrameType) String() string {
	names := [...]string{"DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE",
		"PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("0x%02x", uint8(t))
}

// The flags. What a bit means depends on the type.
const (
	EndStream   uint8 = 0x1  // DATA, HEADERS
	Ack         uint8 = 0x1  // SETTINGS, PING
	EndHeaders  uint8 = 0x4  // HEADERS, PUSH_PROMISE, CONTINUATION
	Padded      uint8 = 0x8  // DATA, HEADERS, PUSH_PROMISE
	HasPriority uint8 = 0x20 // HEADERS
)

// Settings that matter beside the connection, RFC 9113 section 6.5.2.
const (
	SettingHeaderTableSize      uint16 = 0x1
	SettingMaxConcurrentStreams uint16 = 0x3
	SettingInitialWindowSize    uint16 = 0x4
	SettingMaxFrameSize         uint16 = 0x5
)

var (
	// ErrShort says that bytes are missing at the end.
	ErrShort = errors.New("too few bytes")
	// ErrMalformed says that the bytes break the format.
	ErrMalformed = errors.New("malformed")
)

// FrameHeader is a frame's header.
type FrameHeader struct {
	Length   uint32 // of the payload, below 1<<24
	Type     FrameType
	Flags    uint8
	StreamID uint32 // below 1<<31
}

// Has reports whether flag is set.
func (h FrameHeader) Has(flag uint8) bool { return h.Flags&flag != 0 }

// ParseFrameHeader parses the FrameHeaderLen bytes at the start of b.
func ParseFrameHeader(b []byte) (FrameHeader, error) {
	if len(b) < FrameHeaderLen {
		return FrameHeader{}, fmt.Errorf("parsing frame header of %d bytes: %w", len(b), ErrShort)
	}
	return FrameHeader{
		Length:   uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]),
		Type:     FrameType(b[3]),
		Flags:    b[4],
		StreamID: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}, nil
}

// HeaderFragment returns the part of a header block in the payload of a
// HEADERS, PUSH_PROMISE or CONTINUATION frame: without padding, priority and
// promised stream. It is a part of payload.
func HeaderFragment(h FrameHeader, payload []byte) ([]byte, error) {
	var fixed int // bytes before the fragment, after the pad length
	switch h.Type {
	case Headers:
		if h.Has(HasPriority) {
			fixed = 5
		}
	case PushPromise:
		fixed = 4
	case Continuation:
		h.Flags &^= Padded // it cannot be: RFC 9113 section 6.10
	default:
		return nil, fmt.Errorf("reading header block from %v: %w", h.Type, ErrMalformed)
	}
	if uint32(len(payload)) < h.Length {
		return nil, fmt.Errorf("reading %v of %d bytes from %d: %w", h.Type, h.Length, len(payload), ErrShort)
	}
	payload = payload[:h.Length]
	var pad int
	if h.Has(Padded) {
		if len(payload) == 0 {
			return nil, fmt.Errorf("reading %v pad length: %w", h.Type, ErrMalformed)
		}
		pad, payload = int(payload[0]), payload[1:]
	}
	if fixed+pad > len(payload) {
		return nil, fmt.Errorf("cutting %d bytes of padding from %v: %w", pad, h.Type, ErrMalformed)
	}
	return payload[fixed : len(payload)-pad], nil
}

// ParseSettings calls each for every setting of a SETTINGS payload, in order
// (RFC 9113 section 6.5.1). A setting that is cut is an error, after those
// before it.
func ParseSettings(payload []byte, each func(id uint16, v uint32)) error {
	for ; len(payload) >= 6; payload = payload[6:] {
		each(binary.BigEndian.Uint16(payload), binary.BigEndian.Uint32(payload[2:]))
	}
	if len(payload) > 0 {
		return fmt.Errorf("parsing setting: %w", ErrShort)
	}
	return nil
}

// ParseGoAway returns the highest stream that the sender of a GOAWAY payload
// may have acted on, and its error code (RFC 9113 section 6.8). The debug data
// behind may be missing.
func ParseGoAway(payload []byte) (lastStreamID, code uint32, err error) {
	if len(payload) < 8 {
		return 0, 0, fmt.Errorf("parsing GOAWAY: %w", ErrShort)
	}
	return binary.BigEndian.Uint32(payload) &^ (1 << 31), binary.BigEndian.Uint32(payload[4:]), nil
}

// ParseRSTStream returns the error code of an RST_STREAM payload (RFC 9113
// section 6.4).
func ParseRSTStream(payload []byte) (code uint32, err error) {
	if len(payload) < 4 {
		return 0, fmt.Errorf("parsing RST_STREAM: %w", ErrShort)
	}
	return binary.BigEndian.Uint32(payload), nil
}

// ParseWindowUpdate returns the bytes by which a WINDOW_UPDATE payload opens
// the window, below 1<<31 (RFC 9113 section 6.9).
func ParseWindowUpdate(payload []byte) (increment uint32, err error) {
	if len(payload) < 4 {
		return 0, fmt.Errorf("parsing WINDOW_UPDATE: %w", ErrShort)
	}
	return binary.BigEndian.Uint32(payload) &^ (1 << 31), nil
}

// ErrCodeName returns an error code's name in RFC 9113 section 7, or its
// number in hex where it has none.
func ErrCodeName(code uint32) string {
	names := [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR",
		"SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL",
		"COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}
	if uint64(code) < uint64(len(names)) {
		return names[code]
	}
	return fmt.Sprintf("0x%x", code)
}

// Package http1 parses HTTP/1.0 and 1.1 message heads (RFC 9112). It is made
// for a reader beside the connection: lenient where implementations are, and
// strict where leniency would make the message's length a guess.
package http1

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/peel-dev/peel/collector/wire/header"
)

// The bounds of a head.
const (
	MaxHead   = 64 << 10 // bytes, the blank line included
	MaxFields = 200
)

var (
	// ErrIncomplete says that the head has no blank line yet: more bytes may
	// complete it.
	ErrIncomplete = errors.New("incomplete head")
	// ErrTooLarge says that a head exceeds MaxHead or MaxFields.
	ErrTooLarge = errors.New("head too large")
	// ErrMalformed says that the bytes are no HTTP/1 head.
	ErrMalformed = errors.New("malformed head")
)

// Head is the head of a request or a response.
type Head struct {
	Request bool
	Method  string // of a request
	Target  string // of a request, as sent: its query may hold secrets, see Path
	Version string // "1.0", "1.1"
	Status  int    // of a response, 100 to 999

	Fields []header.Field // in order; a secret's value is header.Present
	Len    int            // bytes up to and with the blank line

	// ContentLength is -1 where there is none, or where Transfer-Encoding
	// overrides it (RFC 9112 section 6.3).
	ContentLength int64
	Chunked       bool // the last transfer coding is chunked
	Close         bool // the connection ends with this message (section 9.3)
	Upgrade       bool // a protocol change is asked for, or this is the 101 that grants it
}

// Path returns the target's path, without query: "" for a response.
func (h *Head) Path() string { return header.Path(h.Target) }

// Authority returns the host and port that a request is for: the target's if
// it has one, else the Host field's (RFC 9112 section 3.2).
func (h *Head) Authority() string {
	if a := header.Authority(h.Target); a != "" || !h.Request {
		return a
	}
	host, _ := h.Get("host")
	return header.Authority(host)
}

// Get returns the value of the first field with the name, given in lower case.
func (h *Head) Get(name string) (string, bool) {
	for _, f := range h.Fields {
		if f.Name == name {
			return f.Value, true
		}
	}
	return "", false
}

// ParseHead parses the head at the start of b. A bare LF ends a line too,
// empty lines before the head are skipped (RFC 9112 section 2.2), and folded
// lines are joined by a space (section 5.2). Its errors wrap ErrIncomplete,
// ErrTooLarge or ErrMalformed. The Head does not refer to b.
func ParseHead(b []byte) (Head, error) {
	p := parser{in: b[:min(len(b), MaxHead)], full: len(b) >= MaxHead}
	h := Head{ContentLength: -1}
	line, err := p.line()
	for err == nil && len(line) == 0 {
		line, err = p.line()
	}
	if err != nil {
		return Head{}, err
	}
	if err := h.start(line); err != nil {
		return Head{}, err
	}
	for {
		if line, err = p.line(); err != nil {
			return Head{}, err
		}
		if len(line) == 0 {
			break
		}
		if err := h.field(line); err != nil {
			return Head{}, err
		}
	}
	h.Len = p.at
	if err := h.frame(); err != nil {
		return Head{}, err
	}
	return h, nil
}

type parser struct {
	in   []byte
	at   int
	full bool // in is as long as a head may be
}

// line returns the next line without its end.
func (p *parser) line() ([]byte, error) {
	rest := p.in[p.at:]
	n := bytes.IndexByte(rest, '\n')
	switch {
	case n >= 0:
		p.at += n + 1
		return bytes.TrimSuffix(rest[:n], []byte("\r")), nil
	case p.full:
		return nil, fmt.Errorf("reading line: %w", ErrTooLarge)
	case p.at == 0 && !plausible(rest):
		return nil, fmt.Errorf("reading start line: %w", ErrMalformed)
	default:
		return nil, ErrIncomplete
	}
}

// plausible reports whether b can begin a start line, so that a stream of
// something else is told apart before it ever has a line end.
func plausible(b []byte) bool {
	for i, c := range b {
		if c == '\r' && i == len(b)-1 {
			return true
		}
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// start parses a request line or a status line (RFC 9112 sections 3 and 4).
func (h *Head) start(line []byte) error {
	if rest, ok := bytes.CutPrefix(line, []byte("HTTP/")); ok {
		version, rest, _ := bytes.Cut(rest, []byte(" "))
		code, _, _ := bytes.Cut(rest, []byte(" "))
		status, err := strconv.ParseUint(string(code), 10, 16)
		if err != nil || len(code) != 3 || status < 100 {
			return fmt.Errorf("parsing status code %.8q: %w", code, ErrMalformed)
		}
		h.Status = int(status)
		return h.version(version)
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	space := bytes.LastIndexByte(rest, ' ')
	if !token(method) || len(method) > 32 || space <= 0 {
		return fmt.Errorf("parsing request line: %w", ErrMalformed)
	}
	target := rest[:space]
	for _, c := range target {
		if c <= ' ' || c == 0x7f {
			return fmt.Errorf("parsing request target: %w", ErrMalformed)
		}
	}
	version, ok := bytes.CutPrefix(rest[space+1:], []byte("HTTP/"))
	if !ok {
		return fmt.Errorf("parsing request line: %w", ErrMalformed)
	}
	h.Request, h.Method, h.Target = true, methodName(method), string(target)
	return h.version(version)
}

func (h *Head) version(v []byte) error {
	switch string(v) {
	case "1.1":
		h.Version = "1.1"
	case "1.0":
		h.Version = "1.0"
	default:
		return fmt.Errorf("parsing version %.8q: %w", v, ErrMalformed)
	}
	return nil
}

// methodName spares the common methods an allocation.
func methodName(b []byte) string {
	switch string(b) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	case "PUT":
		return "PUT"
	case "HEAD":
		return "HEAD"
	case "DELETE":
		return "DELETE"
	}
	return string(b)
}

// field parses one field line, or goes on with the field before (RFC 9112
// section 5).
func (h *Head) field(line []byte) error {
	if line[0] == ' ' || line[0] == '\t' {
		if len(h.Fields) == 0 {
			return fmt.Errorf("unfolding line without a field: %w", ErrMalformed)
		}
		last := &h.Fields[len(h.Fields)-1]
		more := bytes.Trim(line, " \t\r")
		if last.Value == header.Present && header.Secret(last.Name) || len(more) == 0 {
			return nil
		}
		last.Value = strings.TrimSpace(last.Value + " " + string(more))
		return nil
	}
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || !token(name) {
		return fmt.Errorf("parsing field name %.16q: %w", name, ErrMalformed)
	}
	if len(h.Fields) == MaxFields {
		return fmt.Errorf("parsing field %d: %w", MaxFields+1, ErrTooLarge)
	}
	if h.Fields == nil {
		h.Fields = make([]header.Field, 0, 16)
	}
	f := header.Field{Name: header.Name(name), Value: header.Present}
	if !header.Secret(f.Name) {
		f.Value = string(bytes.Trim(value, " \t\r"))
	}
	h.Fields = append(h.Fields, f)
	return nil
}

// frame derives what the fields say of the message's length and of what
// becomes of the connection.
func (h *Head) frame() error {
	var coded, keepAlive, upgrade bool
	for _, f := range h.Fields {
		switch f.Name {
		case "content-length":
			if err := h.contentLength(f.Value); err != nil {
				return err
			}
		case "transfer-encoding":
			coded = true
			for coding := range strings.SplitSeq(f.Value, ",") {
				if coding = strings.TrimSpace(coding); coding != "" {
					h.Chunked = strings.EqualFold(coding, "chunked")
				}
			}
		case "connection":
			for option := range strings.SplitSeq(f.Value, ",") {
				switch strings.ToLower(strings.TrimSpace(option)) {
				case "close":
					h.Close = true
				case "keep-alive":
					keepAlive = true
				case "upgrade":
					upgrade = true
				}
			}
		}
	}
	if coded {
		h.ContentLength = -1
	}
	if h.Version == "1.0" && !keepAlive {
		h.Close = true
	}
	_, named := h.Get("upgrade")
	h.Upgrade = h.Status == 101 || h.Request && upgrade && named
	return nil
}

// contentLength takes a Content-Length's value: a number, or the same one
// several times (RFC 9112 section 6.3). Two that differ leave the message
// without a length that could be trusted.
func (h *Head) contentLength(value string) error {
	for v := range strings.SplitSeq(value, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 63)
		if err != nil {
			return fmt.Errorf("parsing content-length %.24q: %w", value, ErrMalformed)
		}
		if h.ContentLength >= 0 && h.ContentLength != int64(n) {
			return fmt.Errorf("comparing content-lengths %d and %d: %w", h.ContentLength, n, ErrMalformed)
		}
		h.ContentLength = int64(n)
	}
	return nil
}

// token reports whether b is a token (RFC 9110 section 5.6.2).
func token(b []byte) bool {
	for _, c := range b {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z', '0' <= c && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(b) > 0
}

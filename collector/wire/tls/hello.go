// Package tls parses the hello messages of TLS 1.0 to 1.3 handshakes (RFC
// 5246, RFC 8446), which travel in the clear, and names what they negotiate.
package tls

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/cryptobyte"
)

// MaxHello is the most bytes of a hello message that are looked at.
const MaxHello = 64 << 10

// Handshake message types, RFC 8446 section 4.
const (
	typeClientHello = 1
	typeServerHello = 2
)

// Extensions that are looked into.
const (
	extServerName          = 0  // RFC 6066
	extSupportedGroups     = 10 // RFC 8422, RFC 8446
	extSignatureAlgorithms = 13 // RFC 8446
	extALPN                = 16 // RFC 7301
	extSessionTicket       = 35 // RFC 5077
	extPreSharedKey        = 41 // RFC 8446
	extSupportedVersions   = 43 // RFC 8446
	extKeyShare            = 51 // RFC 8446
)

var (
	// ErrTruncated says that the message goes on behind the bytes given.
	ErrTruncated = errors.New("truncated message")
	// ErrMalformed says that the bytes break the format.
	ErrMalformed = errors.New("malformed message")
)

// ClientHello is what a client offers. The lists are in its order and hold
// its GREASE values (RFC 8701) too.
type ClientHello struct {
	Version             uint16 // highest offered: of supported_versions if there, else the legacy one; 0: not read
	SNI                 string // as sent; printable ASCII
	ALPN                []string
	CipherSuites        []uint16
	Groups              []uint16
	KeyShares           []uint16 // the groups of the key shares
	SignatureAlgorithms []uint16
	Extensions          []uint16
	SessionIDLen        int
	PSK                 bool // offers to resume by a pre-shared key (TLS 1.3)

	sessionID []byte
	ticket    bool // offers a session ticket (TLS 1.2)
	whole     bool
	// versionSure: Version is not the legacy one, which 1.3 leaves at 1.2.
	versionSure bool
}

// ServerHello is what the server chose.
type ServerHello struct {
	Version           uint16 // 0: not read
	CipherSuite       uint16
	ALPN              string // TLS 1.2 only: TLS 1.3 encrypts it
	Group             uint16 // TLS 1.3 only, 0: none
	HelloRetryRequest bool   // not the answer yet: it asks for another ClientHello
	PSK               bool   // the client's pre-shared key was accepted (TLS 1.3)
	SessionIDLen      int

	sessionID []byte
	whole     bool
	// versionSure: Version is not the legacy one, which 1.3 leaves at 1.2.
	versionSure bool
}

// Resumed reports whether the handshake resumes an earlier session, and
// whether that can be told: by the pre-shared key in TLS 1.3 (RFC 8446
// section 2.2), by the session id that the server repeats in TLS 1.2 (RFC
// 5246 section 7.3). A ticket without a session id leaves it open (RFC 5077
// section 3.4).
func Resumed(c *ClientHello, s *ServerHello) (resumed, known bool) {
	switch {
	case s.HelloRetryRequest, !s.whole:
		return false, false
	case s.Version >= 0x0304:
		return s.PSK, true
	case len(c.sessionID) == 0:
		return false, c.whole && !c.ticket
	default:
		return bytes.Equal(c.sessionID, s.sessionID), true
	}
}

// message is a handshake message that may be cut. Reading past the cut gives
// what is there and notes it; so does a length that exceeds what holds it.
type message struct {
	cut       bool // the bytes end before the message does
	malformed bool
}

// vector reads a vector with a length prefix of so many bytes. A short one
// gives the bytes there are.
func (m *message) vector(s *cryptobyte.String, lenBytes int) cryptobyte.String {
	v, _ := m.read(s, lenBytes)
	return v
}

// whole reads a vector like vector does, but gives nothing of a short one.
func (m *message) whole(s *cryptobyte.String, lenBytes int) []byte {
	v, ok := m.read(s, lenBytes)
	if !ok {
		return nil
	}
	return v
}

func (m *message) read(s *cryptobyte.String, lenBytes int) (v []byte, ok bool) {
	var prefix []byte
	if !s.ReadBytes(&prefix, lenBytes) {
		m.short()
		*s = nil
		return nil, false
	}
	var n int
	for _, b := range prefix {
		n = n<<8 | int(b)
	}
	ok = n <= len(*s)
	if !ok {
		m.short()
		n = len(*s)
	}
	s.ReadBytes(&v, n)
	return v, ok
}

func (m *message) uint16(s *cryptobyte.String) uint16 {
	var v uint16
	if !s.ReadUint16(&v) {
		m.short()
		*s = nil
	}
	return v
}

// uint16s reads all of s.
func (m *message) uint16s(s cryptobyte.String) []uint16 {
	vs := make([]uint16, 0, len(s)/2)
	for len(s) >= 2 {
		vs = append(vs, m.uint16(&s))
	}
	if len(s) > 0 {
		m.short()
	}
	return vs
}

// skip reads n bytes.
func (m *message) skip(s *cryptobyte.String, n int) []byte {
	var v []byte
	if !s.ReadBytes(&v, n) {
		m.short()
		*s = nil
	}
	return v
}

// short notes that something ends before it should: the message's fault,
// unless the message itself is cut.
func (m *message) short() { m.malformed = m.malformed || !m.cut }

func (m *message) err(what string) error {
	switch {
	case m.malformed:
		return fmt.Errorf("parsing %s: %w", what, ErrMalformed)
	case m.cut:
		return fmt.Errorf("parsing %s: %w", what, ErrTruncated)
	}
	return nil
}

// body returns the handshake message's body and whether its type is the one
// that is wanted. What follows the message is left out.
func (m *message) body(msg []byte, kind uint8) (cryptobyte.String, bool) {
	if len(msg) > MaxHello {
		msg = msg[:MaxHello]
	}
	if len(msg) == 0 {
		m.cut = true
		return nil, true
	}
	if msg[0] != kind {
		return nil, false
	}
	s := cryptobyte.String(msg[1:])
	m.cut = true // to begin with: a length that exceeds the bytes is no fault here
	body, ok := m.read(&s, 3)
	m.cut = !ok
	return body, true
}

// ParseClientHello parses a handshake message from its four-byte header on.
// When msg is cut it returns what could be read and an error that wraps
// ErrTruncated; when it is malformed, the same with ErrMalformed. It returns
// nil only when msg is another message.
func ParseClientHello(msg []byte) (*ClientHello, error) {
	var m message
	s, ok := m.body(msg, typeClientHello)
	if !ok {
		return nil, fmt.Errorf("parsing client hello of type %d: %w", msg[0], ErrMalformed)
	}
	h := new(ClientHello)
	h.Version = m.uint16(&s)
	m.skip(&s, 32) // random
	h.sessionID = bytes.Clone(m.whole(&s, 1))
	h.SessionIDLen = len(h.sessionID)
	h.CipherSuites = m.uint16s(m.vector(&s, 2))
	m.vector(&s, 1) // compression methods
	if len(s) > 0 { // RFC 5246 allows none
		for exts := m.vector(&s, 2); len(exts) > 0; {
			kind := m.uint16(&exts)
			if len(exts) == 0 {
				m.short()
				break
			}
			h.Extensions = append(h.Extensions, kind)
			h.extension(&m, kind, m.vector(&exts, 2))
		}
	}
	err := m.err("client hello")
	h.whole = err == nil
	if !h.whole && !h.versionSure {
		h.Version = 0
	}
	return h, err
}

func (h *ClientHello) extension(m *message, kind uint16, s cryptobyte.String) {
	switch kind {
	case extServerName:
		for list := m.vector(&s, 2); len(list) > 0; {
			kind := m.skip(&list, 1)
			if name := m.whole(&list, 2); kind[0] == 0 && h.SNI == "" {
				h.SNI = hostname(m, name)
			}
		}
	case extSupportedGroups:
		h.Groups = m.uint16s(m.vector(&s, 2))
	case extSignatureAlgorithms:
		h.SignatureAlgorithms = m.uint16s(m.vector(&s, 2))
	case extALPN:
		h.ALPN = nil
		for list := m.vector(&s, 2); len(list) > 0; {
			if name, ok := m.read(&list, 1); ok {
				h.ALPN = append(h.ALPN, string(name))
			}
		}
	case extSessionTicket:
		h.ticket = len(s) > 0
	case extPreSharedKey:
		h.PSK = true
	case extSupportedVersions:
		versions := slices.DeleteFunc(m.uint16s(m.whole(&s, 1)), grease)
		if len(versions) > 0 {
			h.Version = slices.Max(versions)
			h.versionSure = true
		}
	case extKeyShare:
		h.KeyShares = nil
		for list := m.vector(&s, 2); len(list) > 0; {
			var group uint16
			if !list.ReadUint16(&group) {
				m.short()
				break
			}
			h.KeyShares = append(h.KeyShares, group)
			m.vector(&list, 2)
		}
	}
}

// hostname returns a server name, "" if it cannot be one: it ends up on
// terminals.
func hostname(m *message, name []byte) string {
	for _, c := range name {
		if c <= ' ' || c > '~' {
			m.malformed = true
			return ""
		}
	}
	return string(name)
}

// retry is the random value of a HelloRetryRequest, RFC 8446 section 4.1.3.
const retry = "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91" +
	"\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c"

// ParseServerHello parses a handshake message from its four-byte header on;
// what follows it in the same record is left out. Its errors are those of
// ParseClientHello.
func ParseServerHello(msg []byte) (*ServerHello, error) {
	var m message
	s, ok := m.body(msg, typeServerHello)
	if !ok {
		return nil, fmt.Errorf("parsing server hello of type %d: %w", msg[0], ErrMalformed)
	}
	h := new(ServerHello)
	h.Version = m.uint16(&s)
	h.HelloRetryRequest = string(m.skip(&s, 32)) == retry
	h.sessionID = bytes.Clone(m.whole(&s, 1))
	h.SessionIDLen = len(h.sessionID)
	h.CipherSuite = m.uint16(&s)
	m.skip(&s, 1) // compression method
	if len(s) > 0 {
		for exts := m.vector(&s, 2); len(exts) > 0; {
			kind := m.uint16(&exts)
			h.extension(&m, kind, m.vector(&exts, 2))
		}
	}
	err := m.err("server hello")
	h.whole = err == nil
	if !h.whole && !h.versionSure {
		h.Version = 0
	}
	return h, err
}

func (h *ServerHello) extension(m *message, kind uint16, s cryptobyte.String) {
	switch kind {
	case extALPN:
		list := m.vector(&s, 2)
		h.ALPN = string(m.whole(&list, 1))
	case extPreSharedKey:
		h.PSK = true
	case extSupportedVersions:
		h.versionSure = s.ReadUint16(&h.Version)
		if !h.versionSure {
			m.short()
		}
	case extKeyShare:
		h.Group = m.uint16(&s)
	}
}

// grease reports whether v is reserved to keep servers tolerant, RFC 8701.
func grease(v uint16) bool { return v&0x0f0f == 0x0a0a && v>>8 == v&0xff }

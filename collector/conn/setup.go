package conn

import (
	"cmp"
	"slices"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/tls"
)

// TLS record types (RFC 8446 section 5.1) and handshake types (section 4).
const (
	recordCCS       = 20
	recordHandshake = 22
	recordData      = 23

	clientHello = 1
	serverHello = 2

	version12 = 0x0303
	version13 = 0x0304
)

// setup follows the TLS handshake by the records that the packets carry.
type setup struct {
	hello, serverFlight, flightEnd, secured int64

	helloEnd int64 // position after the ClientHello
	helloACK int64

	begun     bool // a TLS record was seen
	version   uint16
	retry     bool
	answered  bool // the ServerHello came
	ccsOut    bool
	ccsIn     bool
	resumed12 bool // TLS 1.2: the server's Finished comes first
}

// record takes in one TLS record of the handshake and says whether the
// server's name became known with it.
func (c *conn) record(ev *event.Record) (named bool) {
	s := &c.setup
	s.begun = true
	if s.secured != 0 {
		return false
	}
	if ev.Dir == event.Out {
		return c.recordOut(ev)
	}
	c.recordIn(ev)
	return false
}

func (c *conn) recordOut(ev *event.Record) (named bool) {
	s := &c.setup
	switch ev.Type {
	case recordHandshake:
		switch {
		case s.ccsOut && s.answered && s.version <= version12:
			if s.resumed12 {
				c.secure(ev.At)
			}
		case len(ev.Data) > 0 && ev.Data[0] == clientHello:
			if s.hello != 0 {
				return false
			}
			s.hello = ev.At
			s.helloEnd = c.tcp.out.pos(ev.Seq) + 5 + int64(ev.Length)
			return c.clientHello(ev.Data)
		}
	case recordCCS:
		s.ccsOut = true
	case recordData:
		if s.answered && s.version >= version13 {
			c.secure(ev.At)
		}
	}
	return false
}

func (c *conn) recordIn(ev *event.Record) {
	s := &c.setup
	switch ev.Type {
	case recordHandshake:
		switch {
		case s.answered && s.ccsIn && s.version <= version12:
			if !s.resumed12 {
				c.secure(ev.At)
			}
		case !s.answered:
			if s.serverFlight == 0 {
				s.serverFlight = ev.At
			}
			if len(ev.Data) >= 4 && ev.Data[0] == serverHello {
				c.serverHello(ev.Data)
			} else if s.retry {
				// The kernel side copies nothing after the
				// ChangeCipherSpec that goes with a retry.
				s.answered = true
			}
		}
	case recordCCS:
		// In TLS 1.2 who changes ciphers first tells a resumption (RFC 5246
		// section 7.3); in TLS 1.3 it says nothing.
		if s.answered && s.version <= version12 && !s.ccsIn {
			s.resumed12 = !s.ccsOut
			resumed := s.resumed12
			c.changeTLS(func(info *exchange.TLSInfo) { info.Resumed = &resumed })
		}
		s.ccsIn = true
	}
}

func (c *conn) secure(at int64) {
	c.setup.secured = at
	c.setup.flightEnd = min(c.tcp.lastIn, at)
}

// changeTLS replaces the TLS description, since records may share the old one.
func (c *conn) changeTLS(change func(*exchange.TLSInfo)) {
	var info exchange.TLSInfo
	if c.tls != nil {
		info = *c.tls
	}
	change(&info)
	c.tls = &info
}

func (c *conn) clientHello(msg []byte) (named bool) {
	h, err := tls.ParseClientHello(msg)
	if h == nil {
		return false
	}
	c.changeTLS(func(info *exchange.TLSInfo) {
		info.SNI = h.SNI
		info.ALPNOffered = slices.Clone(h.ALPN)
		if err == nil {
			info.JA4 = h.JA4('t')
		}
	})
	return h.SNI != ""
}

func (c *conn) serverHello(msg []byte) {
	s := &c.setup
	if n := 4 + (int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])); n < len(msg) {
		msg = msg[:n] // in TLS 1.2 the Certificate may follow
	}
	h, _ := tls.ParseServerHello(msg)
	if h == nil || h.Version == 0 {
		s.answered = true
		return
	}
	s.version = h.Version
	if h.HelloRetryRequest {
		// The flight that counts is the answer to the second ClientHello.
		s.retry = true
		s.serverFlight = 0
	} else {
		s.answered = true
	}
	c.changeTLS(func(info *exchange.TLSInfo) {
		info.Version = tls.VersionName(h.Version)
		info.Cipher = tls.CipherName(h.CipherSuite)
		if h.Group != 0 {
			info.Group = tls.GroupName(h.Group)
		}
		if h.ALPN != "" {
			info.ALPN = h.ALPN
		}
		if h.Version >= version13 && s.answered {
			resumed := h.PSK
			info.Resumed = &resumed
		}
	})
}

// helloAcked notes the pure ACK of the ClientHello that came before anything
// else from the server.
func (s *setup) helloAcked(pos, at int64) {
	if s.helloACK == 0 && s.serverFlight == 0 && !s.retry && s.hello != 0 && pos >= s.helloEnd {
		s.helloACK = at - s.hello
	}
}

// ready returns when the connection could carry its first request: where the
// set-up's end was not seen, the last that was seen of it.
func (c *conn) ready() int64 {
	return cmp.Or(c.setup.secured, c.setup.serverFlight, c.setup.hello, c.tcp.synACK, c.at)
}

func (c *conn) isTLS() bool { return c.setup.begun || c.tls != nil }

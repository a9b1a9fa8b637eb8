package conn

import (
	"errors"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/http1"
)

// maxHead bounds a message head that is put together from several calls.
const maxHead = 64 << 10

// body is how a message's body ends (RFC 9112 section 6.3).
type body uint8

const (
	noBody body = iota
	bodyLength
	bodyChunked
	bodyUntilClose
)

// h1 is a connection's HTTP/1. Requests and answers match in order.
type h1 struct {
	dir [2]h1dir
}

// h1dir follows the messages of one direction.
type h1dir struct {
	next  uint64 // stream offset of the next byte to look at
	begun bool
	head  []byte // what came of a head
	start mark   // of the head

	body   body
	left   int64   // bodyLength: bytes still to come
	active *active // whose body it is, nil: nobody's
}

func (c *conn) startHTTP1() {
	c.h1 = &h1{}
	if c.tls == nil || c.tls.ALPN != "" {
		return
	}
	for _, offered := range c.tls.ALPNOffered {
		if offered == "http/1.1" {
			c.changeTLS(func(info *exchange.TLSInfo) { info.ALPN = offered })
		}
	}
}

func (d *h1dir) keep(pos int64) int64 {
	if len(d.head) > 0 {
		return min(pos, d.start.lo)
	}
	return pos
}

// forget lets go of an exchange that has ended.
func (h *h1) forget(a *active) {
	for i := range h.dir {
		if h.dir[i].active == a {
			h.dir[i].active = nil
		}
	}
}

// untilClose ends the answer that the connection's end ends.
func (h *h1) untilClose(t *Tracker, c *conn) {
	d := &h.dir[event.In]
	if d.body != bodyUntilClose || d.active == nil || d.active.resDone {
		return
	}
	a := d.active
	d.body, d.active = noBody, nil
	a.resDone = true
	if c.isTLS() || c.received >= a.inHi {
		t.finish(a, true)
	}
}

// messages takes in a call of an HTTP/1 connection.
func (t *Tracker) messages(c *conn, k *call) {
	d := &c.h1.dir[k.Dir]
	if !d.begun {
		d.begun = true
		d.next = k.Offset
	}
	if k.Has(event.FlagGap) {
		d.head = d.head[:0]
		t.gap(c)
		if k.Offset > d.next {
			t.bodyBytes(c, d, k, k.Offset)
		}
	}
	for _, p := range k.Pieces {
		data := p.Data
		if p.At < d.next {
			if d.next-p.At >= uint64(len(data)) {
				continue
			}
			data = data[d.next-p.At:]
		} else if p.At > d.next {
			t.bodyBytes(c, d, k, p.At)
		}
		t.headBytes(c, d, k, data)
		if c.ignored || c.opaque {
			return
		}
	}
	if k.Has(event.FlagMore) {
		return
	}
	if k.end() > d.next {
		t.bodyBytes(c, d, k, k.end())
	}
	if k.Has(event.FlagShort) {
		d.head = d.head[:0]
		t.gap(c)
	}
	if k.Has(event.FlagChunkEnd) && d.body == bodyChunked {
		t.bodyEnd(d, k)
	}
}

// headBytes takes in copied bytes: a head, or a part of one.
func (t *Tracker) headBytes(c *conn, d *h1dir, k *call, data []byte) {
	offset := d.next // of data's first byte
	d.next += uint64(len(data))
	if len(d.head)+len(data) > maxHead {
		d.head = d.head[:0]
		t.gap(c)
		return
	}
	for len(data) > 0 {
		before := len(d.head)
		if before == 0 {
			d.start = k.mark(offset)
			t.inferEnd(c, d, k)
		}
		text := data
		if before > 0 {
			d.head = append(d.head, data...)
			text = d.head
		}
		m, err := http1.ParseHead(text)
		if errors.Is(err, http1.ErrIncomplete) {
			if before == 0 {
				d.head = append(d.head, data...)
			}
			return
		}
		if err != nil || m.Len <= before || m.Len > len(text) {
			d.head = d.head[:0]
			t.gap(c)
			return
		}
		d.head = d.head[:0]
		used := m.Len - before
		offset += uint64(used)
		data = data[used:]
		if k.Dir == event.Out {
			t.requestHead(c, d, k, &m, offset)
		} else {
			t.answerHead(c, d, k, &m, offset)
		}
		if c.ignored || c.opaque {
			return
		}
	}
}

// inferEnd ends the messages whose end cannot be seen but is over by now: a
// new head begins in direction d.
func (t *Tracker) inferEnd(c *conn, d *h1dir, k *call) {
	if a := d.active; a != nil && d.body == bodyChunked {
		t.bodyEnd(d, k)
	}
	d.body, d.active = noBody, nil
	if k.Dir == event.In {
		return
	}
	// A client that does not pipeline has the whole answer.
	in := &c.h1.dir[event.In]
	if a := in.active; a != nil && in.body == bodyChunked && a == c.last && a.reqDone {
		in.body, in.active = noBody, nil
		a.note(NoteEndInferred)
		a.resDone = true
		t.finish(a, true)
	}
}

// requestHead takes in a request's head, which ends before offset.
func (t *Tracker) requestHead(c *conn, d *h1dir, k *call, m *http1.Head, offset uint64) {
	if !m.Request {
		t.gap(c)
		return
	}
	h := &t.head
	h.message(m)
	a := t.begin(c, h, d.start)
	if a == nil {
		return
	}
	r := a.http()
	r.Version = m.Version
	r.RequestHeaderBytes = int64(m.Len)
	r.ResponseHeaderBytes = -1
	a.connect = m.Method == "CONNECT"
	a.wrote(d.start.lo, k.until(offset), d.start.enter)
	a.account()
	d.body, d.left = noBody, 0
	switch {
	case m.Chunked:
		d.body = bodyChunked
	case m.ContentLength > 0:
		d.body, d.left = bodyLength, m.ContentLength
	}
	if d.body == noBody {
		a.reqDone = true
		return
	}
	d.active = a
}

// answerHead takes in an answer's head, which ends before offset.
func (t *Tracker) answerHead(c *conn, d *h1dir, k *call, m *http1.Head, offset uint64) {
	d.body, d.left, d.active = noBody, 0, nil
	if m.Request {
		t.gap(c)
		return
	}
	a := c.first
	for a != nil && a.resDone {
		a = a.next
	}
	if a == nil {
		t.stats.Unrequested++
	} else if m.Status >= 100 && m.Status < 200 && m.Status != 101 {
		a.note(NoteInterim)
		a.seen = k.At
		return
	}
	switches := m.Status == 101 || a != nil && a.connect && m.Status/100 == 2
	switch {
	case switches, m.Status == 204, m.Status == 304, a != nil && a.http().Method == "HEAD":
	case m.Chunked:
		d.body = bodyChunked
	case m.ContentLength >= 0:
		if m.ContentLength > 0 {
			d.body, d.left = bodyLength, m.ContentLength
		}
	default:
		d.body = bodyUntilClose
	}
	if a == nil {
		return
	}
	h := &t.head
	h.message(m)
	a.http().ResponseHeaderBytes = int64(m.Len)
	t.answer(a, h, d.start, k.until(offset), k)
	if switches {
		a.note(NoteUpgraded)
		c.opaque = true
		a.reqDone = true
	}
	if d.body == noBody {
		t.answered(a, k)
		return
	}
	d.active = a
}

// bodyBytes takes in the bytes up to offset, which were counted, not copied.
func (t *Tracker) bodyBytes(c *conn, d *h1dir, k *call, to uint64) {
	from := max(d.next, k.Offset)
	n := int64(to - d.next)
	d.next = to
	if len(d.head) > 0 {
		// A head that the kernel side gave up copying.
		d.head = d.head[:0]
		t.gap(c)
		return
	}
	if d.body == bodyLength {
		n = min(n, d.left)
		d.left -= n
		to = min(to, from+uint64(n))
	}
	if a := d.active; a != nil {
		lo, hi := k.from(from), k.until(to)
		if k.Dir == event.Out {
			a.http().RequestBodyBytes += n
			a.wrote(lo, hi, k.Enter)
			a.account()
		} else {
			a.http().ResponseBodyBytes += n
			t.arrived(a, lo, hi, k)
		}
	}
	if d.body == bodyLength && d.left == 0 {
		t.bodyEnd(d, k)
	}
}

// bodyEnd ends the message in direction d.
func (t *Tracker) bodyEnd(d *h1dir, k *call) {
	a := d.active
	d.body, d.active = noBody, nil
	if a == nil {
		return
	}
	if k.Dir == event.Out {
		a.reqDone = true
		return
	}
	t.answered(a, k)
}

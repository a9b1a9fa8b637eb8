package conn

import (
	"bytes"
	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/http2"
)

const (
	// maxBlock bounds a header block, and a frame's payload, that is put
	// together from several calls.
	maxBlock  = 64 << 10
	keepBlock = 8 << 10 // kept between blocks

	settingsTableSize = 1 // SETTINGS_HEADER_TABLE_SIZE, RFC 9113 section 6.5.2
	// maxFrame is the largest frame that resynchronizing believes in.
	maxFrame = 1 << 20
)

// h2 is a connection's HTTP/2.
type h2 struct {
	dir     [2]framing
	streams map[uint32]*active
	lastID  uint32
}

// framing follows the frames of one direction.
type framing struct {
	next    uint64 // stream offset of the next byte to look at
	preface int    // bytes of the client's preface still to come
	lost    bool   // where the next frame begins is not known

	header [http2.FrameHeaderLen]byte
	have   int

	inside  bool // a frame's payload is being read
	frame   http2.FrameHeader
	left    uint32 // bytes of the payload still to come
	pad     uint32 // bytes of the payload that are padding
	payload []byte // what came of a payload that is wanted
	holed   bool   // a part of it did not come
	start   mark   // of the frame
	partLo  int64  // TCP bytes of the frame that are still to be charged

	// A header block that CONTINUATION frames go on with.
	open       bool
	block      []byte
	blockStart mark
	blockFlags uint8
	blockID    uint32
	blockType  http2.FrameType
	blockBytes int64

	decoder *http2.Decoder

	// The last block that left the dynamic table as it was, and what it
	// said: requests to one API are much alike.
	same        []byte
	sameChanges uint64
	sameHead    head
}

// maxSame bounds the block that is kept.
const maxSame = 1024

// decode reads a header block into h.
func (f *framing) decode(block []byte, h *head) {
	before := f.decoder.Changes()
	if before == f.sameChanges && len(block) > 0 && bytes.Equal(block, f.same) {
		h.take(&f.sameHead)
		return
	}
	h.reset()
	if err := f.decoder.Decode(block, h.field); err != nil {
		h.unknown = true
		return
	}
	if f.decoder.Changes() == before && len(block) <= maxSame {
		f.same = append(f.same[:0], block...)
		f.sameChanges = before
		f.sameHead.take(h)
	}
}

func (c *conn) startHTTP2() {
	c.h2 = &h2{streams: make(map[uint32]*active)}
	for d := range c.h2.dir {
		f := &c.h2.dir[d]
		f.decoder = http2.NewDecoder()
		if !c.fromStart {
			f.decoder.Missed()
			f.lost = true
		}
	}
	if c.fromStart {
		c.h2.dir[event.Out].preface = len(http2.Preface)
	}
	if c.tls != nil {
		c.changeTLS(func(info *exchange.TLSInfo) { info.ALPN = "h2" })
	}
}

// keep returns the first TCP byte that an unfinished header block needs.
func (f *framing) keep(pos int64) int64 {
	switch {
	case f.open:
		return min(pos, f.blockStart.lo)
	case f.have > 0 || f.inside && f.frame.Type != http2.Data:
		return min(pos, f.start.lo)
	}
	return pos
}

// lose gives up what is being put together; the next piece must begin with a
// frame header.
func (f *framing) lose() {
	f.lost, f.inside, f.open, f.have, f.preface = true, false, false, 0, 0
	f.block, f.payload = nil, nil
	f.decoder.Missed()
}

// frames takes in a call of an HTTP/2 connection.
func (t *Tracker) frames(c *conn, k *call) {
	h := c.h2
	f := &h.dir[k.Dir]
	if k.Has(event.FlagGap) {
		f.lose()
		t.gap(c)
	}
	if f.lost && f.next < k.Offset {
		f.next = k.Offset
	}
	if f.inside {
		f.partLo = k.lo
	}
	for _, p := range k.Pieces {
		data := p.Data
		if p.At < f.next {
			if f.next-p.At >= uint64(len(data)) {
				continue
			}
			data = data[f.next-p.At:]
		} else if p.At > f.next {
			t.pass(c, f, k, p.At)
		}
		t.parse(c, f, k, data)
		if c.ignored {
			return
		}
	}
	if !k.Has(event.FlagMore) && k.end() > f.next {
		if k.Has(event.FlagShort) {
			f.lose()
			t.gap(c)
			f.next = k.end()
		} else {
			t.pass(c, f, k, k.end())
		}
	}
	if f.inside && f.frame.Type == http2.Data {
		t.dataPart(c, f, k)
	}
}

// pass skips bytes that were not copied: they must be payload.
func (t *Tracker) pass(c *conn, f *framing, k *call, to uint64) {
	n := to - f.next
	if f.lost {
		f.next = to
		return
	}
	if !f.inside || n > uint64(f.left) {
		f.lose()
		t.gap(c)
		f.next = to
		return
	}
	f.next = to
	f.left -= uint32(n)
	f.holed = true
	if f.left > 0 {
		return
	}
	var payload []byte
	if f.frame.Type == http2.GoAway {
		payload = f.payload // all but its debug data, which is never copied
	}
	t.frameEnd(c, f, k, payload)
}

// parse takes in copied bytes.
func (t *Tracker) parse(c *conn, f *framing, k *call, data []byte) {
	for len(data) > 0 && !c.ignored {
		switch {
		case f.preface > 0:
			n := min(f.preface, len(data))
			f.preface -= n
			f.next += uint64(n)
			data = data[n:]
		case !f.inside:
			if f.have == 0 {
				f.start = k.mark(f.next)
				f.partLo = f.start.lo
			}
			n := copy(f.header[f.have:], data)
			f.have += n
			f.next += uint64(n)
			data = data[n:]
			if f.have < http2.FrameHeaderLen {
				return
			}
			f.have = 0
			frame, err := http2.ParseFrameHeader(f.header[:])
			if err != nil || f.lost && !plausible(frame) {
				f.next += uint64(len(data))
				return
			}
			f.lost = false
			f.frame, f.left, f.inside = frame, frame.Length, true
			f.pad, f.holed, f.payload = 0, false, f.payload[:0]
			if f.left == 0 {
				t.frameEnd(c, f, k, nil)
			}
		default:
			n := min(int(f.left), len(data))
			part := data[:n]
			if f.frame.Type == http2.Data && f.left == f.frame.Length && f.frame.Flags&http2.Padded != 0 {
				f.pad = 1 + uint32(part[0])
			}
			f.left -= uint32(n)
			f.next += uint64(n)
			data = data[n:]
			if f.left > 0 || len(f.payload) > 0 {
				f.collect(part)
				part = f.payload
			}
			if f.left == 0 {
				t.frameEnd(c, f, k, part)
			}
		}
	}
}

// collect keeps a part of a payload that comes in parts.
func (f *framing) collect(part []byte) {
	if f.frame.Type == http2.Data {
		return
	}
	if len(f.payload)+len(part) > maxBlock {
		f.holed = true
		return
	}
	f.payload = append(f.payload, part...)
}

// plausible says whether what may be garbage looks like a frame header.
func plausible(h http2.FrameHeader) bool {
	if h.Type > http2.Continuation || h.Length > maxFrame {
		return false
	}
	switch h.Type {
	case http2.Settings:
		return h.StreamID == 0 && h.Length%6 == 0
	case http2.Ping:
		return h.StreamID == 0 && h.Length == 8
	case http2.GoAway:
		return h.StreamID == 0 && h.Length >= 8
	case http2.WindowUpdate:
		return h.Length == 4
	case http2.RSTStream:
		return h.StreamID != 0 && h.Length == 4
	case http2.Priority:
		return h.StreamID != 0 && h.Length == 5
	}
	return h.StreamID != 0
}

// dataPart charges the bytes of a DATA frame that this call carries to its
// stream.
func (t *Tracker) dataPart(c *conn, f *framing, k *call) {
	a := c.h2.streams[f.frame.StreamID]
	if a == nil {
		return
	}
	lo, hi := f.partLo, k.until(f.next)
	if k.Dir == event.Out {
		a.wrote(lo, hi, k.Enter)
		a.account()
	} else if a.resHead {
		t.arrived(a, lo, hi, k)
	}
}

// frameEnd takes in a frame at the end of its payload.
func (t *Tracker) frameEnd(c *conn, f *framing, k *call, payload []byte) {
	f.inside = false
	h := c.h2
	id := f.frame.StreamID
	switch f.frame.Type {
	case http2.Data:
		a := h.streams[id]
		if a == nil {
			return
		}
		t.dataPart(c, f, k)
		size := int64(f.frame.Length) - int64(min(f.pad, f.frame.Length))
		if k.Dir == event.Out {
			a.http().RequestBodyBytes += size
		} else {
			a.http().ResponseBodyBytes += size
		}
		if f.frame.Flags&http2.EndStream != 0 {
			t.endStream(a, k)
		}
	case http2.Headers, http2.PushPromise:
		f.blockStart, f.blockFlags = f.start, f.frame.Flags
		f.blockID, f.blockType = id, f.frame.Type
		f.blockBytes, f.block = 0, f.block[:0]
		f.open = true
		t.fragment(c, f, k, payload)
	case http2.Continuation:
		if !f.open || f.blockID != id {
			f.decoder.Missed()
			t.gap(c)
			return
		}
		t.fragment(c, f, k, payload)
	case http2.RSTStream:
		code, err := http2.ParseRSTStream(payload)
		if a := h.streams[id]; a != nil && err == nil && !a.resDone {
			a.http().Reset = http2.ErrCodeName(code)
			t.giveUp(a, NoteStreamReset, reasonReset)
		}
	case http2.Settings:
		t.settings(c, k, payload)
	case http2.GoAway:
		if last, _, err := http2.ParseGoAway(payload); err == nil && k.Dir == event.In {
			t.goAway(c, last)
		}
	}
}

// settings applies a table size to the decoder of the peer's blocks.
func (t *Tracker) settings(c *conn, k *call, payload []byte) {
	peer := c.h2.dir[1-k.Dir].decoder
	// What is cut off the end is not known, and rare.
	_ = http2.ParseSettings(payload, func(id uint16, v uint32) {
		if id == settingsTableSize {
			peer.SetMaxTableSize(v)
		}
	})
}

// goAway ends the streams that the server says it will not answer (RFC 9113
// section 6.8).
func (t *Tracker) goAway(c *conn, last uint32) {
	var next *active
	for a := c.first; a != nil; a = next {
		next = a.next
		if a.id > last && !a.resDone {
			a.http().Reset = "GOAWAY"
			t.giveUp(a, NoteGoAway, reasonGoAway)
		}
	}
}

// fragment adds a frame's part of a header block and decodes the block when it
// is whole.
func (t *Tracker) fragment(c *conn, f *framing, k *call, payload []byte) {
	f.blockBytes += int64(f.frame.Length)
	fragment, err := http2.HeaderFragment(f.frame, payload)
	if err != nil || f.holed || len(f.block)+len(fragment) > maxBlock {
		f.open, f.block = false, nil
		f.decoder.Missed()
		t.gap(c)
		if a := c.h2.streams[f.blockID]; a != nil && f.blockType == http2.Headers {
			t.lostBlock(a, f, k)
		}
		return
	}
	ended := f.frame.Flags&http2.EndHeaders != 0
	if !ended || len(f.block) > 0 {
		f.block = append(f.block, fragment...)
		fragment = f.block
	}
	if ended {
		f.open = false
		t.headers(c, f, k, fragment)
		f.shrink()
	}
}

// shrink lets go of buffers that an unusual block made large.
func (f *framing) shrink() {
	if cap(f.block) > keepBlock {
		f.block = nil
	}
	if cap(f.payload) > keepBlock {
		f.payload = nil
	}
}

// lostBlock takes in a header block whose text did not come: its bytes and its
// end of the stream still count.
func (t *Tracker) lostBlock(a *active, f *framing, k *call) {
	if hi := k.until(f.next); k.Dir == event.Out {
		a.wrote(f.blockStart.lo, hi, f.blockStart.enter)
	} else {
		if !a.resHead && k.Has(event.FlagTLS) {
			a.record.Timeline.FirstRead = f.blockStart.at
		}
		a.resHead = true
		t.arrived(a, f.blockStart.lo, hi, k)
	}
	if f.blockFlags&http2.EndStream != 0 && f.frame.Flags&http2.EndHeaders != 0 {
		t.endStream(a, k)
	}
}

// headers takes in a whole header block.
func (t *Tracker) headers(c *conn, f *framing, k *call, block []byte) {
	h := &t.head
	f.decode(block, h)
	if f.blockType == http2.PushPromise {
		t.stats.Unrequested++
		return
	}
	a := c.h2.streams[f.blockID]
	hi := k.until(f.next)
	if k.Dir == event.Out {
		if a == nil {
			if a = t.request(c, f, h); a == nil {
				return
			}
		}
		a.wrote(f.blockStart.lo, hi, f.blockStart.enter)
		a.account()
	} else {
		switch {
		case a == nil:
			if f.blockID%2 == 1 && f.blockID > c.h2.lastID {
				t.stats.Unrequested++
			}
			return
		case a.resHead:
			t.trailer(a, h)
			t.arrived(a, f.blockStart.lo, hi, k)
		case h.status >= 100 && h.status < 200:
			a.note(NoteInterim)
			a.seen = k.At
			return
		default:
			a.http().ResponseHeaderBytes = f.blockBytes
			t.answer(a, h, f.blockStart, hi, k)
		}
	}
	if f.blockFlags&http2.EndStream != 0 {
		t.endStream(a, k)
	}
}

// request opens the exchange of a new stream.
func (t *Tracker) request(c *conn, f *framing, h *head) *active {
	id := f.blockID
	if id%2 == 0 || id <= c.h2.lastID && h.method == "" {
		return nil // trailers of a stream that has ended
	}
	a := t.begin(c, h, f.blockStart)
	if a == nil {
		return nil
	}
	if id <= c.h2.lastID {
		a.note(NoteReusedID)
	}
	c.h2.lastID = max(c.h2.lastID, id)
	a.id = id
	c.h2.streams[id] = a
	a.http().Version = "2"
	a.http().StreamID = id
	a.http().RequestHeaderBytes = f.blockBytes
	a.http().ResponseHeaderBytes = -1
	return a
}

// endStream ends the stream in the call's direction.
func (t *Tracker) endStream(a *active, k *call) {
	if k.Dir == event.Out {
		a.reqDone = true
		return
	}
	if !a.resHead {
		t.giveUp(a, NoteFraming, reasonFraming)
		return
	}
	t.answered(a, k)
}

package truth

import (
	"crypto/tls"
	"encoding/binary"
	"sort"
)

const (
	recordHeader = 5
	typeData     = 23
)

// record is a TLS record: bytes [lo, hi) of a direction.
type record struct {
	lo, hi int64
	kind   uint8
}

// recordWalk finds the records in a direction's bytes.
type recordWalk struct {
	records []record
	pos     int64
	header  [recordHeader]byte
	have    int
	left    int // bytes of the last record still to come
}

func (w *recordWalk) feed(b []byte) {
	for len(b) > 0 {
		if w.left > 0 {
			n := min(w.left, len(b))
			w.left -= n
			w.pos += int64(n)
			b = b[n:]
			continue
		}
		n := copy(w.header[w.have:], b)
		w.have += n
		w.pos += int64(n)
		b = b[n:]
		if w.have == recordHeader {
			w.have = 0
			w.left = int(binary.BigEndian.Uint16(w.header[3:]))
			w.records = append(w.records, record{
				lo: w.pos - recordHeader, hi: w.pos + int64(w.left), kind: w.header[0],
			})
		}
	}
}

// overhead is how many bytes more than its plaintext a record's payload has.
func overhead(version, cipher uint16) int64 {
	const tag = 16
	switch {
	case version == tls.VersionTLS13:
		return tag + 1 // the real type; nobody here pads
	case cipher == tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, cipher == tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
		return tag
	}
	return 8 + tag // AES-GCM: the nonce is sent
}

// mapping tells which bytes on the wire carry which plaintext.
type mapping struct {
	direct  bool // no TLS: as they are
	records []record
	end     []int64 // plaintext before the end of each record
}

// newMapping leaves out the first skip records of type application data,
// which carry the handshake, and what is before from.
func newMapping(records []record, from int64, skip int, overhead int64) mapping {
	var m mapping
	var sum int64
	for _, r := range records {
		if r.kind != typeData || r.lo < from {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		sum += max(r.hi-r.lo-recordHeader-overhead, 0)
		m.records = append(m.records, r)
		m.end = append(m.end, sum)
	}
	return m
}

// span returns the bytes on the wire that carry plaintext [lo, hi), whole
// records: no part of one can be read before all of it is there.
func (m mapping) span(lo, hi int64) (wireLo, wireHi int64, ok bool) {
	if m.direct {
		return lo, hi, true
	}
	first := sort.Search(len(m.end), func(i int) bool { return m.end[i] > lo })
	last := sort.Search(len(m.end), func(i int) bool { return m.end[i] >= hi })
	if first > last || last == len(m.end) {
		return 0, 0, false
	}
	return m.records[first].lo, m.records[last].hi, true
}

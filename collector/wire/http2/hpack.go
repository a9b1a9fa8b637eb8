package http2

import (
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/peel-dev/peel/collector/wire/header"
	"golang.org/x/net/http2/hpack"
)

// The bounds of a Decoder.
const (
	MaxTable  = 64 << 10 // bytes of the dynamic table, counted as RFC 7541 section 4.1 does
	MaxString = 64 << 10 // bytes of a name or value
	MaxFields = 1024     // fields of a block
)

// DefaultTableSize is SETTINGS_HEADER_TABLE_SIZE before any is sent, RFC 9113
// section 6.5.2.
const DefaultTableSize = 4096

// Field is a field of a header block. Name is in lower case.
type Field struct {
	Name, Value string
	// Unknown: the name, at least, is in a table entry that was never seen.
	// Name and Value are empty.
	Unknown bool
}

// Decoder decodes the header blocks of one direction of a connection, HPACK
// of RFC 7541. They share a table, so it needs every one of them, in order.
// What it cannot know comes out as Unknown; it does not guess. It keeps no
// secrets: a value whose name header.Secret knows, or that the encoder marks
// as never to be indexed (section 7.1.3), is header.Present from the start.
type Decoder struct {
	table   table
	allowed uint32 // the largest SETTINGS_HEADER_TABLE_SIZE
	missed  bool   // SETTINGS or blocks may have been missed
	scratch []byte
	recent  *recent
}

// NewDecoder returns the decoder of a connection seen from its start. For one
// that was there before, call Missed.
func NewDecoder() *Decoder {
	return &Decoder{table: table{max: DefaultTableSize}, allowed: DefaultTableSize}
}

// Missed says that a block was lost, in whole or in part. The entries known so
// far may have moved and are dropped; those that come are known again.
func (d *Decoder) Missed() {
	d.table.forget()
	d.missed = true
}

// Changes counts the changes of the dynamic table. A block that made none means
// the same as long as there are none.
func (d *Decoder) Changes() uint64 { return d.table.changes }

// SetMaxTableSize says that the reader of these blocks sent
// SETTINGS_HEADER_TABLE_SIZE. It allows the encoder larger tables; their size
// changes when the encoder says so (RFC 7541 section 4.2), so until then a
// smaller n has no effect.
func (d *Decoder) SetMaxTableSize(n uint32) { d.allowed = max(d.allowed, n) }

// Decode decodes a whole header block and passes its fields to emit, in
// order. After an error, which wraps ErrShort or ErrMalformed, the decoder has
// called Missed itself, and fields before the error have been emitted.
func (d *Decoder) Decode(block []byte, emit func(Field)) error {
	r := reader{in: block}
	if err := d.decode(&r, emit); err != nil {
		d.Missed()
		return fmt.Errorf("decoding header block at byte %d of %d: %w", len(block)-len(r.in), len(block), err)
	}
	return nil
}

func (d *Decoder) decode(r *reader, emit func(Field)) error {
	for fields := 0; len(r.in) > 0; {
		var f Field
		var err error
		switch b := r.in[0]; {
		case 0x80 < b && b < 0xff: // section 6.1 in one byte: most fields of most requests
			r.in = r.in[1:]
			f = d.lookup(uint64(b & 0x7f))
		case b >= 0x80: // section 6.1
			f, err = d.indexed(r)
		case b >= 0x40: // section 6.2.1
			f, err = d.literal(r, 6, true, false)
		case b >= 0x20: // section 6.3
			if fields > 0 {
				return fmt.Errorf("reading table size after a field: %w", ErrMalformed)
			}
			if err := d.resize(r); err != nil {
				return err
			}
			continue
		default: // sections 6.2.2 and 6.2.3
			f, err = d.literal(r, 4, false, b >= 0x10)
		}
		if err != nil {
			return err
		}
		if fields++; fields > MaxFields {
			return fmt.Errorf("reading field %d: %w", fields, ErrMalformed)
		}
		emit(f)
	}
	return nil
}

// resize reads a dynamic table size update. One that no SETTINGS allowed is a
// sign that the bytes are not what they are taken for, unless SETTINGS may
// have been missed.
func (d *Decoder) resize(r *reader) error {
	n, err := r.integer(5)
	if err != nil {
		return err
	}
	if n > uint64(d.allowed) && !d.missed {
		return fmt.Errorf("reading table size %d above %d: %w", n, d.allowed, ErrMalformed)
	}
	d.table.resize(uint32(min(n, noLimit)))
	return nil
}

func (d *Decoder) indexed(r *reader) (Field, error) {
	index, err := r.integer(7)
	if err != nil {
		return Field{}, err
	}
	if index == 0 {
		return Field{}, fmt.Errorf("reading index 0: %w", ErrMalformed)
	}
	return d.lookup(index), nil
}

// lookup returns the field at an index above 0, RFC 7541 section 2.3.3.
func (d *Decoder) lookup(index uint64) Field {
	if index <= staticLen {
		return static[index]
	}
	if e := d.table.at(index - staticLen - 1); e != nil {
		return e.field
	}
	return Field{Unknown: true}
}

// literal reads a literal field, whose name may be an index of so many bits.
func (d *Decoder) literal(r *reader, bits uint8, index, never bool) (Field, error) {
	name, err := r.integer(bits)
	if err != nil {
		return Field{}, err
	}
	var f Field
	var size int
	if name > 0 {
		f = d.lookup(name)
		size = len(f.Name)
		f.Value = ""
	} else {
		s, err := d.text(r)
		if err != nil {
			return Field{}, err
		}
		size = len(s)
		f.Name = d.name(s)
	}
	s, err := d.text(r)
	if err != nil {
		return Field{}, err
	}
	size += len(s) + entryOverhead
	switch {
	case f.Unknown: // the value may be a secret
		clear(d.scratch)
	case header.Secret(f.Name), never && !strings.HasPrefix(f.Name, ":"):
		f.Value = header.Present
		clear(d.scratch)
	default:
		f.Value = d.intern(s)
	}
	if index {
		d.table.add(entry{f, uint32(size)})
	}
	return f, nil
}

// text reads a string literal, RFC 7541 section 5.2. It holds until the next
// call.
func (d *Decoder) text(r *reader) ([]byte, error) {
	if len(r.in) == 0 {
		return nil, fmt.Errorf("reading string: %w", ErrShort)
	}
	huffman := r.in[0] >= 0x80
	n, err := r.integer(7)
	if err != nil {
		return nil, err
	}
	if n > MaxString {
		return nil, fmt.Errorf("reading string of %d bytes: %w", n, ErrMalformed)
	}
	if n > uint64(len(r.in)) {
		return nil, fmt.Errorf("reading string of %d bytes from %d: %w", n, len(r.in), ErrShort)
	}
	s := r.in[:n]
	r.in = r.in[n:]
	if !huffman {
		return s, nil
	}
	d.scratch = d.scratch[:0]
	if _, err := hpack.HuffmanDecode((*sink)(&d.scratch), s); err != nil {
		return nil, fmt.Errorf("reading string: %w: %w", ErrMalformed, err)
	}
	if len(d.scratch) > MaxString {
		return nil, fmt.Errorf("reading string of %d bytes: %w", len(d.scratch), ErrMalformed)
	}
	return d.scratch, nil
}

// sink appends what is written to it.
type sink []byte

func (s *sink) Write(p []byte) (int, error) {
	*s = append(*s, p...)
	return len(p), nil
}

// reader reads HPACK's primitives.
type reader struct{ in []byte }

// integer reads an integer with a prefix of so many bits, RFC 7541
// section 5.1. No block needs one above 1<<32.
func (r *reader) integer(bits uint8) (uint64, error) {
	mask := uint64(1)<<bits - 1
	if len(r.in) == 0 {
		return 0, fmt.Errorf("reading integer: %w", ErrShort)
	}
	n := uint64(r.in[0]) & mask
	r.in = r.in[1:]
	if n < mask {
		return n, nil
	}
	for shift := 0; ; shift += 7 {
		if len(r.in) == 0 {
			return 0, fmt.Errorf("reading integer: %w", ErrShort)
		}
		b := r.in[0]
		r.in = r.in[1:]
		n += uint64(b&0x7f) << shift
		if shift > 28 || n > 1<<32 {
			return 0, fmt.Errorf("reading integer: %w", ErrMalformed)
		}
		if b < 0x80 {
			return n, nil
		}
	}
}

// recent holds strings that came as literals, so that the same ones need no
// more memory when they come again, as paths do.
type recent struct {
	seed    maphash.Seed
	strings [32]string
}

// maxRecent is the longest string that is worth keeping.
const maxRecent = 64

// name returns b as a name, in lower case even if the encoder broke the rule.
func (d *Decoder) name(b []byte) string {
	for _, c := range b {
		if 'A' <= c && c <= 'Z' {
			return header.Name(b)
		}
	}
	return d.intern(b)
}

// intern returns b as a string.
func (d *Decoder) intern(b []byte) string {
	if len(b) == 0 || len(b) > maxRecent {
		return string(b)
	}
	if d.recent == nil {
		d.recent = &recent{seed: maphash.MakeSeed()}
	}
	s := &d.recent.strings[maphash.Bytes(d.recent.seed, b)%uint64(len(d.recent.strings))]
	if *s != string(b) {
		*s = string(b)
	}
	return *s
}

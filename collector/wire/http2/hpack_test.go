package http2

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/wire/header"
	"golang.org/x/net/http2/hpack"
)

// decode returns the fields of a block.
func decode(d *Decoder, block []byte) ([]Field, error) {
	var fields []Field
	err := d.Decode(block, func(f Field) { fields = append(fields, f) })
	return fields, err
}

// redacted is what a Decoder is to make of a field.
func redacted(f hpack.HeaderField) Field {
	if header.Secret(f.Name) || f.Sensitive && !strings.HasPrefix(f.Name, ":") {
		f.Value = header.Present
	}
	return Field{Name: f.Name, Value: f.Value}
}

// peer is the encoder at the other end: x/net's.
type peer struct {
	wire bytes.Buffer
	enc  *hpack.Encoder
}

func newPeer() *peer {
	p := new(peer)
	p.enc = hpack.NewEncoder(&p.wire)
	return p
}

// encode returns the fields' block, and what there is to see of them.
func (p *peer) encode(t testing.TB, fields []hpack.HeaderField) (block []byte, want []Field) {
	t.Helper()
	p.wire.Reset()
	for _, f := range fields {
		if err := p.enc.WriteField(f); err != nil {
			t.Fatal(err)
		}
		want = append(want, redacted(f))
	}
	return bytes.Clone(p.wire.Bytes()), want
}

// randomFields draws from few names and values, so that entries are found
// again, and from new ones of all sizes, so that entries are evicted.
func randomFields(r *rand.Rand) []hpack.HeaderField {
	names := []string{":method", ":path", ":status", ":authority", "content-type", "cookie", "authorization", "set-cookie", "via",
		"x-api-key", "x-request-id", "x-anthropic-layer", "x-anthropic-ratelimit-remaining-tokens", "user-agent"}
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			switch r.IntN(8) {
			case 0:
				b[i] = byte(r.IntN(256)) // makes Huffman the longer form
			default:
				b[i] = "abcdefghijklmnopqrstuvwxyz0123456789-_/."[r.IntN(40)]
			}
		}
		return string(b)
	}
	fields := make([]hpack.HeaderField, r.IntN(12))
	for i := range fields {
		f := &fields[i]
		f.Name = names[r.IntN(len(names))]
		if r.IntN(6) == 0 {
			f.Name = fmt.Sprintf("x-%d", r.IntN(50))
		}
		switch r.IntN(10) {
		case 0:
			f.Value = text(r.IntN(5000))
		case 1, 2:
			f.Value = text(r.IntN(100))
		case 3:
		default:
			f.Value = fmt.Sprintf("value-%d", r.IntN(6))
		}
		f.Sensitive = r.IntN(10) == 0
	}
	return fields
}

// Whatever x/net encodes comes out again, apart from secrets.
func TestDecodeAgainstXNet(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		p, d := newPeer(), NewDecoder()
		for n := range 40 {
			if r.IntN(8) == 0 {
				limit := []uint32{0, 50, 256, 4096, 20000, 65536}[r.IntN(6)]
				p.enc.SetMaxDynamicTableSizeLimit(limit)
				d.SetMaxTableSize(limit)
				p.enc.SetMaxDynamicTableSize(uint32(r.IntN(int(limit) + 1)))
			}
			block, want := p.encode(t, randomFields(r))
			got, err := decode(d, block)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d, block %d: %v\ngot  %+v\nwant %+v", seed, n, err, got, want)
			}
		}
	}
}

// After a loss, and with a late start, all that is not marked unknown is
// right, and after the table has turned over nothing is unknown.
func TestDecodeAfterLoss(t *testing.T) {
	var unknown, known int
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		p, d := newPeer(), NewDecoder()
		p.enc.SetMaxDynamicTableSizeLimit(65536)
		p.enc.SetMaxDynamicTableSize(uint32(r.IntN(65536)))
		if seed%2 == 0 {
			d.Missed() // a late start: SETTINGS were not seen
		} else {
			d.SetMaxTableSize(65536)
		}
		for n := range 40 {
			block, want := p.encode(t, randomFields(r))
			switch r.IntN(5) {
			case 0:
				d.Missed()
				continue
			case 1: // cut: a part of it may have been decoded
				if len(block) == 0 {
					continue
				}
				if _, err := decode(d, block[:r.IntN(len(block))]); err == nil {
					d.Missed()
				}
				continue
			}
			got, err := decode(d, block)
			if err != nil || len(got) != len(want) {
				t.Fatalf("seed %d, block %d: %v\ngot  %+v\nwant %+v", seed, n, err, got, want)
			}
			for i, f := range got {
				if f.Unknown {
					unknown++
					if f.Name != "" || f.Value != "" {
						t.Fatalf("unknown, yet %+v", f)
					}
				} else if known++; f != want[i] {
					t.Fatalf("seed %d, block %d: a guess: got %+v, want %+v", seed, n, f, want[i])
				}
			}
		}
		p.enc.SetMaxDynamicTableSize(0)
		p.encode(t, nil)
		block, want := p.encode(t, randomFields(r))
		if got, err := decode(d, block); err != nil || !slices.Equal(got, want) {
			t.Fatalf("seed %d, table emptied: %v\ngot  %+v\nwant %+v", seed, err, got, want)
		}
	}
	if unknown == 0 || known < unknown {
		t.Errorf("%d fields unknown, %d known", unknown, known)
	}
}

// The examples of RFC 7541 appendix C.
func TestDecodeRFC7541(t *testing.T) {
	d := NewDecoder()
	for _, tt := range []struct {
		name  string
		block []byte
		want  []Field
		size  uint32
	}{
		{"C.4.1", []byte("\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"), []Field{
			{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "www.example.com"},
		}, 57},
		{"C.4.2", []byte("\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf"), []Field{
			{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "www.example.com"},
			{Name: "cache-control", Value: "no-cache"},
		}, 110},
		{"C.4.3", []byte("\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf"), []Field{
			{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/index.html"}, {Name: ":authority", Value: "www.example.com"},
			{Name: "custom-key", Value: header.Present}, // -key: the policy's, not the RFC's
		}, 164},
	} {
		got, err := decode(d, tt.block)
		if err != nil || !slices.Equal(got, tt.want) || d.table.size != tt.size {
			t.Errorf("%s: %+v, %v, table %d; want %+v, %d", tt.name, got, err, d.table.size, tt.want, tt.size)
		}
	}
}

// Secrets are gone from the table too, and their true sizes count.
func TestDecodeSecrets(t *testing.T) {
	for _, name := range []string{"authorization", "x-api-key", "cookie", "X-Api-Key"} {
		d := NewDecoder()
		block := slices.Concat([]byte{0x40, byte(len(name))}, []byte(name), []byte{10}, []byte("hunter2345"))
		want := Field{Name: strings.ToLower(name), Value: header.Present}
		got, err := decode(d, append(block, 0xbe))
		if err != nil || len(got) != 2 || got[0] != want || got[1] != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if size := uint32(len(name) + 10 + entryOverhead); d.table.size != size {
			t.Errorf("%s: table of %d bytes, want %d", name, d.table.size, size)
		}
	}
	d := NewDecoder()
	got, err := decode(d, []byte("\x10\x06x-user\x07hunter2"))
	if err != nil || len(got) != 1 || got[0] != (Field{Name: "x-user", Value: header.Present}) {
		t.Errorf("never indexed: %+v, %v", got, err)
	}
	// A value whose name is not known may be one, too.
	d.Missed()
	got, err = decode(d, []byte("\x7e\x07hunter2\xbe"))
	if err != nil || len(got) != 2 || got[0] != (Field{Unknown: true}) || got[1] != (Field{Unknown: true}) {
		t.Errorf("name not known: %+v, %v", got, err)
	}
	// Huffman coded, it leaves no trace in the decoder's buffer.
	block := append([]byte{0x57, 0}, hpack.AppendHuffmanString(nil, "hunter2hunter2")...)
	block[1] = 0x80 | byte(len(block)-2)
	if _, err := decode(d, block); err != nil || bytes.Contains(d.scratch[:cap(d.scratch)], []byte("hunter2")) {
		t.Errorf("%v, scratch %q", err, d.scratch)
	}
}

func TestDecodeErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		block []byte
		want  error
	}{
		{"index 0", []byte{0x80}, ErrMalformed},
		{"integer cut", []byte{0xff}, ErrShort},
		{"integer cut later", []byte{0xff, 0x80}, ErrShort},
		{"integer too long", []byte("\xff\x80\x80\x80\x80\x80\x01"), ErrMalformed},
		{"integer too large", []byte("\xff\xff\xff\xff\xff\x7f"), ErrMalformed},
		{"no name", []byte{0x40}, ErrShort},
		{"name cut", []byte("\x40\x05abc"), ErrShort},
		{"no value", []byte("\x40\x01a"), ErrShort},
		{"value cut", []byte("\x40\x01a\x02b"), ErrShort},
		{"string too long", append([]byte("\x40\x01a\x7f\x82\xff\x03"), make([]byte, MaxString+1)...), ErrMalformed},
		{"Huffman end of string", []byte("\x40\x84\xff\xff\xff\xff\x00"), ErrMalformed},
		{"Huffman grows too long", huffman(strings.Repeat("a", MaxString+1)), ErrMalformed},
		{"table size after a field", []byte{0x82, 0x20}, ErrMalformed},
		{"table size not allowed", []byte("\x3f\xe2\x1f"), ErrMalformed},
		{"1025 fields", bytes.Repeat([]byte{0x82}, MaxFields+1), ErrMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDecoder()
			if _, err := decode(d, []byte("\x40\x01a\x01b")); err != nil {
				t.Fatal(err)
			}
			if _, err := decode(d, tt.block); !errors.Is(err, tt.want) {
				t.Fatal(err)
			}
			// What was known may have moved.
			if got, err := decode(d, []byte{0xbe}); err != nil || !got[0].Unknown {
				t.Errorf("after the error: %+v, %v", got, err)
			}
		})
	}
}

// huffman returns a literal field, to be indexed, with a Huffman coded value.
func huffman(value string) []byte {
	s := hpack.AppendHuffmanString(nil, value)
	b := []byte("\x40\x01a")
	n := len(s)
	if n < 127 {
		b = append(b, 0x80|byte(n))
	} else {
		b = append(b, 0xff)
		for n -= 127; n >= 128; n >>= 7 {
			b = append(b, 0x80|byte(n&127))
		}
		b = append(b, byte(n))
	}
	return append(b, s...)
}

func TestTableBounds(t *testing.T) {
	d := NewDecoder()
	d.SetMaxTableSize(1 << 30)
	p := newPeer()
	p.enc.SetMaxDynamicTableSizeLimit(1 << 30)
	p.enc.SetMaxDynamicTableSize(1 << 30)
	// Entries of 10 000 bytes: six fit into what the decoder holds.
	for i := range 100 {
		block, want := p.encode(t, []hpack.HeaderField{{Name: fmt.Sprint(i), Value: strings.Repeat("v", 9960)}})
		if got, err := decode(d, block); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%d: %+v, %v", i, got, err)
		}
		if d.table.size > MaxTable || d.table.n > 6 {
			t.Fatalf("table of %d bytes, %d entries", d.table.size, d.table.n)
		}
	}
	// The encoder still has the 90th, the decoder does not, and says so.
	block, _ := p.encode(t, []hpack.HeaderField{{Name: "90", Value: strings.Repeat("v", 9960)}, {Name: "99", Value: strings.Repeat("v", 9960)}})
	got, err := decode(d, block)
	if err != nil || len(got) != 2 || !got[0].Unknown || got[1].Name != "99" {
		t.Errorf("%+v, %v", got, err)
	}
	// So it does with one that is larger than all it may hold, and it stays in step.
	large := append([]byte("\x40\x02no"), huffman(strings.Repeat("a", MaxString))[3:]...) // 65536 + 2 + 32 bytes
	block = append(large, "\x40\x01b\x01c\xbe\xbf"...)
	got, err = decode(d, block)
	if err != nil || len(got) != 4 || got[2] != (Field{Name: "b", Value: "c"}) || !got[3].Unknown {
		t.Errorf("%+v, %v", got, err)
	}
}

// A size update is taken as it comes when SETTINGS may have been missed.
func TestTableSizeAfterLoss(t *testing.T) {
	d := NewDecoder()
	d.Missed()
	big := strings.Repeat("b", 5000) // more than the default table holds
	for _, block := range [][]byte{
		append([]byte{0x3f, 0xe1, 0xff, 0x03}, huffman(big)...), // 65536
		huffman(big),
	} {
		if got, err := decode(d, append(block, 0xbe)); err != nil || len(got) != 2 || got[1].Value != big {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if got, err := decode(d, []byte{0x20, 0xbe}); err != nil || !got[0].Unknown {
		t.Errorf("emptied: %+v, %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"), []byte("\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf"), false)
	f.Add([]byte("\x20\x3f\xe1\x1f\x40\x0acustom-key\x0dcustom-header"), []byte("\xbe\xbf\x7e\x01a"), false)
	f.Add([]byte("\x10\x06cookie\x01a\x00\x01A\x01b"), []byte("\xc0\x7f\x00\x01b"), true)
	f.Fuzz(func(t *testing.T, first, second []byte, missed bool) {
		d := NewDecoder()
		oracle := hpack.NewDecoder(DefaultTableSize, nil)
		for _, block := range [][]byte{first, second} {
			if missed {
				d.Missed()
			}
			got, err := decode(d, block)
			if err != nil && !errors.Is(err, ErrShort) && !errors.Is(err, ErrMalformed) {
				t.Errorf("unexpected error %v", err)
			}
			if d.table.size > MaxTable || d.table.n > MaxTable/entryOverhead || len(got) > MaxFields {
				t.Errorf("table of %d bytes, %d entries; %d fields", d.table.size, d.table.n, len(got))
			}
			for _, f := range got {
				if header.Secret(f.Name) && f.Value != header.Present && f.Value != "" {
					t.Errorf("secret %+v came out", f)
				}
				if f.Unknown && (f.Name != "" || f.Value != "") {
					t.Errorf("unknown, yet %+v", f)
				}
			}
			want, oracleErr := oracle.DecodeFull(block)
			if missed || oracleErr != nil {
				return // x/net gives up where we go on
			}
			if err != nil {
				// Bounds that x/net does not have.
				for _, bound := range []string{"reading table size", "reading integer", "reading field", "reading string"} {
					if strings.Contains(err.Error(), bound) && errors.Is(err, ErrMalformed) {
						return
					}
				}
				t.Fatalf("%v where x/net reads %+v", err, want)
			}
			if len(got) != len(want) {
				t.Fatalf("got %+v, want %+v", got, want)
			}
			for i, f := range want {
				f.Name = asciiLower(f.Name)
				if redacted(f) != got[i] {
					t.Fatalf("got %+v, want %+v", got[i], redacted(f))
				}
			}
		}
	})
}

func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}

// requestFields are those of a load generator.
var requestFields = []hpack.HeaderField{
	{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "api.example.test"},
	{Name: ":path", Value: "/v1/messages"}, {Name: "user-agent", Value: "h2load nghttp2/1.52.0"}, {Name: "x-api-key", Value: "sk-1234567890"},
	{Name: "content-type", Value: "application/json"}, {Name: "anthropic-version", Value: "2023-06-01"},
}

// requests returns a connection's first block with these fields and the next.
func requests(t testing.TB) (first, next []byte) {
	t.Helper()
	p := newPeer()
	first, _ = p.encode(t, requestFields)
	next, _ = p.encode(t, requestFields)
	return first, next
}

// A decoder in the steady state allocates nothing.
func TestDecodeAllocations(t *testing.T) {
	first, next := requests(t)
	literals := append([]byte{0x04}, huffman("/v1/messages")[3:]...) // :path, not indexed
	for name, block := range map[string][]byte{"indexed": next, "literal": literals} {
		d := NewDecoder()
		if _, err := decode(d, first); err != nil {
			t.Fatal(err)
		}
		var n int
		if a := testing.AllocsPerRun(100, func() {
			if err := d.Decode(block, func(Field) { n++ }); err != nil {
				t.Fatal(err)
			}
		}); a != 0 {
			t.Errorf("%s: %v allocations", name, a)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	first, indexed := requests(b)
	for _, bb := range []struct {
		name  string
		block []byte
	}{{"indexed", indexed}, {"literal", first}} {
		b.Run(bb.name, func(b *testing.B) {
			d := NewDecoder()
			if err := d.Decode(first, func(Field) {}); err != nil {
				b.Fatal(err)
			}
			var n int
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(bb.block, func(Field) { n++ }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

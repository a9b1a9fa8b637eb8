package demo

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/net/http2/hpack"
)

func frame(kind, flags uint8, stream uint32, payload ...byte) []byte {
	n := len(payload)
	b := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

func fields(t testing.TB, pairs ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(pairs); i += 2 {
		if err := enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func h2conn() *conn {
	c := &conn{book: newBook(maxRequests), h2out: newH2Responses()}
	c.h2in = newH2Requests(c)
	return c
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestH2Requests(t *testing.T) {
	block := fields(t, ":path", "/v1/messages/x?y=z")
	trailers := fields(t, "x-sum", "1")
	for _, tt := range []struct {
		name  string
		bytes []byte
		ends  int // offset of the byte that ends the request, from the end; -1: it does not
	}{
		{"head only", frame(frameHeaders, flagEndStream|flagEndHeaders, 1, block...), 0},
		{"body", join(frame(frameHeaders, flagEndHeaders, 1, block...), frame(frameData, 0, 1, 'a'), frame(frameData, flagEndStream, 1, 'b')), 0},
		{"empty last DATA, then others", join(frame(frameHeaders, flagEndHeaders, 1, block...), frame(frameData, flagEndStream, 1), frame(0x6, 0, 0, make([]byte, 8)...)), 17},
		{"other stream ends", join(frame(frameHeaders, flagEndHeaders, 1, block...), frame(frameData, flagEndStream, 3, 'b')), -1},
		{"continued", join(frame(frameHeaders, flagEndStream, 1, block[:3]...), frame(frameContinuation, flagEndHeaders, 1, block[3:]...)), 0},
		{"padded, with priority", frame(frameHeaders, flagEndStream|flagEndHeaders|flagPadded|flagPriority, 1, join([]byte{2, 0, 0, 0, 0, 9}, block, []byte{0, 0})...), 0},
		{"trailers", join(frame(frameHeaders, flagEndHeaders, 1, block...), frame(frameHeaders, flagEndHeaders|flagEndStream, 1, trailers...)), 0},
		{"reset", join(frame(frameHeaders, flagEndHeaders, 1, block...), frame(frameRSTStream, 0, 1, 0, 0, 0, 8)), -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := h2conn()
			wire := append([]byte(clientPreface), tt.bytes...)
			// A byte a read, its number the time: the end is exact.
			for i := range wire {
				c.h2in.read(wire[i:i+1], int64(i+1))
			}
			want := int64(len(wire) - tt.ends)
			if tt.ends < 0 {
				want = 0
			}
			if got, ok := c.book.truth("x"); !ok || got.RequestArrived != want || got.Sequence != 1 {
				t.Errorf("%+v, %v, want the end at %d", got, ok, want)
			}
		})
	}
}

func TestH2Responses(t *testing.T) {
	c := h2conn()
	one, two := c.open("one"), c.open("two")
	c.answers(1, one)
	c.answers(3, two)
	for i, tt := range []struct {
		name string
		b    []byte
		want []*Truth
	}{
		{"settings, window of the stream", join(frame(0x4, 0, 0), frame(0x8, 0, 1, 0, 0, 0, 1)), nil},
		{"head", frame(frameHeaders, flagEndHeaders, 1, 'h'), []*Truth{one}},
		{"both", join(frame(frameData, 0, 1, 'a'), frame(frameHeaders, flagEndHeaders, 3, 'h'), frame(frameData, 0, 1, 'b')), []*Truth{one, two}},
		{"a frame cut in two", frame(frameData, flagEndStream, 1, 'c', 'd')[:10], []*Truth{one}},
		{"its rest", []byte{'d'}, []*Truth{one}},
		{"after the end", join(frame(frameRSTStream, 0, 1, 0, 0, 0, 0), frame(frameData, 0, 1, 'x')), nil},
		{"not reset yet", frame(frameData, 0, 3, 'e'), []*Truth{two}},
	} {
		got := c.h2out.write(tt.b, nil)
		if len(got) != len(tt.want) {
			t.Fatalf("%d, %s: %d pages, want %d", i, tt.name, len(got), len(tt.want))
		}
		for j := range got {
			if got[j] != tt.want[j] {
				t.Errorf("%s: page %d is another's", tt.name, j)
			}
		}
	}
}

func FuzzH2Requests(f *testing.F) {
	block := fields(f, ":path", "/v1/models/x")
	f.Add(join([]byte(clientPreface), frame(frameHeaders, flagEndStream|flagEndHeaders|flagPadded, 1, block...)), 3)
	f.Add(join([]byte(clientPreface), frame(frameHeaders, 0, 1, block[:2]...), frame(frameContinuation, flagEndHeaders, 1, block[2:]...)), 1)
	f.Fuzz(func(t *testing.T, wire []byte, cut int) {
		c := h2conn()
		cut = min(max(cut, 0), len(wire))
		c.h2in.read(wire[:cut], 1)
		c.h2in.read(wire[cut:], 2)
		c.h2out.write(wire, nil)
		if len(c.h2in.block) > maxBlock || len(c.h2in.open) > maxStreams {
			t.Errorf("unbounded: %d bytes, %d streams", len(c.h2in.block), len(c.h2in.open))
		}
	})
}

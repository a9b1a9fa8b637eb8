package event

import (
	"net/netip"
	"reflect"
	"testing"
	"unsafe"

	"github.com/peel-dev/peel/bpf"
)

// bytesOf is what the kernel would have written.
func bytesOf[T any](v *T) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}

func plainRaw() []byte {
	var r bpf.ObserverPlainEvent
	r.Hdr = bpf.ObserverEventHeader{Ts: 9, Conn: 7, Kind: uint8(KindPlain), Dir: uint8(In), Flags: uint16(FlagTLS | FlagGap)}
	r.Enter, r.Offset, r.Bytes, r.SeqLo, r.SeqHi = 8, 100, 50, 1, 80
	r.Protocol = uint8(ProtoHTTP2)
	data := append([]byte{0, 0, 0, 0, 3, 0, 0, 0}, "abc"...)
	data = append(data, 20, 0, 0, 0, 2, 0, 0, 0, 'x', 'y')
	copy(r.Data[:], data)
	r.DataLen = uint16(len(data))
	return bytesOf(&r)
}

func TestDecodePlain(t *testing.T) {
	var d Decoder
	ev, err := d.Decode(plainRaw())
	if err != nil {
		t.Fatal(err)
	}
	p := ev.(*Plain)
	want := []Piece{{At: 100, Data: []byte("abc")}, {At: 120, Data: []byte("xy")}}
	if !reflect.DeepEqual(p.Pieces, want) || p.Bytes != 50 || !p.Has(FlagTLS) || !p.Has(FlagGap) || p.Dir != In {
		t.Errorf("got %+v", p)
	}
}

func TestDecodeConn(t *testing.T) {
	r := bpf.ObserverConnEvent{LocalPort: 1, PeerPort: 443, Family: 4, Role: uint8(RoleClient), Pid: 12}
	r.Hdr.Kind, r.Hdr.Flags = uint8(KindConn), uint16(FlagFromStart)
	copy(r.Local[:], []byte{127, 0, 0, 1})
	copy(r.Peer[:], []byte{10, 0, 0, 2})
	r.Comm[0], r.Comm[1] = 'c', 'u'
	var d Decoder
	ev, err := d.Decode(bytesOf(&r))
	if err != nil {
		t.Fatal(err)
	}
	c := ev.(*Conn)
	if c.Peer != netip.MustParseAddrPort("10.0.0.2:443") || c.Comm != "cu" || !c.Has(FlagFromStart) {
		t.Errorf("got %+v", c)
	}
}

func TestDecodeSegmentWithoutRTT(t *testing.T) {
	r := bpf.ObserverSegmentEvent{RttMinUs: ^uint32(0), SrttUs: 3, Len: 5}
	r.Hdr.Kind = uint8(KindSegment)
	var d Decoder
	ev, err := d.Decode(bytesOf(&r))
	if err != nil {
		t.Fatal(err)
	}
	if s := ev.(*Segment); s.MinRTT != NoRTT || s.SRTT != 3000 || s.Len != 5 {
		t.Errorf("got %+v", s)
	}
}

func TestDecodeRefuses(t *testing.T) {
	short := plainRaw()[:plainData-1]
	cut := plainRaw()[:plainData+5]
	beyond := plainRaw()
	beyond[plainData] = 200 // the first piece begins after the call's end
	unknown := plainRaw()
	unknown[kindAt] = 99
	for name, raw := range map[string][]byte{
		"nothing": nil, "short": short, "cut data": cut, "piece beyond the call": beyond, "unknown kind": unknown,
	} {
		var d Decoder
		if ev, err := d.Decode(raw); err == nil {
			t.Errorf("%s: decoded %+v", name, ev)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(plainRaw())
	f.Add([]byte{})
	for k := range 9 {
		raw := make([]byte, 300)
		raw[kindAt] = byte(k)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var d Decoder
		ev, err := d.Decode(raw)
		if (ev == nil) == (err == nil) {
			t.Fatalf("event %v, error %v", ev, err)
		}
	})
}

func BenchmarkDecodePlain(b *testing.B) {
	raw := plainRaw()
	var d Decoder
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Decode(raw); err != nil {
			b.Fatal(err)
		}
	}
}

package http2

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"golang.org/x/net/http2"
)

// Frames that x/net writes are read as it reads them.
func TestFramesAgainstXNet(t *testing.T) {
	block := []byte{0x82, 0x86, 0x84}
	for _, tt := range []struct {
		name     string
		write    func(f *http2.Framer) error
		want     FrameHeader
		fragment []byte
	}{
		{"data", func(f *http2.Framer) error { return f.WriteData(1<<31-1, true, make([]byte, 1<<16)) },
			FrameHeader{Length: 1 << 16, Type: Data, Flags: EndStream, StreamID: 1<<31 - 1}, nil},
		{"headers", func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true, EndHeaders: true})
		}, FrameHeader{Length: 3, Type: Headers, Flags: EndStream | EndHeaders, StreamID: 1}, block},
		{"headers with all", func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block, PadLength: 7, Priority: http2.PriorityParam{StreamDep: 1, Weight: 9}})
		}, FrameHeader{Length: 3 + 1 + 7 + 5, Type: Headers, Flags: Padded | HasPriority, StreamID: 3}, block},
		{"headers of padding alone", func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, PadLength: 255})
		}, FrameHeader{Length: 256, Type: Headers, Flags: Padded, StreamID: 3}, []byte{}},
		{"push promise", func(f *http2.Framer) error {
			return f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: block, EndHeaders: true, PadLength: 2})
		}, FrameHeader{Length: 3 + 1 + 4 + 2, Type: PushPromise, Flags: EndHeaders | Padded, StreamID: 1}, block},
		{"continuation", func(f *http2.Framer) error { return f.WriteContinuation(1, true, block) },
			FrameHeader{Length: 3, Type: Continuation, Flags: EndHeaders, StreamID: 1}, block},
		{"settings ack", func(f *http2.Framer) error { return f.WriteSettingsAck() }, FrameHeader{Type: Settings, Flags: Ack}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var wire bytes.Buffer
			if err := tt.write(http2.NewFramer(&wire, nil)); err != nil {
				t.Fatal(err)
			}
			h, err := ParseFrameHeader(wire.Bytes())
			if err != nil || h != tt.want {
				t.Fatalf("got %+v, %v; want %+v", h, err, tt.want)
			}
			payload := wire.Bytes()[FrameHeaderLen:]
			fragment, err := HeaderFragment(h, append(payload, "next frame"...))
			if tt.fragment == nil {
				if !errors.Is(err, ErrMalformed) {
					t.Errorf("fragment of a %v: %v", h.Type, err)
				}
				return
			}
			if err != nil || !bytes.Equal(fragment, tt.fragment) {
				t.Errorf("fragment %x, %v; want %x", fragment, err, tt.fragment)
			}
			if _, err := HeaderFragment(h, payload[:h.Length-1]); !errors.Is(err, ErrShort) {
				t.Errorf("fragment of a cut frame: %v", err)
			}
		})
	}
}

func TestHeaderFragmentMalformed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		h       FrameHeader
		payload []byte
	}{
		{"no pad length", FrameHeader{Type: Headers, Flags: Padded}, nil},
		{"padding longer than the frame", FrameHeader{Type: Headers, Flags: Padded, Length: 3}, []byte{3, 1, 2}},
		{"no priority", FrameHeader{Type: Headers, Flags: HasPriority, Length: 4}, make([]byte, 4)},
		{"no promised stream", FrameHeader{Type: PushPromise, Length: 3}, make([]byte, 3)},
	} {
		if f, err := HeaderFragment(tt.h, tt.payload); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %x, %v", tt.name, f, err)
		}
	}
}

func TestParseFrameHeaderShort(t *testing.T) {
	if _, err := ParseFrameHeader(make([]byte, FrameHeaderLen-1)); !errors.Is(err, ErrShort) {
		t.Error(err)
	}
}

// The reserved bits are no part of a number.
func TestReservedBits(t *testing.T) {
	h, err := ParseFrameHeader([]byte{0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	if err != nil || h.StreamID != 1<<31-1 {
		t.Errorf("%+v, %v", h, err)
	}
	if last, _, _ := ParseGoAway([]byte{0x80, 0, 0, 1, 0, 0, 0, 0}); last != 1 {
		t.Errorf("last stream %d", last)
	}
	if n, _ := ParseWindowUpdate([]byte{0x80, 0, 0, 1}); n != 1 {
		t.Errorf("increment %d", n)
	}
}

func TestParseSettings(t *testing.T) {
	type setting struct {
		id uint16
		v  uint32
	}
	for _, tt := range []struct {
		payload []byte
		want    []setting
		err     error
	}{
		{nil, nil, nil},
		{[]byte{0, 1, 0, 0, 0x10, 0, 0, 4, 0xff, 0xff, 0xff, 0xff}, []setting{{SettingHeaderTableSize, 4096}, {SettingInitialWindowSize, 1<<32 - 1}}, nil},
		{[]byte{0, 3, 0, 0, 0, 100, 0}, []setting{{SettingMaxConcurrentStreams, 100}}, ErrShort},
	} {
		var got []setting
		err := ParseSettings(tt.payload, func(id uint16, v uint32) { got = append(got, setting{id, v}) })
		if !errors.Is(err, tt.err) || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%x: %v, %v", tt.payload, got, err)
		}
	}
}

func TestPayloads(t *testing.T) {
	last, code, err := ParseGoAway([]byte{0, 0, 0, 7, 0, 0, 0, 11, 'd', 'e', 'b', 'u', 'g'})
	if last != 7 || code != 11 || err != nil {
		t.Errorf("GOAWAY: %d, %d, %v", last, code, err)
	}
	if code, err := ParseRSTStream([]byte{0, 0, 0, 8}); code != 8 || err != nil {
		t.Errorf("RST_STREAM: %d, %v", code, err)
	}
	if n, err := ParseWindowUpdate([]byte{0, 1, 0, 0}); n != 1<<16 || err != nil {
		t.Errorf("WINDOW_UPDATE: %d, %v", n, err)
	}
	if _, _, err := ParseGoAway(make([]byte, 7)); !errors.Is(err, ErrShort) {
		t.Errorf("short GOAWAY: %v", err)
	}
	if _, err := ParseRSTStream(make([]byte, 3)); !errors.Is(err, ErrShort) {
		t.Errorf("short RST_STREAM: %v", err)
	}
	if _, err := ParseWindowUpdate(make([]byte, 3)); !errors.Is(err, ErrShort) {
		t.Errorf("short WINDOW_UPDATE: %v", err)
	}
}

func TestNames(t *testing.T) {
	for code := range uint32(14) {
		if got, want := ErrCodeName(code), http2.ErrCode(code).String(); got != want {
			t.Errorf("code %d: got %s, want %s", code, got, want)
		}
	}
	if got := ErrCodeName(1<<32 - 1); got != "0xffffffff" {
		t.Error(got)
	}
	for kind := range FrameType(10) {
		if got, want := kind.String(), http2.FrameType(kind).String(); got != want {
			t.Errorf("type %d: got %s, want %s", kind, got, want)
		}
	}
	if got := FrameType(0xfe).String(); got != "0xfe" {
		t.Error(got)
	}
	if Preface != http2.ClientPreface {
		t.Error("another preface")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84})
	f.Add([]byte{0, 0, 6, 1, 0x2c, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseFrameHeader(b)
		if err != nil {
			return
		}
		payload := b[FrameHeaderLen:]
		fragment, err := HeaderFragment(h, payload)
		if err == nil && (len(fragment) > int(h.Length) || !bytes.Contains(payload, fragment)) {
			t.Errorf("%+v: fragment %x of %x", h, fragment, payload)
		}
		var settings int
		if err := ParseSettings(payload, func(uint16, uint32) { settings++ }); (err == nil) != (len(payload)%6 == 0) || settings != len(payload)/6 {
			t.Errorf("%d settings of %d bytes: %v", settings, len(payload), err)
		}
	})
}

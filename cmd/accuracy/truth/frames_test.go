package truth

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestStreams reads what x/net's Framer wrote, in steps of all sizes.
func TestStreams(t *testing.T) {
	var up, down bytes.Buffer
	up.WriteString(http2.ClientPreface)
	client, server := http2.NewFramer(&up, nil), http2.NewFramer(&down, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	head := func(path string) []byte {
		block.Reset()
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: path}} {
			if err := encoder.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		return slices.Clone(block.Bytes())
	}
	at := func(b *bytes.Buffer) int64 { return int64(b.Len()) }

	client.WriteSettings()
	first := span{lo: at(&up)}
	client.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head("/e/a?sleep=1ms"), EndStream: true, EndHeaders: true, PadLength: 9, Priority: http2.PriorityParam{StreamDep: 3, Weight: 7}})
	first.hi = at(&up)
	second := span{lo: at(&up)}
	b := head("/e/b")
	client.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: b[:2]})
	client.WriteContinuation(3, true, b[2:])
	client.WriteData(3, false, make([]byte, 300))
	client.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: head("/e/a?sleep=1ms"), EndHeaders: true})
	client.WriteData(3, true, nil)
	second.hi = at(&up)

	server.WriteSettingsAck()
	var answers []span
	for _, stream := range []uint32{3, 1, 3} {
		lo := at(&down)
		server.WriteData(stream, false, make([]byte, 100))
		answers = append(answers, span{lo, at(&down)})
	}
	server.WritePing(false, [8]byte{})

	for _, step := range []int{1, 7, 9, 64, 1 << 20} {
		s := newStreams()
		in := frameWalk{skip: len(http2.ClientPreface), onFrame: s.request}
		for part := range slices.Chunk(up.Bytes(), step) {
			in.feed(part)
		}
		out := frameWalk{onFrame: s.answer}
		for part := range slices.Chunk(down.Bytes(), step) {
			out.feed(part)
		}
		if s.err != nil || len(s.messages) != 3 {
			t.Fatalf("in steps of %d: %d messages, %v", step, len(s.messages), s.err)
		}
		for i, want := range []message{
			{id: "a", stream: 1, request: first, whole: true, answer: answers[1:2]},
			{id: "b", stream: 3, request: second, whole: true, answer: []span{answers[0], answers[2]}},
		} {
			m := s.messages[i]
			if m.id != want.id || m.stream != want.stream || m.request != want.request || m.whole != want.whole || !slices.Equal(m.answer, want.answer) {
				t.Errorf("in steps of %d: %+v, want %+v", step, *m, want)
			}
		}
		if m := s.messages[2]; m.id != "a" || m.whole {
			t.Errorf("in steps of %d: a request that did not end: %+v", step, *m)
		}
	}
}

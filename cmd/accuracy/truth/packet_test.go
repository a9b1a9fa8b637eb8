package truth

import (
	"encoding/binary"
	"testing"
)

func tcp(from, to uint16, seq, ack uint32, flags uint8) []byte {
	b := make([]byte, 32) // with 12 bytes of options
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = 8<<4, flags
	return b
}

func ipv4(protocol byte, length int, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[9] = 4<<4|5, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(length))
	return append(b, payload...)
}

func ipv6(next byte, length int, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6] = 6<<4, next
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	return append(b, payload...)
}

func TestParse(t *testing.T) {
	request := tcp(40000, PortTLS, 7, 8, 0x18)
	answer := tcp(PortTLS, 40000, 7, 8, 0x12)
	for _, tt := range []struct {
		name string
		b    []byte
		size int
		want Packet
		ok   bool
	}{
		{"request", ipv4(6, 152, request), 152, Packet{ToServer: true, ClientPort: 40000, ServerPort: PortTLS, Seq: 7, Ack: 8, Len: 100, Flags: 0x18}, true},
		{"answer, IPv6", ipv6(6, 42, answer), 82, Packet{IPv6: true, ClientPort: 40000, ServerPort: PortTLS, Seq: 7, Ack: 8, Len: 10, Flags: 0x12}, true},
		{"padded", ipv4(6, 52, request), 60, Packet{ToServer: true, ClientPort: 40000, ServerPort: PortTLS, Seq: 7, Ack: 8, Flags: 0x18}, true},
		{"super-packet", ipv4(6, 0, request), 70052, Packet{ToServer: true, ClientPort: 40000, ServerPort: PortTLS, Seq: 7, Ack: 8, Len: 70000, Flags: 0x18}, true},
		{"UDP", ipv4(17, 152, request), 152, Packet{}, false},
		{"elsewhere", ipv4(6, 52, tcp(1, 2, 0, 0, 0)), 52, Packet{}, false},
		{"cut", ipv4(6, 152, request[:19]), 152, Packet{}, false},
		{"shorter than its header", ipv4(6, 30, request), 52, Packet{}, false},
		{"nothing", nil, 0, Packet{}, false},
		{"neither", []byte{0x50}, 1, Packet{}, false},
	} {
		got, ok := parse(tt.b, tt.size, Serving)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

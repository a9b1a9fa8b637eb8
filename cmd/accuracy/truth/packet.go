package truth

import "encoding/binary"

// TCP header flags.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
)

// Packet is a TCP segment as one end's device carried it.
type Packet struct {
	At         int64 // kernel's software time stamp, wall clock, ns
	ToServer   bool
	IPv6       bool
	ClientPort uint16
	ServerPort uint16
	Seq, Ack   uint32
	Len        int // payload bytes
	Flags      uint8
}

// parse reads the IP and TCP headers at the start of b, a packet of size
// bytes. serving says which ports are the server's.
func parse(b []byte, size int, serving func(uint16) bool) (p Packet, ok bool) {
	if len(b) < 1 {
		return p, false
	}
	var header int
	switch b[0] >> 4 {
	case 4:
		header = int(b[0]&15) * 4
		if header < 20 || len(b) < header || b[9] != 6 {
			return p, false
		}
		// Never more than one fragment here; a super-packet of 64 KiB has no
		// length of its own.
		if total := int(binary.BigEndian.Uint16(b[2:])); total != 0 && total < size {
			size = total
		}
	case 6:
		header = 40
		if len(b) < header || b[6] != 6 {
			return p, false
		}
		if payload := int(binary.BigEndian.Uint16(b[4:])); payload != 0 && payload+header < size {
			size = payload + header
		}
		p.IPv6 = true
	default:
		return p, false
	}
	t := b[header:]
	if len(t) < 20 {
		return p, false
	}
	data := int(t[12]>>4) * 4
	p.Len = size - header - data
	if data < 20 || p.Len < 0 {
		return p, false
	}
	from, to := binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
	switch {
	case serving(to):
		p.ToServer, p.ClientPort, p.ServerPort = true, from, to
	case serving(from):
		p.ClientPort, p.ServerPort = to, from
	default:
		return p, false
	}
	p.Seq, p.Ack, p.Flags = binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:]), t[13]
	return p, true
}

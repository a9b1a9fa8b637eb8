// Package event decodes what the kernel side reports: one record of the ring
// buffer becomes one value of this package. It is pure: it never calls the
// kernel and keeps no state but its own buffers.
package event

import "net/netip"

// Kind says what an event reports.
type Kind uint8

// The kinds, as bpf/event.h numbers them.
const (
	KindConn    Kind = 1
	KindSegment Kind = 2
	KindRecord  Kind = 3
	KindPlain   Kind = 4
	KindRecv    Kind = 5
	KindClose   Kind = 6
	KindProcess Kind = 7
)

// Dir is a direction as this host sees it.
type Dir uint8

// The directions.
const (
	Out Dir = 0
	In  Dir = 1
)

// Role is which end of the connection this host is.
type Role uint8

// The roles.
const (
	RoleClient Role = 1
	RoleServer Role = 2
)

// Flags qualify an event.
type Flags uint16

// The flags, as bpf/event.h numbers them.
const (
	FlagFromStart Flags = 1 << 0 // Conn: seen from its SYN on
	FlagTLS       Flags = 1 << 1 // Plain: from a TLS library, not off the wire
	FlagChunkEnd  Flags = 1 << 2 // Plain: the call's last five bytes are "0\r\n\r\n"
	FlagGap       Flags = 1 << 3 // Plain: bytes or framing before this call were lost
	FlagShort     Flags = 1 << 4 // Plain: heads of this call were too many to copy
	FlagMore      Flags = 1 << 5 // Plain: the same call goes on in the next event
)

// Protocol is what the kernel side took a plaintext stream for.
type Protocol uint8

// The protocols.
const (
	ProtoUnknown Protocol = 0
	ProtoHTTP1   Protocol = 1
	ProtoHTTP2   Protocol = 2
	ProtoOther   Protocol = 3
)

// TCP header flags.
const (
	FIN uint8 = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// NoRTT is Segment.MinRTT before the connection's first round trip sample.
const NoRTT int64 = -1

// Event is one of *Conn, *Segment, *Record, *Plain, *Recv, *Close, *Process.
// The value and the bytes it refers to are the decoder's: they hold until its
// next call.
type Event interface {
	Head() *Header
}

// Header is what every event has.
type Header struct {
	At    int64  // CLOCK_MONOTONIC, nanoseconds
	Conn  uint64 // socket cookie; 0 on a Process
	Lost  uint32 // events of this connection that the ring had no room for so far
	Kind  Kind
	Dir   Dir
	Flags Flags
}

// Head returns the header itself.
func (h *Header) Head() *Header { return h }

// Has reports whether flag is set.
func (h *Header) Has(flag Flags) bool { return h.Flags&flag != 0 }

// Conn says whose a connection is. It comes before all else of it; At is the
// time of connect(), just before the SYN leaves.
type Conn struct {
	Header
	Local, Peer netip.AddrPort
	Role        Role
	PID         uint32 // 0: not known
	Comm        string
}

// Segment is one TCP segment, pure ACKs, SYN, FIN and RST included.
type Segment struct {
	Header
	Seq      uint32 // of the first payload byte; of the SYN itself on a SYN
	Ack      uint32
	Len      uint32 // payload bytes; what goes out is not yet cut to the MSS
	Window   uint16 // unscaled
	Segs     uint16
	TCPFlags uint8
	MinRTT   int64 // the kernel's windowed minimum, ns; NoRTT: none yet
	SRTT     int64 // ns
	Retrans  uint32
	Cwnd     uint32
}

// Record is a TLS record of the handshake. At is the time of the packet that
// holds its header. Seq is that of the header's first byte; the record ends
// before Seq+5+Length. Data is the payload of a handshake or alert record in
// the clear, cut at 2048 bytes; else it is empty.
type Record struct {
	Header
	Seq     uint32
	Type    uint8
	Version uint16
	Length  int
	Data    []byte
}

// Piece is a copied stretch of a plaintext stream.
type Piece struct {
	At   uint64 // stream offset of Data[0]
	Data []byte
}

// Plain is one successful write (Out) or read (In) of plaintext. At is when
// the call returned, Enter when it began; off the wire both are the packet's
// time. Pieces holds only heads: HTTP/2 frame headers with the payloads of
// all frames but DATA (GOAWAY's cut at 8), HTTP/1 message heads.
type Plain struct {
	Header
	Enter        int64
	Offset       uint64 // of the call's first byte in this direction's plaintext
	Bytes        int
	SeqLo, SeqHi uint32 // TCP bytes [SeqLo, SeqHi) carry it
	PID, TID     uint32
	Protocol     Protocol
	Pieces       []Piece
}

// Recv says that the application has taken all bytes before Seq of a
// connection without TLS.
type Recv struct {
	Header
	Seq   uint32
	Bytes uint32
}

// Close is a connection's last event.
type Close struct {
	Header
	BytesOut, BytesIn uint64
	MinRTT, SRTT      int64
	Retrans           uint32
	OldState          uint32 // TCP state it was closed from
}

// Change is what happened to a process.
type Change uint8

// The changes.
const (
	Forked   Change = 1
	Executed Change = 2
	Exited   Change = 3
)

// Process reports a change of a watched process.
type Process struct {
	Header
	PID, PPID uint32
	Change    Change
	Comm      string
}

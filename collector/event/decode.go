package event

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/peel-dev/peel/bpf"
)

// Decoder turns records of the ring buffer into events. It is not safe for
// concurrent use.
type Decoder struct {
	raw struct { // aligned copies of what the kernel wrote
		conn    bpf.ObserverConnEvent
		segment bpf.ObserverSegmentEvent
		record  bpf.ObserverRecordEvent
		plain   bpf.ObserverPlainEvent
		recv    bpf.ObserverRecvEvent
		close   bpf.ObserverCloseEvent
		process bpf.ObserverProcessEvent
	}
	conn    Conn
	segment Segment
	record  Record
	plain   Plain
	recv    Recv
	close   Close
	process Process
}

// Where the kind stands in every event, and what comes before the data of the
// two that end in some.
const (
	headerSize  = int(unsafe.Sizeof(bpf.ObserverEventHeader{}))
	kindAt      = int(unsafe.Offsetof(bpf.ObserverEventHeader{}.Kind))
	recordData  = int(unsafe.Offsetof(bpf.ObserverRecordEvent{}.Data))
	plainData   = int(unsafe.Offsetof(bpf.ObserverPlainEvent{}.Data))
	pieceHeader = int(unsafe.Sizeof(bpf.ObserverPiece{}))
)

// Decode decodes one record. The event and all it refers to hold until the
// next call.
func (d *Decoder) Decode(raw []byte) (Event, error) {
	if len(raw) < headerSize {
		return nil, fmt.Errorf("decode event: %d bytes, fewer than a header", len(raw))
	}
	switch kind := Kind(raw[kindAt]); kind {
	case KindConn:
		return d.decodeConn(raw)
	case KindSegment:
		return d.decodeSegment(raw)
	case KindRecord:
		return d.decodeRecord(raw)
	case KindPlain:
		return d.decodePlain(raw)
	case KindRecv:
		return d.decodeRecv(raw)
	case KindClose:
		return d.decodeClose(raw)
	case KindProcess:
		return d.decodeProcess(raw)
	default:
		return nil, fmt.Errorf("decode event: unknown kind %d", kind)
	}
}

// fill copies raw into to, of which it must bring the first least bytes.
func fill[T any](to *T, raw []byte, least int) error {
	if len(raw) < least {
		return fmt.Errorf("decode event of kind %d: %d bytes, want %d", raw[kindAt], len(raw), least)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), unsafe.Sizeof(*to)), raw)
	return nil
}

func header(h *bpf.ObserverEventHeader) Header {
	return Header{
		At:    int64(h.Ts),
		Conn:  h.Conn,
		Lost:  h.Lost,
		Kind:  Kind(h.Kind),
		Dir:   Dir(h.Dir & 1),
		Flags: Flags(h.Flags),
	}
}

func (d *Decoder) decodeConn(raw []byte) (Event, error) {
	r := &d.raw.conn
	if err := fill(r, raw, int(unsafe.Sizeof(*r))); err != nil {
		return nil, err
	}
	d.conn = Conn{
		Header: header(&r.Hdr),
		Local:  addrPort(r.Local, r.LocalPort, r.Family),
		Peer:   addrPort(r.Peer, r.PeerPort, r.Family),
		Role:   Role(r.Role),
		PID:    r.Pid,
		Comm:   text(r.Comm[:]),
	}
	return &d.conn, nil
}

func (d *Decoder) decodeSegment(raw []byte) (Event, error) {
	r := &d.raw.segment
	if err := fill(r, raw, int(unsafe.Sizeof(*r))); err != nil {
		return nil, err
	}
	d.segment = Segment{
		Header:   header(&r.Hdr),
		Seq:      r.Seq,
		Ack:      r.Ack,
		Len:      r.Len,
		Window:   r.Window,
		Segs:     r.Segs,
		TCPFlags: r.TcpFlags,
		MinRTT:   minRTT(r.RttMinUs),
		SRTT:     int64(r.SrttUs) * 1000,
		Retrans:  r.Retrans,
		Cwnd:     r.Cwnd,
	}
	return &d.segment, nil
}

func (d *Decoder) decodeRecord(raw []byte) (Event, error) {
	r := &d.raw.record
	if err := fill(r, raw, recordData); err != nil {
		return nil, err
	}
	n := int(r.DataLen)
	if n > len(r.Data) || recordData+n > len(raw) {
		return nil, fmt.Errorf("decode record event: %d bytes of data in %d", n, len(raw))
	}
	d.record = Record{
		Header:  header(&r.Hdr),
		Seq:     r.Seq,
		Type:    r.Type,
		Version: r.Version,
		Length:  int(r.Length),
		Data:    r.Data[:n],
	}
	return &d.record, nil
}

func (d *Decoder) decodePlain(raw []byte) (Event, error) {
	r := &d.raw.plain
	if err := fill(r, raw, plainData); err != nil {
		return nil, err
	}
	n := int(r.DataLen)
	if n > len(r.Data) || plainData+n > len(raw) {
		return nil, fmt.Errorf("decode plain event: %d bytes of data in %d", n, len(raw))
	}
	pieces := d.plain.Pieces[:0]
	for data := r.Data[:n]; len(data) > 0; {
		if len(data) < pieceHeader {
			return nil, fmt.Errorf("decode plain event: %d bytes after its last piece", len(data))
		}
		at := binary.NativeEndian.Uint32(data[unsafe.Offsetof(bpf.ObserverPiece{}.At):])
		length := binary.NativeEndian.Uint32(data[unsafe.Offsetof(bpf.ObserverPiece{}.Len):])
		data = data[pieceHeader:]
		if uint64(length) > uint64(len(data)) || uint64(at)+uint64(length) > uint64(r.Bytes) {
			return nil, fmt.Errorf("decode plain event: piece of %d bytes at %d is not in the call's %d", length, at, r.Bytes)
		}
		pieces = append(pieces, Piece{At: r.Offset + uint64(at), Data: data[:length]})
		data = data[length:]
	}
	d.plain = Plain{
		Header:   header(&r.Hdr),
		Enter:    int64(r.Enter),
		Offset:   r.Offset,
		Bytes:    int(r.Bytes),
		SeqLo:    r.SeqLo,
		SeqHi:    r.SeqHi,
		PID:      r.Pid,
		TID:      r.Tid,
		Protocol: Protocol(r.Protocol),
		Pieces:   pieces,
	}
	return &d.plain, nil
}

func (d *Decoder) decodeRecv(raw []byte) (Event, error) {
	r := &d.raw.recv
	if err := fill(r, raw, int(unsafe.Sizeof(*r))); err != nil {
		return nil, err
	}
	d.recv = Recv{Header: header(&r.Hdr), Seq: r.Seq, Bytes: r.Bytes}
	return &d.recv, nil
}

func (d *Decoder) decodeClose(raw []byte) (Event, error) {
	r := &d.raw.close
	if err := fill(r, raw, int(unsafe.Sizeof(*r))); err != nil {
		return nil, err
	}
	d.close = Close{
		Header:   header(&r.Hdr),
		BytesOut: r.BytesOut,
		BytesIn:  r.BytesIn,
		MinRTT:   minRTT(r.RttMinUs),
		SRTT:     int64(r.SrttUs) * 1000,
		Retrans:  r.Retrans,
		OldState: r.OldState,
	}
	return &d.close, nil
}

func (d *Decoder) decodeProcess(raw []byte) (Event, error) {
	r := &d.raw.process
	if err := fill(r, raw, int(unsafe.Sizeof(*r))); err != nil {
		return nil, err
	}
	d.process = Process{
		Header: header(&r.Hdr),
		PID:    r.Pid,
		PPID:   r.Ppid,
		Change: Change(r.Change),
		Comm:   text(r.Comm[:]),
	}
	return &d.process, nil
}

func addrPort(addr [16]byte, port uint16, family uint8) netip.AddrPort {
	if family == 4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr[:4])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), port)
}

// minRTT maps the kernel's "no sample yet" (tcp_min_rtt's initial ~0U).
func minRTT(us uint32) int64 {
	if us == ^uint32(0) {
		return NoRTT
	}
	return int64(us) * 1000
}

func text(comm []int8) string {
	var b [16]byte
	n := 0
	for n < len(comm) && n < len(b) && comm[n] != 0 {
		b[n] = byte(comm[n])
		n++
	}
	return string(b[:n])
}

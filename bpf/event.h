// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// event.h is the contract with the collector: every record of the ring buffer.
// bpf2go turns these structs into Go types; collector/event decodes them.
// Times are CLOCK_MONOTONIC nanoseconds. Sequence numbers are TCP's own, in
// host byte order. All structs are laid out without implicit padding.
#pragma once

#include <linux/types.h>

enum event_kind {
	KIND_CONN = 1,    // a watched connection: its addresses and its owner
	KIND_SEGMENT = 2, // a TCP segment of a watched connection, either direction
	KIND_RECORD = 3,  // a TLS record of the handshake, as the packets carry it
	KIND_PLAIN = 4,   // one write or read of plaintext; heads only, never bodies
	KIND_RECV = 5,    // the application took bytes of a connection without TLS
	KIND_CLOSE = 6,   // the connection's last word
	KIND_PROCESS = 7, // a process that is watched was forked, executed, ended
};

enum direction {
	DIR_OUT = 0, // egress, write
	DIR_IN = 1,  // ingress, read
};

enum role {
	ROLE_CLIENT = 1,
	ROLE_SERVER = 2,
};

// What the header's flags say.
enum event_flag {
	FLAG_FROM_START = 1 << 0, // CONN: seen from its SYN on
	FLAG_TLS = 1 << 1,        // PLAIN: came out of a TLS library, not off the wire
	FLAG_CHUNK_END = 1 << 2,  // PLAIN: the call's last five bytes are "0\r\n\r\n"
	FLAG_GAP = 1 << 3,        // PLAIN: bytes or framing before this call were lost
	FLAG_SHORT = 1 << 4,      // PLAIN: heads of this call were too many to copy
	FLAG_MORE = 1 << 5,       // PLAIN: the same call goes on in the next event
};

// Protocols the kernel tells apart, to know what of a stream is a head.
enum protocol {
	PROTO_UNKNOWN = 0,
	PROTO_HTTP1 = 1,
	PROTO_HTTP2 = 2,
	PROTO_OTHER = 3,
};

enum process_change {
	PROCESS_FORK = 1,
	PROCESS_EXEC = 2,
	PROCESS_EXIT = 3,
};

struct event_header {
	__u64 ts;
	__u64 conn; // socket cookie; 0 on KIND_PROCESS
	__u32 lost; // events of this connection that found the ring full so far
	__u8 kind;  // enum event_kind
	__u8 dir;   // enum direction
	__u16 flags;
};

struct conn_event {
	struct event_header hdr;
	__u8 local[16]; // IPv4 in the first four bytes
	__u8 peer[16];
	__u16 local_port;
	__u16 peer_port;
	__u8 family; // 4 or 6
	__u8 role;
	__u8 pad[2];
	__u32 pid; // 0: not known
	__u32 pad2;
	char comm[16];
};

struct segment_event {
	struct event_header hdr;
	__u32 seq; // of the first payload byte; of the SYN itself on a SYN
	__u32 ack;
	__u32 len; // payload bytes
	__u16 window;
	__u16 segs; // wire segments behind this skb (GSO, GRO)
	__u32 rtt_min_us; // 4294967295: no sample yet
	__u32 srtt_us;
	__u32 retrans; // total retransmitted segments so far
	__u32 cwnd;
	__u8 tcp_flags;
	__u8 pad[7];
};

#define RECORD_DATA 2048

// record_event: data_len bytes of data follow, the record's payload without
// its five-byte header. Only a handshake or alert record in the clear has any.
struct record_event {
	struct event_header hdr;
	__u32 seq; // of the record header's first byte
	__u16 length; // payload length that the header states
	__u16 data_len;
	__u16 version;
	__u8 type;
	__u8 pad[5];
	__u8 data[RECORD_DATA];
};

#define PLAIN_DATA 2048
#define PLAIN_COPY 256 // the most that one step copies

// piece comes before each stretch of copied bytes in plain_event.data: len
// bytes follow, the stream's from plain_event.offset + at on.
struct piece {
	__u32 at;
	__u32 len;
};

// plain_event is one successful call of a TLS library's read or write, or one
// segment of plain HTTP. hdr.ts is its return (the packet's time), enter its
// entry. The bytes copied are heads: HTTP/2 frame headers and the payloads of
// HEADERS, CONTINUATION, PUSH_PROMISE, PRIORITY, SETTINGS, RST_STREAM,
// WINDOW_UPDATE, eight bytes of GOAWAY's, the pad length of a padded DATA;
// HTTP/1 message heads. data_len bytes of data hold.
struct plain_event {
	struct event_header hdr;
	__u64 enter;
	__u64 offset; // of the call's first byte in this direction's plaintext
	__u32 bytes;  // plaintext bytes of the call
	__u32 seq_lo; // the TCP bytes that carry this plaintext: [seq_lo, seq_hi)
	__u32 seq_hi;
	__u32 pid;
	__u32 tid;
	__u16 data_len;
	__u16 last_piece; // the kernel's own: where in data the last piece begins,
	__u32 last_end;   // and the position in the call after it
	__u8 protocol;
	__u8 pad[3];
	__u8 data[PLAIN_DATA + PLAIN_COPY];
};

struct recv_event {
	struct event_header hdr;
	__u32 seq; // the application has all bytes before this one
	__u32 bytes; // 0 the first time: not known
};

struct close_event {
	struct event_header hdr;
	__u64 bytes_out; // acknowledged by the peer
	__u64 bytes_in;
	__u32 rtt_min_us;
	__u32 srtt_us;
	__u32 retrans;
	__u32 old_state; // enum of the TCP state it was closed from
};

struct process_event {
	struct event_header hdr;
	__u32 pid;
	__u32 ppid;
	__u8 change; // enum process_change
	__u8 pad[7];
	char comm[16];
};

_Static_assert(sizeof(struct event_header) == 24, "events share one header");
_Static_assert(__builtin_offsetof(struct plain_event, data) % 8 == 0, "no hidden padding");
_Static_assert(sizeof(struct plain_event) % 8 == 0, "no hidden padding");
_Static_assert(sizeof(struct segment_event) % 8 == 0, "no hidden padding");
_Static_assert(sizeof(struct record_event) % 8 == 0, "no hidden padding");

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// maps.h: all state of the kernel side, with who inserts, reads and deletes.
#pragma once

#include "core.h"
#include "event.h"

// Early exits and drops, each with its name in collector/probe.
enum reason {
	REASON_RING_FULL,      // an event found no room in the ring buffer
	REASON_CONNS_FULL,     // a connection could not be watched: table full
	REASON_STORAGE_FAILED, // a connection could not be watched: no socket storage
	REASON_HEADER_UNREAD,  // a segment's headers could not be read
	REASON_NOT_TLS_RECORD, // a record walk met bytes that are no record header
	REASON_WALK_GAP,       // a record walk missed a segment and ended
	REASON_CALLS_FULL,     // a thread's library call could not be noted
	REASON_CALL_ELSEWHERE, // a library call moved bytes, but on no watched connection
	REASON_CALL_REJOINED,  // a TLS session moved to another socket
	REASON_CALL_UNREAD,    // a call's buffer could not be read
	REASON_SCAN_LIMIT,     // a call held more heads than one pass looks at
	REASON_HEAD_LIMIT,     // an HTTP/1 head was longer than what is copied
	REASON_FRAMING_LOST,   // an HTTP/2 stream went on with what is no frame
	REASON_NOT_HTTP,       // a stream's first bytes are neither HTTP/1 nor HTTP/2
	REASON_COUNT,
};

// What is wanted, set before load.
const volatile bool filter_targets = false; // only processes in the map targets
const volatile bool filter_ports = false;   // only peer ports in the map ports
const volatile bool filter_cidrs = false;   // only peers in the map cidrs
const volatile bool filter_comms = false;   // with filter_targets: programs named in comms too
const volatile bool wake_on_connect = false; // a reader is to act on new connections
const volatile bool want_client = true;
const volatile bool want_server = false;

// events: every program inserts; the collector reads.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
	__type(value, union {
		struct conn_event conn;
		struct segment_event segment;
		struct record_event record;
		struct plain_event plain;
		struct recv_event recv;
		struct close_event close;
		struct process_event process;
		struct piece piece;
	});
} events SEC(".maps");

// reasons: every program adds; the collector reads.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_COUNT);
	__type(key, enum reason);
	__type(value, __u64);
} reasons SEC(".maps");

static __always_inline void count(enum reason reason)
{
	__u64 *value = bpf_map_lookup_elem(&reasons, &reason);

	if (value)
		*value += 1;
}

// walk follows the TLS record headers of one direction while the handshake
// lasts.
struct walk {
	__u32 next; // sequence number of the next record header
	__u8 left;  // records still to report
	__u8 have;  // bytes of a header that two segments share
	__u8 begun;
	__u8 ciphered; // a ChangeCipherSpec passed: handshake bytes are secret now
	__u8 header[16];
};

enum carries {
	CARRIES_UNKNOWN,
	CARRIES_TLS,
	CARRIES_PLAIN,
	CARRIES_OTHER,
};

// socket_state is the "watched" mark of a socket.
struct socket_state {
	__u64 conn;
	__u32 lost;
	__u8 carries; // enum carries
	__u8 role;
	__u8 zero_window;
	__u8 pad;
	struct walk walk[2]; // by direction
};

// sockets: sockops inserts when a connection starts; packets read and change
// their own socket's; the kernel deletes with the socket.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_state);
} sockets SEC(".maps");

// stream is one direction of a connection's plaintext.
struct stream {
	__u64 offset;    // plaintext bytes so far
	__u32 remain;    // HTTP/2: left of the frame; HTTP/1: left of the body
	__u32 copy;      // HTTP/2: bytes of the frame's payload still to copy
	__u32 next;      // plain HTTP: sequence number of the next byte
	__u32 head_len;  // HTTP/1: bytes of this head so far
	__u32 length;    // HTTP/1: Content-Length of this head
	__u32 at;        // bytes of this call that were looked at
	__u32 taken;     // bytes that the last step took
	__u8 state;      // enum stream_state
	__u8 have;       // HTTP/2: bytes of a frame header held in header
	__u8 line_start; // HTTP/1: the next byte begins a line
	__u8 body;       // HTTP/1: enum body
	__u8 interim;    // HTTP/1: the head's status is 1xx
	__u8 switching;  // HTTP/1: the head's status is 101
	__u8 gap;        // enum gap
	__u8 begun;
	__u8 kind;       // HTTP/1: enum line_kind of the last line
	__u8 passes;     // events that this call may still fill
	__u8 pad[2];
	__u8 header[16];
};

// conn_state joins a connection's plaintext to its bytes on the wire.
struct conn_state {
	__u64 conn;
	__u64 session; // the TLS library's object, 0: none yet
	__u32 lost;
	__u32 sent;     // sequence number after the last send
	__u32 received; // after the last receive
	__u32 write_lo; // where the write that is under way began
	__u32 record_lo; // the TLS record that is being read: its first byte
	__u32 heads_out; // HTTP/1: requests begun
	__u32 heads_in;  // HTTP/1: final answers begun
	__u8 protocol;
	__u8 writing; // write_lo holds
	__u8 plain;   // no TLS
	__u8 has_received;
	__u8 role;
	__u8 pad[3];
	struct stream stream[2]; // by direction
};

// conns: sockops inserts with the socket's storage and deletes when it closes;
// packets, socket calls and library probes look up. Every socket that began
// to connect ends in that close, and a full table is counted.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct conn_state);
} conns SEC(".maps");

enum call_style {
	CALL_BYTES, // returns the bytes moved
	CALL_DONE,  // returns 1 and stores the bytes moved
};

// call is a TLS library's read or write that a thread is in.
struct call {
	__u64 session;
	__u64 buffer;
	__u64 done; // where the callee stores the bytes moved
	__u64 enter;
	__u64 conn; // joined by the sends and receives inside, 0: none
	__u8 active;
	__u8 dir;
	__u8 style;
	__u8 pad[5];
};

// calls: a library's entry probe inserts a thread's entry once and reuses it;
// socket calls and the return probe read it; the thread's exit deletes it.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct call);
} calls SEC(".maps");

// Events of plaintext are made here, not in the ring buffer, before Linux 5.17.

// library_draft: the return probe writes and reads it within one call. No other
// runs on that CPU meanwhile: before 5.17 a uprobe is not preempted.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plain_event);
} library_draft SEC(".maps");

struct segment_drafts {
	struct plain_event event[2]; // by direction
};

// socket_drafts: a packet of a watched connection without TLS inserts; packets
// write and read their own socket's; the kernel deletes with the socket.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct segment_drafts);
} socket_drafts SEC(".maps");

// socket_calls: kprobes insert the socket of a thread's send or receive and
// their return probes read and delete it; not loaded where tracepoints serve.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} socket_calls SEC(".maps");

struct session_key {
	__u64 session;
	__u32 tgid;
	__u32 pad;
};

// sessions: the return probe inserts what a nested send or receive has proven;
// it looks up for a read that needs no receive. The connection must still
// agree, so an entry that outlives its session is refused.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct session_key);
	__type(value, __u64);
} sessions SEC(".maps");

struct owner {
	__u32 tgid;
	__u32 pad;
	char comm[16];
};

// owners: connect() inserts in the process's own context; sockops reads and
// deletes a moment later. A connect that sends no SYN leaves one for the LRU.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct owner);
} owners SEC(".maps");

enum target {
	TARGET_WATCHED = 1,
	TARGET_PARENT = 2, // only its children are watched
};

// targets: the collector inserts; fork inserts the children; exit deletes.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u8);
} targets SEC(".maps");

// comms: the collector inserts before the programs run; exec makes a process
// of such a name a target.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, char[16]);
	__type(value, __u8);
} comms SEC(".maps");

// ports, cidrs: the collector inserts before the programs run.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u16);
	__type(value, __u8);
} ports SEC(".maps");

struct cidr_key {
	__u32 prefixlen; // IPv4 as ::ffff:a.b.c.d, so 96 and more
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 64);
	__type(key, struct cidr_key);
	__type(value, __u8);
} cidrs SEC(".maps");

// bytes counts what watched connections carried, also where nothing else was
// seen: packets add, the collector reads.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} traffic SEC(".maps");

static __always_inline bool watched_process(__u32 tgid)
{
	__u8 *target;

	if (!filter_targets)
		return true;
	target = bpf_map_lookup_elem(&targets, &tgid);
	return target && *target == TARGET_WATCHED;
}

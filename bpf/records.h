// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// records.h: TLS record headers and hello messages off the packets, for any
// TLS library (RFC 8446 section 5.1). The walk ends with the handshake.
#pragma once

#include "maps.h"

#define RECORD_HEADER 5
#define RECORDS_OUT 8 // ClientHello twice, CCS, Finished, first data; TLS 1.2: one more
#define RECORDS_IN 16 // a server flight in single records, tickets, HelloRetryRequest
#define TLS_CCS 20
#define TLS_ALERT 21
#define TLS_HANDSHAKE 22
#define TLS_DATA 23
#define CLIENT_HELLO 1
#define SERVER_HELLO 2

// tell_apart decides by the first bytes that leave a client (or reach a
// server) what the connection carries.
static __always_inline void tell_apart(struct __sk_buff *skb, struct socket_state *socket,
				       __u32 headers, enum direction dir)
{
	struct conn_state *state;
	__u8 first[2];

	if ((dir == DIR_OUT) != (socket->role == ROLE_CLIENT)) {
		// The other side speaks first: neither TLS nor HTTP.
		socket->carries = CARRIES_OTHER;
		count(REASON_NOT_HTTP);
		return;
	}
	if (bpf_skb_load_bytes(skb, headers, first, sizeof(first)))
		return;
	if (first[0] == TLS_HANDSHAKE && first[1] == 3) {
		socket->carries = CARRIES_TLS;
		socket->walk[DIR_OUT].left = socket->role == ROLE_CLIENT ? RECORDS_OUT : RECORDS_IN;
		socket->walk[DIR_IN].left = socket->role == ROLE_CLIENT ? RECORDS_IN : RECORDS_OUT;
		return;
	}
	state = bpf_map_lookup_elem(&conns, &socket->conn);
	if (!state)
		return;
	socket->carries = CARRIES_PLAIN;
	state->plain = 1;
}

static __always_inline void report_record(struct __sk_buff *skb, struct socket_state *socket,
					  __u32 at, __u32 there, __u32 seq, enum direction dir,
					  __u64 now)
{
	struct walk *walk = &socket->walk[dir];
	struct record_event *event;
	__u16 length = walk->header[3] << 8 | walk->header[4];
	__u8 type = walk->header[0], message = 0;
	__u32 n = 0;

	if (type == TLS_CCS)
		walk->ciphered = 1;
	if (type == TLS_HANDSHAKE || type == TLS_ALERT) {
		n = length < there ? length : there;
		if (n > RECORD_DATA)
			n = RECORD_DATA;
		// A hello is in the clear also after the CCS that goes before
		// the second one (RFC 8446 appendix D.4).
		if (walk->ciphered && (bpf_skb_load_bytes(skb, at, &message, 1) ||
				       (message != CLIENT_HELLO && message != SERVER_HELLO)))
			n = 0;
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(REASON_RING_FULL);
		socket->lost++;
		return;
	}
	__builtin_memset(event, 0, __builtin_offsetof(struct record_event, data));
	event->hdr.ts = now;
	event->hdr.conn = socket->conn;
	event->hdr.lost = socket->lost;
	event->hdr.kind = KIND_RECORD;
	event->hdr.dir = dir;
	event->seq = seq;
	event->length = length;
	event->version = walk->header[1] << 8 | walk->header[2];
	event->type = type;
	if (n) {
		n = one_to(n, RECORD_DATA);
		if (!bpf_skb_load_bytes(skb, at, event->data, n))
			event->data_len = n;
	}
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void walk_records(struct __sk_buff *skb, struct socket_state *socket,
					 __u32 headers, __u32 len, __u32 seq, enum direction dir,
					 __u64 now)
{
	struct walk *walk = &socket->walk[dir];
	__s32 at;
	__u32 n;

	if (!walk->begun) {
		walk->begun = 1;
		walk->next = seq;
	}
	for (int i = 0; i < RECORDS_IN && walk->left; i++) {
		// The part of the header that this segment has to bring.
		at = (__s32)(walk->next + walk->have - seq);
		if (at < 0) {
			if ((__s32)(seq - walk->next) > 0)
				count(REASON_WALK_GAP);
			return; // else sent again
		}
		if (at >= (__s32)len)
			return; // the next header is not here yet
		n = RECORD_HEADER - (walk->have & 7);
		if (n > len - at)
			n = len - at;
		if (n == 0)
			return;
		n = one_to(n, RECORD_HEADER);
		if (bpf_skb_load_bytes(skb, headers + at, &walk->header[walk->have & 7], n)) {
			count(REASON_HEADER_UNREAD);
			walk->left = 0;
			return;
		}
		walk->have += n;
		if (walk->have < RECORD_HEADER)
			return;
		if (walk->header[0] < TLS_CCS || walk->header[0] > TLS_DATA || walk->header[1] != 3) {
			count(REASON_NOT_TLS_RECORD);
			walk->left = 0;
			return;
		}
		at += n;
		report_record(skb, socket, headers + at, len - at, walk->next, dir, now);
		walk->next += RECORD_HEADER + (walk->header[3] << 8 | walk->header[4]);
		walk->have = 0;
		walk->left--;
	}
}

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// transport.h: connections and their segments.
#pragma once

#include "http.h"
#include "maps.h"
#include "records.h"

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_CLOSED 7 // BPF_TCP_CLOSE

struct tcp_header {
	__be16 source, dest;
	__be32 seq, ack_seq;
	__u8 offset; // header length in words, upper four bits
	__u8 flags;
	__be16 window, check, urgent;
};

static __always_inline bool wanted_peer(__u16 port, const __u8 addr[16], bool v4)
{
	if (filter_ports && !bpf_map_lookup_elem(&ports, &port))
		return false;
	if (filter_cidrs) {
		struct cidr_key key = {.prefixlen = 128};

		if (v4) {
			key.addr[10] = key.addr[11] = 0xff;
			__builtin_memcpy(key.addr + 12, addr, 4);
		} else {
			__builtin_memcpy(key.addr, addr, 16);
		}
		if (!bpf_map_lookup_elem(&cidrs, &key))
			return false;
	}
	return true;
}

// COPY_WORD reads a context field by itself: the compiler would else compute
// its address, which the verifier refuses.
#define COPY_WORD(to, index, field)                                                               \
	(((__u32 *)(to))[index] = *(const volatile __u32 *)&(field))

static __always_inline void watch(struct bpf_sock_ops *ctx, enum role role)
{
	struct socket_state *socket, fresh = {};
	struct conn_state state = {};
	struct bpf_sock *sk = ctx->sk;
	struct conn_event *event;
	struct owner *owner = NULL;
	__u8 local[16] __attribute__((aligned(8))) = {}, peer[16] __attribute__((aligned(8))) = {};
	__u64 conn;
	__u16 local_port = ctx->local_port, peer_port = bpf_ntohl(ctx->remote_port);
	bool v4 = ctx->family == AF_INET;

	if (!sk)
		return;
	if (v4) {
		COPY_WORD(local, 0, ctx->local_ip4);
		COPY_WORD(peer, 0, ctx->remote_ip4);
	} else {
		COPY_WORD(local, 0, ctx->local_ip6[0]);
		COPY_WORD(local, 1, ctx->local_ip6[1]);
		COPY_WORD(local, 2, ctx->local_ip6[2]);
		COPY_WORD(local, 3, ctx->local_ip6[3]);
		COPY_WORD(peer, 0, ctx->remote_ip6[0]);
		COPY_WORD(peer, 1, ctx->remote_ip6[1]);
		COPY_WORD(peer, 2, ctx->remote_ip6[2]);
		COPY_WORD(peer, 3, ctx->remote_ip6[3]);
	}
	// A server's port is its own.
	if (!wanted_peer(role == ROLE_CLIENT ? peer_port : local_port, peer, v4))
		return;

	// Only now: a socket without a cookie costs the other programs nothing.
	conn = bpf_get_socket_cookie(ctx);
	if (role == ROLE_CLIENT) {
		owner = bpf_map_lookup_elem(&owners, &conn);
		if (!owner && filter_targets)
			return;
	}
	state.conn = conn;
	state.role = role;
	if (bpf_map_update_elem(&conns, &conn, &state, BPF_ANY)) {
		count(REASON_CONNS_FULL);
		return;
	}
	socket = bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!socket) {
		count(REASON_STORAGE_FAILED);
		bpf_map_delete_elem(&conns, &conn);
		return;
	}
	socket->conn = conn;
	socket->role = role;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);

	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(REASON_RING_FULL);
		socket->lost++;
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->hdr.ts = bpf_ktime_get_ns();
	event->hdr.conn = conn;
	event->hdr.kind = KIND_CONN;
	event->hdr.flags = FLAG_FROM_START;
	__builtin_memcpy(event->local, local, 16);
	__builtin_memcpy(event->peer, peer, 16);
	event->local_port = local_port;
	event->peer_port = peer_port;
	event->family = v4 ? 4 : 6;
	event->role = role;
	if (owner) {
		event->pid = owner->tgid;
		__builtin_memcpy(event->comm, owner->comm, sizeof(event->comm));
		bpf_map_delete_elem(&owners, &conn);
	}
	bpf_ringbuf_submit(event, wake_on_connect ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void on_closed(struct bpf_sock_ops *ctx)
{
	struct close_event *event;
	struct conn_state *state;
	__u64 conn = bpf_get_socket_cookie(ctx);

	state = bpf_map_lookup_elem(&conns, &conn);
	if (!state)
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (event) {
		__builtin_memset(event, 0, sizeof(*event));
		event->hdr.ts = bpf_ktime_get_ns();
		event->hdr.conn = conn;
		event->hdr.lost = state->lost;
		event->hdr.kind = KIND_CLOSE;
		event->bytes_out = ctx->bytes_acked;
		event->bytes_in = ctx->bytes_received;
		event->rtt_min_us = ctx->rtt_min;
		event->srtt_us = ctx->srtt_us >> 3;
		event->retrans = ctx->total_retrans;
		event->old_state = ctx->args[0];
		bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	} else {
		count(REASON_RING_FULL);
	}
	bpf_map_delete_elem(&conns, &conn);
}

static __always_inline void on_socket(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		if (want_client)
			watch(ctx, ROLE_CLIENT);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (want_server)
			watch(ctx, ROLE_SERVER);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == TCP_CLOSED)
			on_closed(ctx);
		break;
	}
}

static __always_inline void lost_segment(struct socket_state *socket)
{
	struct conn_state *state = bpf_map_lookup_elem(&conns, &socket->conn);

	count(REASON_RING_FULL);
	socket->lost++;
	if (state) {
		// One number for the connection, whoever lost the event.
		__sync_fetch_and_add(&state->lost, 1);
		socket->lost = state->lost;
	}
}

// ip_header returns where the TCP header begins, 0 when that cannot be told. A
// packet of more than 64 KiB (IPv6 GSO before Linux 7.0) has a hop-by-hop
// header (RFC 2675).
static __always_inline __u32 ip_header(struct __sk_buff *skb)
{
	__u8 ip[8], option[2];

	if (bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)))
		return 0;
	if (ip[0] >> 4 == 4)
		return (ip[0] & 15) * 4;
	if (ip[6] != IPPROTO_HOPOPTS)
		return ip[6] == IPPROTO_TCP ? 40 : 0;
	if (bpf_skb_load_bytes(skb, 40, option, sizeof(option)) || option[0] != IPPROTO_TCP)
		return 0;
	return 48 + option[1] * 8;
}

static __always_inline void on_segment(struct __sk_buff *skb, enum direction dir,
				       const bool old)
{
	struct bpf_sock *sk = skb->sk;
	struct segment_event *event;
	struct socket_state *socket;
	struct bpf_tcp_sock *tp;
	struct tcp_header tcp;
	__u32 headers, len, seq, key = dir;
	__u64 now, *bytes;
	bool quiet;

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	socket = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	if (!socket)
		return; // not watched: nearly all leave here

	now = bpf_ktime_get_ns();
	headers = ip_header(skb);
	if (!headers || bpf_skb_load_bytes(skb, headers, &tcp, sizeof(tcp))) {
		count(REASON_HEADER_UNREAD);
		return;
	}
	headers += (tcp.offset >> 4) * 4;
	if (skb->len < headers) {
		count(REASON_HEADER_UNREAD);
		return;
	}
	len = skb->len - headers;
	seq = bpf_ntohl(tcp.seq);

	if (len) {
		bytes = bpf_map_lookup_elem(&traffic, &key);
		if (bytes)
			*bytes += len;
	}
	// Our own pure ACKs say nothing, unless they close or open the window.
	quiet = dir == DIR_OUT && !len && !(tcp.flags & (TCP_SYN | TCP_FIN | TCP_RST));
	if (quiet && !tcp.window == !!socket->zero_window)
		quiet = false;
	if (dir == DIR_OUT)
		socket->zero_window = !tcp.window;
	if (!quiet) {
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
		if (!event) {
			lost_segment(socket);
		} else {
			__builtin_memset(event, 0, sizeof(*event));
			event->hdr.ts = now;
			event->hdr.conn = socket->conn;
			event->hdr.lost = socket->lost;
			event->hdr.kind = KIND_SEGMENT;
			event->hdr.dir = dir;
			event->seq = seq;
			event->ack = bpf_ntohl(tcp.ack_seq);
			event->len = len;
			event->window = bpf_ntohs(tcp.window);
			event->segs = skb->gso_segs;
			event->tcp_flags = tcp.flags;
			tp = bpf_tcp_sock(sk);
			if (tp) {
				event->rtt_min_us = tp->rtt_min;
				event->srtt_us = tp->srtt_us >> 3;
				event->retrans = tp->total_retrans;
				event->cwnd = tp->snd_cwnd;
			}
			bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
		}
	}
	if (!len)
		return;
	if (socket->carries == CARRIES_UNKNOWN)
		tell_apart(skb, socket, headers, dir);
	if (socket->carries == CARRIES_TLS && socket->walk[dir].left)
		walk_records(skb, socket, headers, len, seq, dir, now);
	else if (socket->carries == CARRIES_PLAIN)
		scan_segment(skb, socket, headers, len, seq, dir, now, old);
}

// on_received tells when the application takes what came without TLS.
static __always_inline void on_plain_received(struct conn_state *state, __u32 bytes)
{
	struct recv_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(REASON_RING_FULL);
		__sync_fetch_and_add(&state->lost, 1);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->hdr.ts = bpf_ktime_get_ns();
	event->hdr.conn = state->conn;
	event->hdr.lost = state->lost;
	event->hdr.kind = KIND_RECV;
	event->hdr.dir = DIR_IN;
	event->seq = state->received;
	event->bytes = bytes;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

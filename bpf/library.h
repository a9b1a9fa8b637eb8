// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// library.h: reads and writes of a TLS library, joined to their socket by what
// the thread sends and receives inside the call. A call that moved bytes
// without one is joined only where an earlier call has proven which socket its
// session has; else it is refused and counted.
#pragma once

#include "http.h"
#include "maps.h"
#include "transport.h"

static __always_inline void on_call(__u64 session, __u64 buffer, __u64 done, enum direction dir,
				    enum call_style style)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct call *call, fresh = {};

	if (!watched_process(id >> 32))
		return;
	call = bpf_map_lookup_elem(&calls, &id);
	if (!call) {
		bpf_map_update_elem(&calls, &id, &fresh, BPF_ANY);
		call = bpf_map_lookup_elem(&calls, &id);
		if (!call) {
			count(REASON_CALLS_FULL);
			return;
		}
	}
	call->session = session;
	call->buffer = buffer;
	call->done = done;
	call->enter = bpf_ktime_get_ns();
	call->conn = 0;
	call->dir = dir;
	call->style = style;
	call->active = 1;
}

// joined finds the connection that a call belongs to.
static __always_inline struct conn_state *joined(struct call *call, __u32 tgid)
{
	struct session_key key = {.session = call->session, .tgid = tgid};
	struct conn_state *state;
	__u64 *conn;

	if (call->conn) {
		state = bpf_map_lookup_elem(&conns, &call->conn);
		if (!state)
			return NULL;
		if (state->session != call->session) {
			if (state->session)
				count(REASON_CALL_REJOINED);
			state->session = call->session;
			bpf_map_update_elem(&sessions, &key, &call->conn, BPF_ANY);
		}
		return state;
	}
	conn = bpf_map_lookup_elem(&sessions, &key);
	if (!conn)
		return NULL;
	state = bpf_map_lookup_elem(&conns, conn);
	if (!state || state->session != call->session)
		return NULL;
	return state;
}

static __always_inline void on_call_return(__s64 result, const bool old)
{
	__u64 id = bpf_get_current_pid_tgid(), moved = 0;
	struct passage passage = {};
	struct conn_state *state;
	struct call *call;

	call = bpf_map_lookup_elem(&calls, &id);
	if (!call || !call->active)
		return;
	call->active = 0;
	if ((__s32)result <= 0)
		return;
	if (call->style == CALL_BYTES)
		moved = (__u32)result;
	else if (bpf_probe_read_user(&moved, sizeof(moved), (void *)call->done))
		count(REASON_CALL_UNREAD);
	if (!moved || moved > 1U << 30)
		return;
	state = joined(call, id >> 32);
	if (!state) {
		count(REASON_CALL_ELSEWHERE);
		return;
	}
	passage.source.buffer = call->buffer;
	passage.bytes = moved;
	passage.pid = id >> 32;
	passage.tid = id;
	passage.now = bpf_ktime_get_ns();
	passage.enter = call->enter;
	if (call->dir == DIR_OUT) {
		passage.seq_lo = state->writing ? state->write_lo : state->sent;
		passage.seq_hi = state->sent;
		state->writing = 0;
	} else {
		passage.seq_lo = state->record_lo;
		passage.seq_hi = state->received;
	}
	scan(state, call->dir, &passage, false, old);
}

// on_sent runs when a thread has handed bytes to any socket.
static __always_inline void on_sent(struct sock *sk, __u64 conn, __s32 bytes)
{
	struct conn_state *state;
	struct call *call;
	__u64 id;

	if (!conn || bytes <= 0)
		return; // not watched: nearly all leave here
	id = bpf_get_current_pid_tgid();
	call = bpf_map_lookup_elem(&calls, &id);
	if (!call || !call->active)
		return; // not inside a TLS library's call
	if (call->conn && call->conn != conn)
		return; // a callback's own connection
	state = bpf_map_lookup_elem(&conns, &conn);
	if (!state)
		return;
	call->conn = conn;
	state->sent = sent_until(sk);
	if (call->dir == DIR_OUT && !state->writing) {
		state->writing = 1;
		state->write_lo = state->sent - bytes;
	}
}

// on_received runs when a thread has taken bytes from any socket.
static __always_inline void on_received(struct sock *sk, __u64 conn)
{
	struct conn_state *state;
	struct call *call;
	__u32 before, bytes;
	__u64 id;

	if (!conn)
		return;
	state = bpf_map_lookup_elem(&conns, &conn);
	if (!state)
		return;
	before = state->received;
	state->received = received_until(sk);
	if (state->has_received && state->received == before)
		return; // peeked
	bytes = state->has_received ? state->received - before : 0;
	if (state->plain) {
		state->has_received = 1;
		on_plain_received(state, bytes);
		return;
	}
	// OpenSSL without read-ahead takes a record's five header bytes alone;
	// a reader that takes more at once begins at what was not yet taken.
	if (bytes == RECORD_HEADER || !state->has_received)
		state->record_lo = state->has_received ? before : state->received;
	state->has_received = 1;
	id = bpf_get_current_pid_tgid();
	call = bpf_map_lookup_elem(&calls, &id);
	if (!call || !call->active)
		return;
	if (!call->conn)
		call->conn = conn;
}

// on_socket_call keeps the socket for the return probe, which has no arguments.
static __always_inline void on_socket_call(struct sock *sk)
{
	__u64 id = bpf_get_current_pid_tgid(), value = (__u64)sk;

	if (socket_cookie(sk))
		bpf_map_update_elem(&socket_calls, &id, &value, BPF_ANY);
}

static __always_inline struct sock *socket_called(void)
{
	__u64 id = bpf_get_current_pid_tgid(), *value, sk;

	value = bpf_map_lookup_elem(&socket_calls, &id);
	if (!value)
		return NULL;
	sk = *value;
	bpf_map_delete_elem(&socket_calls, &id);
	return (struct sock *)sk;
}

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// process.h keeps the set of watched processes and knows a socket's owner.
#pragma once

#include "maps.h"

static __always_inline void report_process(__u32 pid, __u32 ppid, enum process_change change)
{
	struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(REASON_RING_FULL);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->hdr.ts = bpf_ktime_get_ns();
	event->hdr.kind = KIND_PROCESS;
	event->pid = pid;
	event->ppid = ppid;
	event->change = change;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	bpf_ringbuf_submit(event, wake_on_connect ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

// on_fork makes the children of a watched process watched before they run.
static __always_inline void on_fork(struct task_struct *parent, struct task_struct *child)
{
	__u32 ppid = BPF_CORE_READ(parent, tgid), pid = BPF_CORE_READ(child, tgid);
	__u8 *target, watched = TARGET_WATCHED;

	if (!filter_targets || ppid == pid)
		return;
	target = bpf_map_lookup_elem(&targets, &ppid);
	if (!target)
		return;
	bpf_map_update_elem(&targets, &pid, &watched, BPF_ANY);
	report_process(pid, ppid, PROCESS_FORK);
}

static __always_inline void on_exec(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u8 watched = TARGET_WATCHED;
	char comm[16] = {};

	if (filter_comms) {
		bpf_get_current_comm(comm, sizeof(comm));
		if (bpf_map_lookup_elem(&comms, comm))
			bpf_map_update_elem(&targets, &pid, &watched, BPF_ANY);
	}
	if (watched_process(pid))
		report_process(pid, 0, PROCESS_EXEC);
}

// on_exit runs for each thread.
static __always_inline void on_exit(void)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 pid = id >> 32;

	bpf_map_delete_elem(&calls, &id);
	if (pid != (__u32)id || !filter_targets || !watched_process(pid))
		return;
	report_process(pid, 0, PROCESS_EXIT);
	bpf_map_delete_elem(&targets, &pid);
}

// on_connect notes who connects; sockops is not told on kernels before 6.12.
static __always_inline void on_connect(struct bpf_sock_addr *ctx)
{
	__u16 port = bpf_ntohs(ctx->user_port);
	struct owner owner = {};
	__u64 conn;

	if (ctx->protocol != IPPROTO_TCP)
		return;
	// No cookie for a socket that will not be watched.
	if (filter_ports && !bpf_map_lookup_elem(&ports, &port))
		return;
	owner.tgid = bpf_get_current_pid_tgid() >> 32;
	if (!watched_process(owner.tgid))
		return;
	conn = bpf_get_socket_cookie(ctx);
	bpf_map_update_elem(&owners, &conn, &owner, BPF_ANY);
}

//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// observer.bpf.c is the table of contents of the kernel side: every program,
// a call each. The headers hold the layers.
#include "core.h"
#include "event.h"
#include "maps.h"
#include "records.h"
#include "http.h"
#include "transport.h"
#include "library.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// Transport: connections, their segments, TLS records, plain HTTP.

SEC("sockops")
int observe_socket(struct bpf_sock_ops *ctx)
{
	on_socket(ctx);
	return 1;
}

SEC("cgroup_skb/egress")
int observe_egress(struct __sk_buff *skb)
{
	on_segment(skb, DIR_OUT, false);
	return 1;
}

SEC("cgroup_skb/ingress")
int observe_ingress(struct __sk_buff *skb)
{
	on_segment(skb, DIR_IN, false);
	return 1;
}

// Before Linux 5.17.
SEC("cgroup_skb/egress")
int old_egress(struct __sk_buff *skb)
{
	on_segment(skb, DIR_OUT, true);
	return 1;
}

SEC("cgroup_skb/ingress")
int old_ingress(struct __sk_buff *skb)
{
	on_segment(skb, DIR_IN, true);
	return 1;
}

SEC("cgroup/connect4")
int observe_connect4(struct bpf_sock_addr *ctx)
{
	on_connect(ctx);
	return 1;
}

SEC("cgroup/connect6")
int observe_connect6(struct bpf_sock_addr *ctx)
{
	on_connect(ctx);
	return 1;
}

// What a thread sends and receives: tracepoints from Linux 6.3 on, before that
// fexit, and kprobes where there is no BPF trampoline.

SEC("tp_btf/sock_send_length")
int BPF_PROG(trace_send, struct sock *sk, int result)
{
	on_sent(sk, traced_cookie(sk), result);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(trace_receive, struct sock *sk, int result)
{
	if (result > 0)
		on_received(sk, traced_cookie(sk));
	return 0;
}

SEC("fexit/tcp_sendmsg")
int BPF_PROG(fexit_send, struct sock *sk, void *msg, unsigned long size, int result)
{
	on_sent(sk, traced_cookie(sk), result);
	return 0;
}

SEC("fexit/tcp_recvmsg")
int BPF_PROG(fexit_receive, struct sock *sk)
{
	on_received(sk, traced_cookie(sk));
	return 0;
}

SEC("kprobe/tcp_sendmsg")
int BPF_KPROBE(kprobe_send, struct sock *sk)
{
	on_socket_call(sk);
	return 0;
}

SEC("kretprobe/tcp_sendmsg")
int BPF_KRETPROBE(kprobe_sent, long result)
{
	struct sock *sk = socket_called();

	if (sk)
		on_sent(sk, socket_cookie(sk), result);
	return 0;
}

SEC("kprobe/tcp_recvmsg")
int BPF_KPROBE(kprobe_receive, struct sock *sk)
{
	on_socket_call(sk);
	return 0;
}

SEC("kretprobe/tcp_recvmsg")
int kprobe_received(void *ctx)
{
	struct sock *sk = socket_called();

	if (sk)
		on_received(sk, socket_cookie(sk));
	return 0;
}

// TLS libraries with OpenSSL's calls: read and write, each in the style that
// returns the bytes moved and in the one that stores them.

SEC("uprobe/write_bytes")
int BPF_KPROBE(library_write_bytes, void *session, void *buffer)
{
	on_call((__u64)session, (__u64)buffer, 0, DIR_OUT, CALL_BYTES);
	return 0;
}

SEC("uprobe/read_bytes")
int BPF_KPROBE(library_read_bytes, void *session, void *buffer)
{
	on_call((__u64)session, (__u64)buffer, 0, DIR_IN, CALL_BYTES);
	return 0;
}

SEC("uprobe/write_done")
int BPF_KPROBE(library_write_done, void *session, void *buffer, unsigned long len, void *done)
{
	on_call((__u64)session, (__u64)buffer, (__u64)done, DIR_OUT, CALL_DONE);
	return 0;
}

SEC("uprobe/write_flags")
int BPF_KPROBE(library_write_flags, void *session, void *buffer, unsigned long len,
	       unsigned long flags, void *done)
{
	on_call((__u64)session, (__u64)buffer, (__u64)done, DIR_OUT, CALL_DONE);
	return 0;
}

SEC("uprobe/read_done")
int BPF_KPROBE(library_read_done, void *session, void *buffer, unsigned long len, void *done)
{
	on_call((__u64)session, (__u64)buffer, (__u64)done, DIR_IN, CALL_DONE);
	return 0;
}

SEC("uretprobe/library")
int BPF_KRETPROBE(library_return, long result)
{
	on_call_return(result, false);
	return 0;
}

// Before Linux 5.17.
SEC("uretprobe/library")
int BPF_KRETPROBE(old_library_return, long result)
{
	on_call_return(result, true);
	return 0;
}

// Processes: who is watched.

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	on_fork(parent, child);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec)
{
	on_exec();
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit)
{
	on_exit();
	return 0;
}

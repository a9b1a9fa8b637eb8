// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// core.h holds every kernel difference: the few kernel types that are read,
// relocated by the running kernel's BTF, and one accessor for each.
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>

#if defined(__TARGET_ARCH_x86)
// The registers of a uprobe, by their user-space names.
struct pt_regs {
	unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8;
	unsigned long rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31], sp, pc, pstate;
};
struct pt_regs;
#endif

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_HOPOPTS 0
#define IPPROTO_TCP 6

// one_to tells the verifier that n is from 1 to most, which the caller has made
// sure of. Before Linux 6.8 it learns nothing from a comparison with 0, and
// refuses to copy what it takes for 0 bytes.
static __always_inline __u32 one_to(__u32 n, const __u32 most)
{
	n--;
	barrier_var(n);
	if (n >= most)
		n = most - 1;
	barrier_var(n);
	return n + 1;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	atomic64_t skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
};

struct tcp_sock {
	__u32 copied_seq;
	__u32 write_seq;
};

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
};

#pragma clang attribute pop

// socket_cookie returns 0 for a socket that nobody asked a cookie of: so for
// every socket that is not watched. Reading the field instead of calling
// bpf_get_socket_cookie() serves tracing programs before 5.12 too.
static __always_inline __u64 socket_cookie(struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
}

// traced_cookie is the same for a socket that the verifier knows for one, as a
// tracing program's argument is: a plain load.
static __always_inline __u64 traced_cookie(struct sock *sk)
{
	return sk->__sk_common.skc_cookie.counter;
}

// sent_until is the sequence number after all that the application has sent.
static __always_inline __u32 sent_until(struct sock *sk)
{
	return BPF_CORE_READ((struct tcp_sock *)sk, write_seq);
}

// received_until is the sequence number after all that the application has
// received. Peeking does not move it.
static __always_inline __u32 received_until(struct sock *sk)
{
	return BPF_CORE_READ((struct tcp_sock *)sk, copied_seq);
}

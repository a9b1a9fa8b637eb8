// Package bpf holds the kernel side, compiled ahead, and its bindings. The
// objects are committed: building peel needs no clang. After a change of the C
// files run "make generate".
//
// The programs are under GPL-2.0 or Apache-2.0, as the kernel's helpers need.
package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -type event_header -type conn_event -type segment_event -type record_event -type plain_event -type piece -type recv_event -type close_event -type process_event -type reason Observer observer.bpf.c -- -O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu -ffile-prefix-map=.=.

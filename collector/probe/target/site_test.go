package target

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Machine code for the tests, by what it does.
const (
	// sub rsp, 0x18; test edx, edx; js to the last call; mov rcx, rsp; movsxd rdx, edx; call;
	// mov eax, [rsp]; add rsp, 0x18; ret; call error; or eax, -1; jmp to add
	plainRead = "4883ec18 85d2 7813 4889e1 4863d2 e8 @read 8b0424 4883c418 c3 e8 @error 83c8ff ebf1"
	exRead    = "4883ec08 e8 @read 4883c408 c3"  // sub rsp, 8; call; add rsp, 8; ret
	plainPush = "53 31c0 5b c3"                  // push rbx; xor eax, eax; pop rbx; ret
	errorStub = "ff25 slot@ERR_new"              // jmp [rip+…]
	pushed    = "4157 4889f8 4889f3 415f c3"     // push r15; mov rax, rdi; mov rbx, rsi; pop r15; ret
	subbed    = "4883ec58 31c0 4883c458 c3"      // sub rsp, 0x58; xor eax, eax; add rsp, 0x58; ret
	write4    = "4883ec08 4889e1 e8 @write 58c3" // sub rsp, 8; mov rcx, rsp; call; pop rax; ret
)

func TestOpenSSL(t *testing.T) {
	read := []source{{"SSL_read", plainPush}}
	write := []source{{"SSL_write", plainPush}}
	tests := []struct {
		name    string
		machine elf.Machine // amd64 if 0
		op      Op
		funcs   []source
		imports []string
		want    []Site // Entry and Return: function number<<8 | offset into it
		reason  string
	}{
		{
			name: "symbols that start with push", op: Read,
			funcs: append(write, source{"SSL_read", plainPush}, source{"SSL_read_ex", pushed}),
			want: []Site{
				{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100, EntryCheap: true, ReturnCheap: true},
				{Symbols: []string{"SSL_read_ex"}, Entry: 0x200, Return: 0x200, EntryCheap: true, ReturnCheap: true, Done: 3},
			},
			reason: "starts with push",
		},
		{
			name: "one internal function", op: Read,
			funcs:   append(write, source{"SSL_read", plainRead}, source{"SSL_read_ex", exRead}, source{"read", pushed}, source{"error", errorStub}),
			imports: []string{"ERR_new"},
			want: []Site{{Symbols: []string{"SSL_read", "SSL_read_ex"}, Internal: true, Entry: 0x300, Return: 0x300,
				EntryCheap: true, ReturnCheap: true, Done: 3}},
			reason: "all work through 0x11300, which starts with push",
		},
		{
			name: "the error path may read, too", op: Read,
			funcs: append(write, source{"SSL_read", plainRead}, source{"SSL_read_ex", exRead}, source{"read", pushed}, source{"error", pushed}),
			want: []Site{
				{Symbols: []string{"SSL_read"}, Entry: 0x106, Return: 0x100, EntryCheap: true},
				{Symbols: []string{"SSL_read_ex"}, Entry: 0x200, Return: 0x200, Done: 3},
			},
			reason: "starts with sub, has js at +6, too late for a return probe; no internal function: SSL_read passes the buffer to more than one function",
		},
		{
			name: "the internal function is not cheap either", op: Read,
			funcs:   append(write, source{"SSL_read", plainRead}, source{"SSL_read_ex", exRead}, source{"read", subbed}, source{"error", errorStub}),
			imports: []string{"ERR_new"},
			want: []Site{
				{Symbols: []string{"SSL_read"}, Entry: 0x106, Return: 0x100, EntryCheap: true},
				{Symbols: []string{"SSL_read_ex"}, Entry: 0x200, Return: 0x200, Done: 3},
			},
			reason: "the internal function starts with sub, which is single-stepped",
		},
		{
			name: "flags before the count, and a forwarder through the linker's stub", op: Write,
			funcs: append(read,
				// endbr64; sub rsp, 0x18; xor ecx, ecx; movsxd rdx, edx; mov r8, rsp; call; mov eax, [rsp]; add rsp, 0x18; ret
				source{"SSL_write", "f30f1efa 4883ec18 31c9 4863d2 4989e0 e8 @write 8b0424 4883c418 c3"},
				// endbr64; mov r8, rcx; xor ecx, ecx; jmp
				source{"SSL_write_ex", "f30f1efa 4989c8 31c9 e9 @stub"},
				// endbr64; sub rsp, 8; call; add rsp, 8; ret
				source{"SSL_write_ex2", "f30f1efa 4883ec08 e8 @write 4883c408 c3"},
				source{"stub", "f30f1efa f2 ff25 slot@SSL_write_ex2"}, // endbr64; bnd jmp [rip+…]
				source{"write", "f30f1efa " + pushed}),
			want: []Site{{Symbols: []string{"SSL_write", "SSL_write_ex2", "SSL_write_ex"}, Internal: true, Entry: 0x504, Return: 0x504,
				EntryCheap: true, ReturnCheap: true, Done: 4}},
			reason: "starts with endbr64, has push at +4",
		},
		{
			name: "count in another place", op: Write,
			funcs: append(read, source{"SSL_write", write4},
				source{"SSL_write_ex", "4883ec08 4989c8 e8 @write 58c3"}, // sub rsp, 8; mov r8, rcx; call; pop rax; ret
				source{"write", pushed}),
			want: []Site{
				{Symbols: []string{"SSL_write"}, Entry: 0x100, Return: 0x100},
				{Symbols: []string{"SSL_write_ex"}, Entry: 0x200, Return: 0x200, Done: 3},
			},
			reason: "passes two places for the count",
		},
		{
			name: "the plain function is the internal one", op: Read,
			// sub rsp, 8; mov eax, 0x7fffffff; cmp rdx, rax; cmova rdx, rax; call; pop rax; ret
			funcs: append(write, source{"SSL_read", subbed}, source{"SSL_read_ex", "4883ec08 b8ffffff7f 4839c2 480f47d0 e8 @SSL_read 58c3"}),
			want:  []Site{{Symbols: []string{"SSL_read", "SSL_read_ex"}, Entry: 0x100, Return: 0x100}},
		},
		{
			name: "two names for one function", op: Read,
			funcs: append(write, source{"SSL_read", pushed}),
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100, EntryCheap: true, ReturnCheap: true}},
		},
		{
			name: "buffer stored", op: Write,
			funcs: append(read,
				source{"SSL_write", "4883ec18 4889742408 4889e1 e8 @write 4883c418 c3"}, // … mov [rsp+8], rsi …
				source{"SSL_write_ex", "4883ec08 e8 @write 58c3"}, source{"write", pushed}),
			want: []Site{
				{Symbols: []string{"SSL_write"}, Entry: 0x100, Return: 0x100},
				{Symbols: []string{"SSL_write_ex"}, Entry: 0x200, Return: 0x200, Done: 3},
			},
			reason: "stores the buffer's address",
		},
		{
			name: "called through a pointer to something unknown", op: Write,
			funcs: append(read,
				source{"SSL_write", "4883ec08 4889e1 488b07 ff5038 58c3"}, // … mov rax, [rdi]; call [rax+0x38] …
				source{"SSL_write_ex", "4883ec08 e8 @write 58c3"}, source{"write", pushed}),
			want: []Site{
				{Symbols: []string{"SSL_write"}, Entry: 0x100, Return: 0x100},
				{Symbols: []string{"SSL_write_ex"}, Entry: 0x200, Return: 0x200, Done: 3},
			},
			reason: "passes the buffer to more than one function",
		},
		{
			name: "a loop leads back to the cheap instruction", op: Read,
			// test rdi, rdi; 1: je 2f; dec eax; jmp 1b; 2: ret
			funcs: append(write, source{"SSL_read", "4885ff 7404 ffc8 ebfa c3"}),
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100}},
		},
		{
			name: "the length changed before the cheap instruction", op: Read,
			funcs: append(write, source{"SSL_read", "31d2 53 5b c3"}), // xor edx, edx; push rbx; …
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100}},
		},
		{
			name: "the length extended before the cheap instruction", op: Read,
			funcs: append(write, source{"SSL_read", "4863d2 53 5b c3"}), // movsxd rdx, edx; push rbx; …
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x103, Return: 0x103, EntryCheap: true, ReturnCheap: true}},
		},
		{
			name: "long nop", op: Read,
			funcs: append(write, source{"SSL_read", "0f1f440000 c3"}),
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100}},
		},
		{
			name: "not code", op: Read,
			funcs:  append(write, source{"SSL_read", "0604060406"}),
			want:   []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100}},
			reason: "has code that was not understood",
		},
		{
			name: "arm64: adrp before anything moves", machine: elf.EM_AARCH64, op: Read,
			// adrp x4; stp x29, x30, [sp, -16]!; mov x0, 0; ldp x29, x30, [sp], 16; ret
			funcs: []source{{"SSL_write", "d65f03c0"}, {"SSL_read", "90000004 a9bf7bfd d2800000 a8c17bfd d65f03c0"}},
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x100, Return: 0x100, EntryCheap: true, ReturnCheap: true}},
		},
		{
			name: "arm64: return address saved", machine: elf.EM_AARCH64, op: Read,
			// stp x29, x30, [sp, -16]!; adrp x4; …
			funcs:  []source{{"SSL_write", "d65f03c0"}, {"SSL_read", "a9bf7bfd 90000004 a8c17bfd d65f03c0"}},
			want:   []Site{{Symbols: []string{"SSL_read"}, Entry: 0x104, Return: 0x100, EntryCheap: true}},
			reason: "starts with stp, has adrp at +4, too late for a return probe",
		},
		{
			name: "arm64: return address signed", machine: elf.EM_AARCH64, op: Read,
			funcs: []source{{"SSL_write", "d65f03c0"}, {"SSL_read", "d503233f 90000004 d50323bf d65f03c0"}}, // paciasp; adrp x4; autiasp; ret
			want:  []Site{{Symbols: []string{"SSL_read"}, Entry: 0x104, Return: 0x100, EntryCheap: true}},
		},
		{
			name: "arm64: bti, forwarder through the linker's stub, internal function", machine: elf.EM_AARCH64, op: Write,
			funcs: []source{
				{"SSL_read", "d65f03c0"},
				// stp x29, x30, [sp, -32]!; sxtw x2, w2; mov x3, 0; add x4, sp, 24; bl; ldp x29, x30, [sp], 32; ret
				{"SSL_write", "a9be7bfd 93407c42 d2800003 910063e4 bl@write a8c27bfd d65f03c0"},
				{"SSL_write_ex", "d503245f aa0303e4 d2800003 b@stub"}, // bti c; mov x4, x3; mov x3, 0; b
				{"SSL_write_ex2", "a9bf7bfd bl@write a8c17bfd d65f03c0"},
				{"stub", "d503245f adrp@SSL_write_ex2 ldr@SSL_write_ex2 d61f0220"}, // …; br x17
				{"write", "d503245f b4000040 d65f03c0 d65f03c0"},                   // bti c; cbz x0; ret; ret
			},
			want: []Site{{Symbols: []string{"SSL_write", "SSL_write_ex2", "SSL_write_ex"}, Internal: true, Entry: 0x504, Return: 0x504,
				EntryCheap: true, ReturnCheap: true, Done: 4}},
			reason: "starts with bti, has cbz at +4",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := program{machine: tt.machine, funcs: tt.funcs, imports: tt.imports}
			if p.machine == 0 {
				p.machine = elf.EM_X86_64
			}
			sites, err := OpenSSL(p.write(t))
			if err != nil {
				t.Fatal(err)
			}
			var got []Site
			reasons := ""
			for _, s := range sites {
				if s.Op != tt.op {
					continue
				}
				reasons += s.Reason + "\n"
				s.Op, s.Reason = 0, ""
				s.Entry, s.Return = s.Entry-textOff, s.Return-textOff
				got = append(got, s)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v\nbecause %s", got, tt.want, reasons)
			}
			if !strings.Contains(reasons, tt.reason) {
				t.Errorf("reason %q does not say %q", reasons, tt.reason)
			}
		})
	}
}

func TestEmulated(t *testing.T) {
	tests := []struct {
		code string
		want bool
	}{
		{"\x90", true}, {"\x55", true}, {"\x41\x57", true}, {"\xeb\x00", true}, {"\xe9\x00\x00\x00\x00", true},
		{"\x74\x00", true}, {"\x0f\x84\x00\x00\x00\x00", true},
		{"\xe8\x00\x00\x00\x00", false},     // call
		{"\x66\x90", false},                 // nop with a prefix
		{"\x40\x55", false},                 // push with an idle prefix
		{"\x0f\x1f\x44\x00\x00", false},     // long nop
		{"\xf3\x0f\x1e\xfa", false},         // endbr64
		{"\x48\x83\xec\x18", false},         // sub
		{"\xc3", false},                     // ret
		{"\xff\xe0", false},                 // jmp rax
		{"\x66\x0f\x84\x00\x00\x00", false}, // prefix before a jump
	}
	for _, tt := range tests {
		if got := emulated([]byte(tt.code)); got != tt.want {
			t.Errorf("emulated(%x) = %t", tt.code, got)
		}
	}
}

func TestOpenSSLRefuses(t *testing.T) {
	none := program{machine: elf.EM_X86_64, funcs: []source{{"SSL_read", plainPush}}}
	if _, err := OpenSSL(none.write(t)); !errors.Is(err, ErrNoSSL) {
		t.Errorf("a file without SSL_write: %v", err)
	}
	other := program{machine: elf.EM_RISCV, funcs: []source{{"SSL_read", plainPush}, {"SSL_write", plainPush}}}
	if _, err := OpenSSL(other.write(t)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another machine: %v", err)
	}
	text := filepath.Join(t.TempDir(), "libssl.so")
	if err := os.WriteFile(text, []byte("GROUP ( libssl.so.3 )"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, t.TempDir(), "/dev/zero"} {
		if _, err := OpenSSL(path); err == nil || errors.Is(err, ErrNoSSL) {
			t.Errorf("OpenSSL(%s) = %v", path, err)
		}
	}
}

// Every library of this system must get sites that see all of its functions.
func TestOpenSSLOfThisSystem(t *testing.T) {
	libs, err := Libraries("/")
	if err != nil {
		t.Fatal(err)
	}
	if len(libs) == 0 {
		t.Fatal("no libssl on this system: install one (Debian: libssl3)")
	}
	for _, lib := range libs {
		sites, err := OpenSSL(lib)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, s := range sites {
			t.Log(lib, s)
			for _, name := range s.Symbols {
				seen[name]++
			}
			if s.Return > s.Entry || s.ReturnCheap && !s.EntryCheap {
				t.Errorf("%s: %v", lib, s)
			}
		}
		for _, name := range []string{"SSL_read", "SSL_write"} {
			if seen[name] != 1 {
				t.Errorf("%s: %s is seen by %d sites", lib, name, seen[name])
			}
		}
	}
}

func FuzzOpenSSL(f *testing.F) {
	f.Fuzz(func(t *testing.T, arm bool, read, ex, internal []byte) {
		p := program{machine: elf.EM_X86_64, funcs: []source{{"SSL_write", "c3"}, {"SSL_read", ""}, {"SSL_read_ex", ""}, {"internal", ""}}}
		if arm {
			p.machine = elf.EM_AARCH64
		}
		b := p.build(t)
		for i, c := range [][]byte{read, ex, internal} {
			copy(b[textOff+(i+1)*spacing:textOff+(i+2)*spacing], c)
		}
		sites, err := openSSL(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sites {
			if s.Entry < textOff || s.Return < textOff || s.Entry >= textOff+4*spacing {
				t.Fatalf("site outside of the code: %v", s)
			}
		}
	})
}

func FuzzELF(f *testing.F) {
	p := program{machine: elf.EM_X86_64, funcs: []source{{"SSL_write", plainPush}, {"SSL_read", plainPush}}}
	f.Add(p.build(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = openSSL(bytes.NewReader(b))
	})
}

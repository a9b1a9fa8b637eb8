package target

import (
	"strings"

	"golang.org/x/arch/x86/x86asm"
)

// amd64 registers are numbered as the processor does: 0 RAX, 1 RCX, 2 RDX,
// 3 RBX, 4 RSP, 5 RBP, 6 RSI, 7 RDI, 8 to 15 R8 to R15.
type amd64 struct{}

const (
	rsp = 4
	rbp = 5
)

func (amd64) args() [6]int { return [6]int{7, 6, 2, 1, 8, 9} }

func (amd64) clobber(s *state) {
	for _, r := range [...]int{0, 1, 2, 6, 7, 8, 9, 10, 11} {
		s.set(r, value{})
	}
}

// emulated says whether the kernel emulates the instruction under a uprobe, on
// every kernel from 5.10 on (branch_setup_xol_ops and push_setup_xol_ops in
// arch/x86/kernel/uprobes.c): near jumps, push of a general register, the
// one-byte nop. Left out: calls, whose emulation does not know shadow stacks;
// longer nops, emulated since 6.16 only, and of which some kernels replace the
// five-byte one by a call that writes below the stack pointer; what has prefixes.
func emulated(b []byte) bool {
	switch {
	case len(b) == 1:
		return b[0] == 0x90 || b[0]&0xf8 == 0x50
	case len(b) == 2 && b[0] == 0x41:
		return b[1]&0xf8 == 0x50
	case b[0] == 0xeb, b[0] == 0xe9, b[0]&0xf0 == 0x70:
		return true
	}
	return len(b) == 6 && b[0] == 0x0f && b[1]&0xf0 == 0x80
}

func endbr64(b []byte) bool {
	return len(b) >= 4 && b[0] == 0xf3 && b[1] == 0x0f && b[2] == 0x1e && b[3] == 0xfa
}

func (amd64) step(pc uint64, b []byte, s *state) inst {
	if endbr64(b) { // not known to x86asm
		return inst{len: 4, name: "endbr64"}
	}
	x, err := x86asm.Decode(b, 64)
	if err != nil || x.Len <= 0 || x.Len > len(b) {
		return inst{flow: bad}
	}
	in := inst{len: x.Len, name: strings.ToLower(x.Op.String()), cheap: emulated(b[:x.Len])}
	leak(x, s)

	switch x.Op {
	case x86asm.RET, x86asm.UD2, x86asm.HLT, x86asm.UD1:
		in.flow = ret
	case x86asm.CALL:
		in.branch(pc, x, call, callSlot)
		if in.flow == stop { // through a register: it comes back
			in.flow = call
		}
	case x86asm.JMP:
		in.branch(pc, x, jump, jumpSlot)
	case x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE:
		s.set(1, value{})
		in.branch(pc, x, cond, stop)
	case x86asm.PUSH:
		moveSP(s, -8, x.DataSize == 64)
	case x86asm.POP:
		moveSP(s, 8, x.DataSize == 64)
		assign(s, x.Args[0], value{})
	case x86asm.LEAVE:
		s.sp = s.reg[rbp]
		if s.sp.kind != frame {
			s.sp = value{}
		}
		moveSP(s, 8, true)
		s.set(rbp, value{})
	default:
		if isCond(x.Op) {
			in.branch(pc, x, cond, stop)
			break
		}
		effect(x, s)
	}
	s.home = s.sp == value{kind: frame}
	return in
}

// branch sets flow and target of a branch that x encodes.
func (in *inst) branch(pc uint64, x x86asm.Inst, direct, indirect flow) {
	switch a := x.Args[0].(type) {
	case x86asm.Rel:
		in.flow = direct
		in.target = pc + uint64(x.Len) + uint64(int64(a))
		return
	case x86asm.Mem:
		if a.Base == x86asm.RIP && a.Index == 0 {
			in.flow = indirect
			in.slot = pc + uint64(x.Len) + uint64(a.Disp)
			return
		}
	}
	in.flow = stop
}

func isCond(op x86asm.Op) bool {
	switch op {
	case x86asm.JA, x86asm.JAE, x86asm.JB, x86asm.JBE, x86asm.JE, x86asm.JG, x86asm.JGE, x86asm.JL, x86asm.JLE, x86asm.JNE, x86asm.JNO,
		x86asm.JNP, x86asm.JNS, x86asm.JO, x86asm.JP, x86asm.JS, x86asm.JCXZ, x86asm.JECXZ, x86asm.JRCXZ:
		return true
	}
	return false
}

func moveSP(s *state, n int64, full bool) {
	if s.sp.kind != frame || !full {
		s.sp = value{}
		return
	}
	s.sp.n += n
}

// effect applies an instruction that does not branch.
func effect(x x86asm.Inst, s *state) {
	dst, src := x.Args[0], x.Args[1]
	switch x.Op {
	case x86asm.NOP, x86asm.TEST, x86asm.CMP, x86asm.BT, x86asm.PREFETCHT0, x86asm.PREFETCHNTA, x86asm.PREFETCHW:
	case x86asm.MOV, x86asm.MOVSXD:
		assign(s, dst, copied(s, dst, src))
	case x86asm.LEA:
		assign(s, dst, address(s, dst, src))
	case x86asm.XOR, x86asm.SUB, x86asm.ADD:
		if n, ok := src.(x86asm.Imm); ok && dst == x86asm.RSP && s.sp.kind == frame && x.Op != x86asm.XOR {
			if x.Op == x86asm.SUB {
				n = -n
			}
			s.sp.n += int64(n)
			return
		}
		v := value{}
		if r, ok := dst.(x86asm.Reg); ok && x.Op == x86asm.XOR && src == x86asm.Arg(r) {
			v.kind = constant
		}
		assign(s, dst, v)
	case x86asm.AND, x86asm.OR, x86asm.NOT, x86asm.NEG, x86asm.INC, x86asm.DEC, x86asm.SHL, x86asm.SHR, x86asm.SAR, x86asm.ROL, x86asm.ROR,
		x86asm.ADC, x86asm.SBB, x86asm.MOVZX, x86asm.MOVSX, x86asm.BSF, x86asm.BSR, x86asm.BTS, x86asm.BTR,
		x86asm.SETA, x86asm.SETAE, x86asm.SETB, x86asm.SETBE, x86asm.SETE, x86asm.SETG, x86asm.SETGE, x86asm.SETL, x86asm.SETLE,
		x86asm.SETNE, x86asm.SETNO, x86asm.SETNP, x86asm.SETNS, x86asm.SETO, x86asm.SETP, x86asm.SETS,
		x86asm.CMOVA, x86asm.CMOVAE, x86asm.CMOVB, x86asm.CMOVBE, x86asm.CMOVE, x86asm.CMOVG, x86asm.CMOVGE, x86asm.CMOVL, x86asm.CMOVLE,
		x86asm.CMOVNE, x86asm.CMOVNO, x86asm.CMOVNP, x86asm.CMOVNS, x86asm.CMOVO, x86asm.CMOVP, x86asm.CMOVS:
		assign(s, dst, value{})
	case x86asm.IMUL:
		if src == nil { // writes RDX:RAX
			s.set(0, value{})
			s.set(2, value{})
			return
		}
		assign(s, dst, value{})
	case x86asm.CDQ, x86asm.CQO, x86asm.CDQE, x86asm.CWDE, x86asm.MUL, x86asm.DIV, x86asm.IDIV:
		s.set(0, value{})
		s.set(2, value{})
	default:
		// Vector registers are not followed: what only writes one, or memory from
		// one, changes nothing here.
		if r, ok := dst.(x86asm.Reg); ok && isVector(r) {
			return
		}
		if _, ok := dst.(x86asm.Mem); ok {
			if r, ok := src.(x86asm.Reg); ok && isVector(r) {
				return
			}
		}
		s.forget()
	}
}

func isVector(r x86asm.Reg) bool { return r >= x86asm.X0 && r <= x86asm.X15 }

// general returns the number of a general register and its size in bits.
func general(r x86asm.Reg) (n, bits int, ok bool) {
	switch {
	case r >= x86asm.RAX && r <= x86asm.R15:
		return int(r - x86asm.RAX), 64, true
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return int(r - x86asm.EAX), 32, true
	case r >= x86asm.AX && r <= x86asm.R15W:
		return int(r - x86asm.AX), 16, true
	case r >= x86asm.AL && r <= x86asm.BL:
		return int(r - x86asm.AL), 8, true
	case r >= x86asm.AH && r <= x86asm.BH:
		return int(r - x86asm.AH), 8, true
	case r >= x86asm.SPB && r <= x86asm.DIB:
		return int(r-x86asm.SPB) + rsp, 8, true
	case r >= x86asm.R8B && r <= x86asm.R15B:
		return int(r-x86asm.R8B) + 8, 8, true
	}
	return 0, 0, false
}

// assign gives the register that dst names a value; a place in memory has none.
func assign(s *state, dst x86asm.Arg, v value) {
	r, ok := dst.(x86asm.Reg)
	if !ok {
		return
	}
	n, _, ok := general(r)
	if !ok {
		return
	}
	if n != rsp {
		s.set(n, v)
		return
	}
	s.sp = value{}
	if v.kind == frame {
		s.sp = v
	}
}

// read returns the value of a 64-bit register.
func read(s *state, r x86asm.Reg) value {
	n, bits, ok := general(r)
	switch {
	case !ok || bits != 64:
		return value{}
	case n == rsp:
		return s.sp
	}
	return s.reg[n]
}

// copied is what a move from src leaves in dst. A copy of 32 bits counts for the
// length, which may be an int and is extended so.
func copied(s *state, dst, src x86asm.Arg) value {
	d, ok := dst.(x86asm.Reg)
	if !ok {
		return value{}
	}
	_, bits, ok := general(d)
	if !ok || bits < 32 {
		return value{}
	}
	switch src := src.(type) {
	case x86asm.Imm:
		return value{kind: constant}
	case x86asm.Reg:
		n, from, ok := general(src)
		switch {
		case !ok || from < 32:
			return value{}
		case bits == 64 && from == 64:
			return read(s, src)
		case n != rsp && (s.reg[n] == arg(2) || s.reg[n].kind == constant):
			return s.reg[n]
		}
	}
	return value{}
}

// address is what lea puts into dst.
func address(s *state, dst, src x86asm.Arg) value {
	m, ok := src.(x86asm.Mem)
	if !ok || m.Index != 0 || m.Segment != 0 {
		return value{}
	}
	if d, ok := dst.(x86asm.Reg); !ok || d < x86asm.RAX || d > x86asm.R15 {
		return value{}
	}
	v := read(s, m.Base)
	switch {
	case v.kind == frame:
		v.n += m.Disp
		return v
	case v.kind == argument && m.Disp == 0:
		return v
	}
	return value{}
}

// leak notes when the buffer's address is stored, pushed, or moved to where it
// is not followed.
func leak(x x86asm.Inst, s *state) {
	src := x.Args[1]
	if x.Op == x86asm.PUSH {
		src = x.Args[0]
	}
	r, ok := src.(x86asm.Reg)
	if !ok || read(s, r) != arg(1) {
		return
	}
	switch x.Op {
	case x86asm.CMP, x86asm.TEST:
		return
	case x86asm.MOV:
		if d, ok := x.Args[0].(x86asm.Reg); ok && d >= x86asm.RAX && d <= x86asm.R15 {
			return
		}
	}
	s.leaked = true
}

func (amd64) stub(pc uint64, b []byte) uint64 {
	n := 0
	if endbr64(b) {
		n = 4
	}
	if len(b) > n && b[n] == 0xf2 { // the bnd prefix of an older linker
		n++
	}
	if n >= len(b) {
		return 0
	}
	x, err := x86asm.Decode(b[n:], 64)
	if err != nil || x.Op != x86asm.JMP {
		return 0
	}
	var in inst
	in.branch(pc+uint64(n), x, jump, jumpSlot)
	return in.slot
}

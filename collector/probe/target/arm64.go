package target

import (
	"encoding/binary"
	"strings"

	"golang.org/x/arch/arm64/arm64asm"
)

// arm64 registers have their own numbers; 31 is not followed, it is the stack
// pointer or zero. The encodings are those of the Arm Architecture Reference
// Manual, section C4.1.
type arm64 struct{}

const (
	lr = 30
	sp = 31
)

func (arm64) args() [6]int { return [6]int{0, 1, 2, 3, 4, 5} }

func (arm64) clobber(s *state) {
	for r := range 19 {
		s.set(r, value{})
	}
	s.set(lr, value{})
	s.home = false
}

// signed returns the n-bit field of w at bit lo, sign-extended.
func signed(w uint32, lo, n uint) int64 {
	return int64(int32(w<<(32-lo-n))) >> (32 - n)
}

func (arm64) step(pc uint64, b []byte, s *state) inst {
	if len(b) < 4 || pc%4 != 0 {
		return inst{flow: bad}
	}
	w := binary.LittleEndian.Uint32(b)
	in := inst{len: 4, name: mnemonic(b[:4])}
	rel := func(lo, n uint) uint64 { return pc + uint64(signed(w, lo, n)*4) }

	// What the kernel simulates under a uprobe, from 5.10 on, is in
	// arm_probe_decode_insn in arch/arm64/kernel/probes/decode-insn.c: branches and
	// adr, adrp. Calls are left out as on amd64.
	switch {
	case w>>26 == 0b000101: // b
		in.flow, in.target, in.cheap = jump, rel(0, 26), true
	case w>>26 == 0b100101: // bl
		in.flow, in.target = call, rel(0, 26)
	case w>>24 == 0b01010100 && w&0x10 == 0: // b.cond
		in.flow, in.target, in.cheap = cond, rel(5, 19), true
	case w>>25&0x3f == 0b011010: // cbz, cbnz
		in.flow, in.target, in.cheap = cond, rel(5, 19), true
	case w>>25&0x3f == 0b011011: // tbz, tbnz
		in.flow, in.target, in.cheap = cond, rel(5, 14), true
	case w>>25 == 0b1101011: // branches to a register, ret
		switch w >> 21 & 0x7 {
		case 0b001: // blr
			in.flow = call
		case 0b010: // ret
			in.flow = ret
		default:
			in.flow = stop
		}
	case w>>24 == 0b11010100: // svc, brk, hlt
		in.flow = ret
		if w>>21&0x7 == 0 {
			in.flow = next
			s.forget()
		}
	case w&0xfffff01f == 0xd503201f: // hints
		if op := w >> 5 & 0x7f; op != 0 && op&^0x6 != 0b100000 { // all but nop and bti: most change lr
			s.home = false
		}
	case w>>22 == 0b1101010100: // system
		s.set31(int(w&0x1f), value{})
	case w>>24&0x1f == 0b10000: // adr, adrp
		in.cheap = true
		s.set31(int(w&0x1f), value{})
	case w>>25&0x5 == 0b0100: // loads and stores
		loadStore(w, s)
	case w>>25&0x7 == 0b101, w>>26&0x7 == 0b100, w>>25&0x7 == 0b111: // data processing
		data(w, s)
	default:
		in.flow = bad
	}
	return in
}

// set31 sets a register that is not followed when it is number 31.
func (s *state) set31(reg int, v value) {
	if reg == lr {
		s.home = false
	}
	if reg != 31 {
		s.set(reg, v)
	}
}

func mnemonic(b []byte) string {
	if w := binary.LittleEndian.Uint32(b); w == 0xd503233f {
		return "paciasp"
	} else if w&0xffffff3f == 0xd503241f {
		return "bti"
	}
	x, err := arm64asm.Decode(b)
	if err != nil {
		return "an instruction"
	}
	return strings.ToLower(x.Op.String())
}

// data applies an instruction that writes its register in bits 0 to 4.
func data(w uint32, s *state) {
	d, n, m := int(w&0x1f), int(w>>5&0x1f), int(w>>16&0x1f)
	wide := w>>31 == 1
	v := value{}
	switch {
	case w>>25&0x7 == 0b111: // vector: what comes of a general register is not followed
		s.leaked = s.leaked || n != 31 && s.reg[n] == arg(1)
	case w&0x7fe0ffe0 == 0x2a0003e0: // mov d, m
		if m != 31 && (wide || s.reg[m] == arg(2)) {
			v = s.reg[m]
		}
	case w&0x1f800000 == 0x12800000: // movn, movz; movk keeps a part
		if w>>29&0x3 != 0b11 {
			v.kind = constant
		}
	case w&0xfffffc00 == 0x93407c00: // sxtw
		if n != 31 && s.reg[n] == arg(2) {
			v = s.reg[n]
		}
	case w&0x1f800000 == 0x11000000: // add, sub (immediate)
		src := s.sp
		if n != sp {
			src = s.reg[n]
		}
		if by := int64(w >> 10 & 0xfff); wide && src.kind == frame {
			if w>>22&1 == 1 {
				by <<= 12
			}
			if w>>30&1 == 1 {
				by = -by
			}
			v = value{frame, src.n + by}
		}
		if d == sp && w>>29&1 == 0 {
			s.sp = v
			return
		}
	case d == sp && w&0x1f800000 == 0x12000000 && w>>29&0x3 != 0b11, // and, orr, eor (immediate)
		d == sp && w&0x1fe00000 == 0x0b200000 && w>>29&1 == 0: // add, sub (extended register)
		s.sp = value{}
		return
	}
	s.set31(d, v)
}

// loadStore applies a load or store.
func loadStore(w uint32, s *state) {
	t, n, t2 := int(w&0x1f), int(w>>5&0x1f), int(w>>10&0x1f)
	vector := w>>26&1 == 1
	pair := w>>27&0x7 == 0b101
	single := w>>27&0x7 == 0b111
	literal := w>>27&0x7 == 0b011 && w>>24&1 == 0
	atomic := single && w>>24&1 == 0 && w>>21&1 == 1 && w>>10&0x3 == 0
	regs := []int{t}
	if pair {
		regs = append(regs, t2)
	}
	store := false
	switch {
	case vector && (pair || single || literal):
		regs = nil
	case pair:
		store = w>>22&1 == 0
	case single && !atomic:
		store = w>>22&0x3 == 0
		if w>>22&0x3 == 0b10 && w>>30 == 0b11 { // prfm
			regs = nil
		}
	case literal:
	default: // exclusive, atomic, vector structures and whatever is new
		regs = []int{t, t2, int(w >> 16 & 0x1f)}
		for _, r := range regs {
			s.leaked = s.leaked || r != 31 && s.reg[r] == arg(1)
		}
		if n != sp {
			s.set31(n, value{})
		} else {
			s.sp = value{}
		}
	}
	for _, r := range regs {
		switch {
		case !store:
			s.set31(r, value{})
		case r == lr: // saved: a return probe after this does not see the return
			s.home = false
		case r != 31 && s.reg[r] == arg(1):
			s.leaked = true
		}
	}

	var by int64
	switch {
	case pair && w>>23&1 == 1: // pre- or post-indexed
		scale := 2 + w>>31
		if vector {
			scale = 2 + w>>30
		}
		by = signed(w, 15, 7) << scale
	case single && w>>24&1 == 0 && w>>21&1 == 0 && w>>10&1 == 1:
		by = signed(w, 12, 9)
	default:
		return
	}
	switch {
	case n != sp:
		s.set31(n, value{})
	case s.sp.kind == frame:
		s.sp.n += by
	}
}

func (arm64) stub(pc uint64, b []byte) uint64 {
	if len(b) >= 4 && binary.LittleEndian.Uint32(b)&0xffffff3f == 0xd503241f { // bti
		b = b[4:]
		pc += 4
	}
	if len(b) < 8 {
		return 0
	}
	page, load := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	// adrp x16, page; ldr x17, [x16, #n]
	if page&0x9f00001f != 0x90000010 || load&0xffc003ff != 0xf9400211 {
		return 0
	}
	at := signed(page, 5, 19)<<2 | int64(page>>29&0x3)
	return pc&^0xfff + uint64(at<<12) + uint64(load>>10&0xfff)*8
}

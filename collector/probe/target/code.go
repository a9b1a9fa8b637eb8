package target

import (
	"errors"
	"fmt"
)

// kind is what the analysis knows of a register's content.
type kind uint8

const (
	unknown  kind = iota
	argument      // the function's argument number n, as it came
	frame         // an address in the stack, n bytes above the stack pointer at entry
	constant
)

type value struct {
	kind kind
	n    int64
}

// state is what is known before an instruction.
type state struct {
	reg [32]value
	sp  value // frame, or unknown

	// home says that the return address is where the caller left it, so that
	// a return probe can take its place.
	home bool

	// leaked says that the buffer's address went somewhere else than into a
	// register.
	leaked bool
}

// merge makes s what is known at a place that both s and t reach, and says
// whether s changed.
func (s *state) merge(t state) bool {
	was := *s
	for i := range s.reg {
		if s.reg[i] != t.reg[i] {
			s.reg[i] = value{}
		}
	}
	if s.sp != t.sp {
		s.sp = value{}
	}
	s.home = s.home && t.home
	s.leaked = s.leaked || t.leaked
	return *s != was
}

// set gives a register a value.
func (s *state) set(reg int, v value) { s.reg[reg] = v }

// forget makes all general registers and the stack pointer unknown.
func (s *state) forget() {
	s.reg = [32]value{}
	s.sp = value{}
	s.home = false
}

type flow uint8

const (
	next     flow = iota
	cond          // goes to target or on
	jump          // goes to target
	jumpSlot      // goes to where the pointer at slot points
	call          // calls target
	callSlot
	ret
	stop // goes nowhere that could be told: indirect jump, trap
	bad  // not decoded
)

// inst is what the analysis needs of an instruction beside its effect on the
// state.
type inst struct {
	len    int
	name   string
	flow   flow
	target uint64 // of jump, cond, call; 0: not known
	slot   uint64 // address of the pointer, for jumpSlot and callSlot; 0: not known
	cheap  bool   // the kernel emulates it under a uprobe
}

// arch decodes the code of one architecture.
type arch interface {
	// args returns the registers of the first six arguments.
	args() [6]int
	// step decodes the instruction at pc and applies it to s.
	step(pc uint64, code []byte, s *state) inst
	// clobber forgets the registers that a call does not preserve.
	clobber(s *state)
	// stub returns the slot that the linker's stub in code, at pc, jumps
	// through; 0 if it is no stub.
	stub(pc uint64, code []byte) uint64
}

// code gives up to n bytes of machine code at a virtual address, fewer at the
// end of a segment, none outside of the code.
type code interface {
	at(addr uint64, n int) []byte
	// resolve follows a linker's stub at addr.
	resolve(addr uint64) callee
	// pointer returns the function whose address the dynamic linker stores at slot.
	pointer(slot uint64) callee
}

// callee is where a call goes.
type callee struct {
	addr     uint64 // 0: not known
	imported bool   // into another file
}

// A function's exploration ends after maxSteps instructions, loops counted as
// often as what is known of them changes.
const maxSteps = 1 << 13

// passed is one call, and what its arguments hold.
type passed struct {
	callee
	args [6]value
}

func arg(n int64) value { return value{argument, n} }

// passesBuffer says that the SSL and the buffer go on as they came.
func (p passed) passesBuffer() bool { return p.args[0] == arg(0) && p.args[1] == arg(1) }

// body is what exploring a function found.
type body struct {
	calls    []passed
	branches map[uint64]bool // where branches go
	complete bool            // nothing stayed undecoded, no branch unresolved
	leaked   bool
}

// found is the call that a function works through.
type found struct {
	target uint64
	done   int
}

// only returns the one call to which a function passes SSL, buffer and length
// as they came, with a place for the count: the function's own argument done,
// or, when that is 0, a variable of its own.
func (b body) only(done int) (found, error) {
	if !b.complete {
		return found{}, errors.New("has code that was not understood")
	}
	if b.leaked {
		return found{}, errors.New("stores the buffer's address")
	}
	var f found
	for _, c := range b.calls {
		// What another file gets is left over from the call (libcrypto's error
		// functions take no argument), or copied by it.
		if c.imported {
			continue
		}
		if !c.passesBuffer() {
			for _, v := range c.args {
				if v == arg(1) {
					return found{}, errors.New("passes the buffer in another place")
				}
			}
			continue
		}
		if c.addr == 0 || f.target != 0 && f.target != c.addr {
			return found{}, errors.New("passes the buffer to more than one function")
		}
		if c.args[2] != arg(2) {
			return found{}, errors.New("passes another length")
		}
		at := 0
		for i, v := range c.args[3:] {
			if done == 0 && v.kind == frame || done != 0 && v == arg(int64(done)) {
				if at != 0 {
					return found{}, errors.New("passes two places for the count")
				}
				at = i + 3
			}
		}
		if at == 0 {
			return found{}, errors.New("passes no place for the count")
		}
		if f.target != 0 && f.done != at {
			return found{}, errors.New("passes the count in different places")
		}
		f = found{c.addr, at}
	}
	if f.target == 0 {
		return found{}, errors.New("passes the buffer to no function")
	}
	return f, nil
}

// entryState is what is known at a function's first instruction.
func entryState(a arch) state {
	s := state{sp: value{kind: frame}, home: true}
	for i, r := range a.args() {
		s.set(r, arg(int64(i)))
	}
	return s
}

// explore follows the code of a function from addr on. A size of 0 means that
// it is not known: a jump with an empty stack then counts as part of it.
func explore(c code, a arch, addr, size uint64) body {
	b := body{branches: map[uint64]bool{}, complete: true}
	states := map[uint64]state{addr: entryState(a)}
	calls := map[uint64]passed{}
	var order []uint64 // of calls, as first met
	work := []uint64{addr}
	reach := func(pc uint64, s state) {
		old, seen := states[pc]
		if !seen {
			states[pc] = s
		} else if old.merge(s) {
			states[pc] = old
		} else {
			return
		}
		work = append(work, pc)
	}
	for steps := 0; len(work) > 0; steps++ {
		if steps == maxSteps {
			b.complete = false
			break
		}
		pc := work[len(work)-1]
		work = work[:len(work)-1]
		s := states[pc]
		before := s
		in := a.step(pc, c.at(pc, 16), &s)
		b.leaked = b.leaked || s.leaked
		after := pc + uint64(in.len)
		called := func(to callee) {
			p := passed{callee: to}
			for i, r := range a.args() {
				p.args[i] = before.reg[r]
			}
			if _, seen := calls[pc]; !seen {
				order = append(order, pc)
			}
			calls[pc] = p
		}
		switch in.flow {
		case next:
			reach(after, s)
		case cond:
			b.branches[in.target] = true
			reach(in.target, s)
			reach(after, s)
		case jump:
			b.branches[in.target] = true
			inside := in.target-addr < size || size == 0
			if !inside && before.sp == (value{kind: frame}) {
				called(c.resolve(in.target))
			} else {
				reach(in.target, s)
			}
		case jumpSlot:
			called(c.pointer(in.slot))
		case call, callSlot:
			if in.flow == callSlot {
				called(c.pointer(in.slot))
			} else {
				called(c.resolve(in.target))
			}
			a.clobber(&s)
			reach(after, s)
		case stop, bad:
			b.complete = false
		}
	}
	for _, pc := range order {
		b.calls = append(b.calls, calls[pc])
	}
	return b
}

// place is where probes go in one function, as virtual addresses.
type place struct {
	entry, ret              uint64
	entryCheap, returnCheap bool
	reason                  string
}

// A function's arguments are looked for in its first maxPrologue instructions.
const maxPrologue = 24

// findPlace looks for the first instructions of a function that the kernel
// emulates, which run once in every call, and at which the arguments are still in
// their registers. A return probe asks for the return address, too, to be where
// the call left it. Without such a place, the function's first instruction serves.
func findPlace(c code, a arch, addr uint64, done int, b body) place {
	p := place{entry: addr, ret: addr}
	first := ""
	s := entryState(a)
	pc := addr
	for range maxPrologue {
		before := s
		in := a.step(pc, c.at(pc, 16), &s)
		if in.flow == bad {
			break
		}
		if first == "" {
			first = in.name
		}
		if !intact(a, before, done) {
			break
		}
		// A branch back to here would be seen as another call.
		if in.cheap && (pc == addr || !b.branches[pc]) {
			where := "starts with " + in.name
			if pc != addr {
				where = fmt.Sprintf("starts with %s, has %s at +%d", first, in.name, pc-addr)
			}
			p.entry, p.entryCheap = pc, true
			if before.home && before.sp == (value{kind: frame}) {
				p.ret, p.returnCheap = pc, true
				p.reason = where
			} else {
				p.reason = where + ", too late for a return probe"
			}
			return p
		}
		if in.flow != next {
			break
		}
		pc += uint64(in.len)
	}
	if first == "" {
		p.reason = "has code that was not understood"
	} else {
		p.reason = fmt.Sprintf("starts with %s, which is single-stepped", first)
	}
	return p
}

// intact says that the arguments which a probe reads are in their registers.
func intact(a arch, s state, done int) bool {
	for i, r := range a.args() {
		if (i < 3 || i == done) && s.reg[r] != arg(int64(i)) {
			return false
		}
	}
	return true
}

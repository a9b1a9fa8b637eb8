package target

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A program's code is laid out from textAddr on, at textOff in its file.
const (
	textOff  = 0x1000
	textAddr = 0x11000
	slotAddr = 0x20000 // of the first slot
	spacing  = 0x100   // between functions
)

// program is the source of a small ELF file. Functions are written as machine
// code in hexadecimal, and as fields that refer to other functions:
//
//	@f       distance to f, in 32 bits (amd64)
//	slot@f   distance to the slot of f, in 32 bits (amd64)
//	b@f bl@f branches (arm64)
//	adrp@f   adrp x16, slot of f; ldr@f: ldr x17, [x16, slot of f] (arm64)
type program struct {
	machine elf.Machine
	funcs   []source // in order
	imports []string
}

type source struct{ name, code string }

func (p program) addr(name string) uint64 {
	i := slices.IndexFunc(p.funcs, func(s source) bool { return s.name == name })
	return textAddr + uint64(i)*spacing
}

func (p program) slot(name string) uint64 {
	i := slices.IndexFunc(p.funcs, func(s source) bool { return s.name == name })
	if i < 0 {
		i = len(p.funcs) + slices.Index(p.imports, name)
	}
	return slotAddr + uint64(i)*8
}

// assemble returns the code of the i-th function.
func (p program) assemble(t testing.TB, i int) []byte {
	t.Helper()
	var b []byte
	for f := range strings.FieldsSeq(p.funcs[i].code) {
		pc := textAddr + uint64(i)*spacing + uint64(len(b))
		op, name, refers := strings.Cut(f, "@")
		switch {
		case !refers && p.machine == elf.EM_AARCH64: // a word
			w, err := hex.DecodeString(f)
			if err != nil {
				t.Fatal(err)
			}
			slices.Reverse(w)
			b = append(b, w...)
		case !refers:
			x, err := hex.DecodeString(f)
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, x...)
		case op == "":
			b = binary.LittleEndian.AppendUint32(b, uint32(p.addr(name)-pc-4))
		case op == "slot":
			b = binary.LittleEndian.AppendUint32(b, uint32(p.slot(name)-pc-4))
		case op == "b", op == "bl":
			w := uint32((p.addr(name)-pc)/4)&0x3ffffff | 0x14000000
			if op == "bl" {
				w |= 0x80000000
			}
			b = binary.LittleEndian.AppendUint32(b, w)
		case op == "adrp":
			pages := uint32(p.slot(name)>>12 - pc>>12)
			b = binary.LittleEndian.AppendUint32(b, 0x90000010|pages&3<<29|pages>>2<<5)
		case op == "ldr":
			b = binary.LittleEndian.AppendUint32(b, 0xf9400211|uint32(p.slot(name)&0xfff)/8<<10)
		default:
			t.Fatalf("field %q", f)
		}
	}
	if len(b) > spacing {
		t.Fatalf("%s has %d bytes", p.funcs[i].name, len(b))
	}
	return b
}

// build returns the ELF file. Functions with lower-case names have no symbol.
func (p program) build(t testing.TB) []byte {
	t.Helper()
	text := make([]byte, spacing*len(p.funcs))
	strtab := []byte{0}
	syms := make([]byte, entrySize)
	var relas []byte
	n := uint64(0)
	symbol := func(name string, addr, size uint64, slot uint64) {
		n++
		kind := byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
		section := uint16(1)
		if addr == 0 {
			section = 0
		}
		syms = binary.LittleEndian.AppendUint32(syms, uint32(len(strtab)))
		syms = append(syms, kind, 0)
		syms = binary.LittleEndian.AppendUint16(syms, section)
		syms = binary.LittleEndian.AppendUint64(syms, addr)
		syms = binary.LittleEndian.AppendUint64(syms, size)
		strtab = append(append(strtab, name...), 0)
		typ := uint64(elf.R_X86_64_JMP_SLOT)
		if p.machine == elf.EM_AARCH64 {
			typ = uint64(elf.R_AARCH64_JUMP_SLOT)
		}
		relas = binary.LittleEndian.AppendUint64(relas, slot)
		relas = binary.LittleEndian.AppendUint64(relas, n<<32|typ)
		relas = binary.LittleEndian.AppendUint64(relas, 0)
	}
	for i, f := range p.funcs {
		c := p.assemble(t, i)
		copy(text[i*spacing:], c)
		if strings.HasPrefix(f.name, "SSL_") {
			symbol(f.name, p.addr(f.name), uint64(len(c)), p.slot(f.name))
		}
	}
	for _, name := range p.imports {
		symbol(name, 0, 0, p.slot(name))
	}

	var out bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&out, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	type section struct {
		typ  elf.SectionType
		data []byte
		link uint32
	}
	sections := []section{
		{elf.SHT_DYNSYM, syms, 2}, {elf.SHT_STRTAB, strtab, 0}, {elf.SHT_RELA, relas, 1}, {elf.SHT_STRTAB, []byte{0}, 0},
	}
	at := uint64(textOff + len(text))
	head := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(p.machine), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		Shentsize: 64, Shnum: uint16(len(sections) + 1), Shstrndx: uint16(len(sections)),
	}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	heads := []elf.Section64{{}}
	for _, s := range sections {
		heads = append(heads, elf.Section64{
			Type: uint32(s.typ), Flags: uint64(elf.SHF_ALLOC), Off: at, Size: uint64(len(s.data)), Link: s.link, Entsize: entrySize,
		})
		at += uint64(len(s.data))
	}
	head.Shoff = at
	write(head)
	write(elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: textOff, Vaddr: textAddr,
		Filesz: uint64(len(text)), Memsz: uint64(len(text)),
	})
	out.Write(make([]byte, textOff-out.Len()))
	out.Write(text)
	for _, s := range sections {
		out.Write(s.data)
	}
	write(heads)
	return out.Bytes()
}

func (p program) write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libssl.so.3")
	if err := os.WriteFile(path, p.build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

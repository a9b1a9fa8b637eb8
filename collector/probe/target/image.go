package target

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	// maxTables bounds the bytes of symbol, string and relocation tables that are
	// read of one file. Those of browsers have about 200 MiB.
	maxTables = 1 << 30
	// maxSize bounds what a symbol may say of its function's size.
	maxSize = 1 << 16
	// maxPages bounds how much code of a file is read.
	maxPages = 256
	// maxSlots bounds how many addresses of the dynamic linker are known.
	maxSlots = 1 << 16
	pageSize = 1 << 12
)

type symbol struct {
	addr, size uint64
}

// image is an ELF file as far as it is looked at.
type image struct {
	r       io.ReaderAt
	file    *elf.File
	machine elf.Machine
	arch    arch
	symbols map[string]symbol // those that were asked for
	dynsym  *elf.Section
	slots   map[uint64]uint32 // where the dynamic linker stores a symbol's address → its index in dynsym
	pages   map[uint64][]byte // of code, by address
	read    uint64            // bytes of tables
}

// newImage reads what r says of the functions with the given names.
func newImage(r io.ReaderAt, names []string) (*image, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("%v %v: %w", f.Class, f.Data, errors.ErrUnsupported)
	}
	im := &image{r: r, file: f, machine: f.Machine, pages: map[uint64][]byte{}, slots: map[uint64]uint32{}}
	switch f.Machine {
	case elf.EM_X86_64:
		im.arch = amd64{}
	case elf.EM_AARCH64:
		im.arch = arm64{}
	}
	// A program's own functions need not be in the dynamic table.
	for _, t := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		if im.symbols, err = im.find(t, names); err != nil {
			return nil, err
		}
		if len(im.symbols) == 0 {
			continue
		}
		if t == elf.SHT_DYNSYM {
			if err := im.relocations(); err != nil {
				return nil, err
			}
		}
		break
	}
	return im, nil
}

// admit says whether a section may be read as a table.
func (im *image) admit(s *elf.Section) error {
	if s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 {
		return fmt.Errorf("read section %q: %w", s.Name, errors.ErrUnsupported)
	}
	if s.FileSize > maxTables-im.read {
		return fmt.Errorf("read section %q: tables of more than %d bytes", s.Name, maxTables)
	}
	im.read += s.FileSize
	return nil
}

// Entries of symbol and relocation tables have the same size.
const entrySize = 24

// table calls each with every whole entry of a symbol or relocation table.
func (im *image) table(s *elf.Section, each func(entry []byte)) error {
	if err := im.admit(s); err != nil {
		return err
	}
	buf := make([]byte, entrySize*2048)
	for at := uint64(0); s.FileSize-at >= entrySize; {
		n := min(uint64(len(buf)), (s.FileSize-at)/entrySize*entrySize)
		if _, err := im.r.ReadAt(buf[:n], int64(s.Offset+at)); err != nil {
			return fmt.Errorf("read section %q: %w", s.Name, err)
		}
		for b := range slices.Chunk(buf[:n], entrySize) {
			each(b)
		}
		at += n
	}
	return nil
}

// find looks the names up in the symbol table of type t. It searches the
// strings first, so that it needs no copy of a large table.
func (im *image) find(t elf.SectionType, names []string) (map[string]symbol, error) {
	tab := im.file.SectionByType(t)
	if tab == nil || int(tab.Link) >= len(im.file.Sections) {
		return nil, nil
	}
	wanted, err := im.strings(im.file.Sections[tab.Link], names)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	syms := map[string]symbol{}
	err = im.table(tab, func(b []byte) {
		name, ok := wanted[binary.LittleEndian.Uint32(b)]
		if s, defined := parseSymbol(b); ok && defined && elf.ST_TYPE(b[4]) == elf.STT_FUNC {
			syms[name] = s
		}
	})
	return syms, err
}

func parseSymbol(b []byte) (s symbol, defined bool) {
	s = symbol{binary.LittleEndian.Uint64(b[8:]), min(binary.LittleEndian.Uint64(b[16:]), maxSize)}
	return s, elf.SectionIndex(binary.LittleEndian.Uint16(b[6:])) != elf.SHN_UNDEF && s.addr != 0
}

// strings finds where in a string table the names are.
func (im *image) strings(s *elf.Section, names []string) (map[uint32]string, error) {
	if err := im.admit(s); err != nil {
		return nil, err
	}
	const overlap = 32 // more than the longest name
	found := map[uint32]string{}
	buf := make([]byte, 1<<16)
	for at := uint64(0); at < s.FileSize; at += uint64(len(buf)) - overlap {
		n := min(uint64(len(buf)), s.FileSize-at)
		if _, err := im.r.ReadAt(buf[:n], int64(s.Offset+at)); err != nil {
			return nil, fmt.Errorf("read string table %q: %w", s.Name, err)
		}
		for _, name := range names {
			term := append([]byte(name), 0)
			// A string may be the tail of another.
			for i := 0; ; i++ {
				j := bytes.Index(buf[i:n], term)
				if j < 0 {
					break
				}
				i += j
				if off := at + uint64(i); off <= 1<<32-1 && len(found) < 1024 {
					found[uint32(off)] = name
				}
			}
		}
	}
	return found, nil
}

// relocations learns where the dynamic linker stores the symbols' addresses.
func (im *image) relocations() error {
	im.dynsym = im.file.SectionByType(elf.SHT_DYNSYM)
	for _, sec := range im.file.Sections {
		if sec.Type != elf.SHT_RELA || sec.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		err := im.table(sec, func(b []byte) {
			info := binary.LittleEndian.Uint64(b[8:])
			switch t := uint32(info); {
			case len(im.slots) >= maxSlots:
			case im.machine == elf.EM_X86_64 && (t == uint32(elf.R_X86_64_JMP_SLOT) || t == uint32(elf.R_X86_64_GLOB_DAT)),
				im.machine == elf.EM_AARCH64 && (t == uint32(elf.R_AARCH64_JUMP_SLOT) || t == uint32(elf.R_AARCH64_GLOB_DAT)):
				im.slots[binary.LittleEndian.Uint64(b)] = uint32(info >> 32)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (im *image) pointer(slot uint64) callee {
	i, ok := im.slots[slot]
	if !ok || uint64(i) >= im.dynsym.FileSize/entrySize {
		return callee{}
	}
	b := make([]byte, entrySize)
	if _, err := im.r.ReadAt(b, int64(im.dynsym.Offset)+int64(i)*entrySize); err != nil {
		return callee{}
	}
	s, defined := parseSymbol(b)
	if !defined {
		return callee{imported: true}
	}
	return callee{addr: s.addr}
}

func (im *image) resolve(addr uint64) callee {
	if slot := im.arch.stub(addr, im.at(addr, 16)); slot != 0 {
		if to := im.pointer(slot); to != (callee{}) {
			return to
		}
	}
	return callee{addr: addr}
}

// segment returns the executable segment that holds addr.
func (im *image) segment(addr uint64) *elf.Prog {
	for _, p := range im.file.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			return p
		}
	}
	return nil
}

// offset turns an address in the code into one in the file.
func (im *image) offset(addr uint64) (uint64, error) {
	p := im.segment(addr)
	if p == nil {
		return 0, fmt.Errorf("address %#x is not in the file's code", addr)
	}
	return addr - p.Vaddr + p.Off, nil
}

func (im *image) at(addr uint64, n int) []byte {
	p := im.segment(addr)
	if p == nil {
		return nil
	}
	n = int(min(uint64(n), p.Filesz-(addr-p.Vaddr)))
	var b []byte
	for len(b) < n {
		page := im.page(p, addr)
		if len(page) == 0 {
			break
		}
		page = page[:min(len(page), n-len(b))]
		b = append(b, page...)
		addr += uint64(len(page))
	}
	return b
}

// page returns what is from addr on in the page that holds it.
func (im *image) page(p *elf.Prog, addr uint64) []byte {
	base := addr &^ (pageSize - 1)
	start := max(base, p.Vaddr)
	b, ok := im.pages[start]
	if !ok {
		if len(im.pages) >= maxPages {
			return nil
		}
		b = make([]byte, min(base+pageSize-start, p.Filesz-(start-p.Vaddr)))
		n, _ := im.r.ReadAt(b, int64(p.Off+start-p.Vaddr))
		b = b[:n]
		im.pages[start] = b
	}
	if addr-start >= uint64(len(b)) {
		return nil
	}
	return b[addr-start:]
}

func sortSites(s []Site) []Site {
	slices.SortFunc(s, func(a, b Site) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Return, b.Return))
	})
	return s
}

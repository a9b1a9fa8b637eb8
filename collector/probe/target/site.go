// Package target finds what to probe: the TLS libraries that programs of this
// host use, and the addresses in them. It reads files only, decodes the machine
// code it finds there, and never goes by a library's version.
package target

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// Op is what a call does with plaintext.
type Op uint8

// The operations.
const (
	Write Op = iota + 1
	Read
)

// String returns "write" or "read".
func (o Op) String() string {
	switch o {
	case Write:
		return "write"
	case Read:
		return "read"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// ErrNoSSL says that a file has no functions SSL_read and SSL_write.
var ErrNoSSL = errors.New("no SSL_read and SSL_write")

// Site is one place for a pair of probes. The sites of a file together see
// each call of its reading and writing functions once.
//
// At Entry and at Return the first C arguments of the function are in their
// registers: 0 is the SSL, 1 the buffer, 2 its length, Done where the count
// goes. A length may be an int, of which only the low 32 bits count.
//
// A uprobe that works alone belongs at Entry. One that has a uretprobe beside
// it belongs with it at Return: two probes on an address trap once.
type Site struct {
	Op      Op
	Symbols []string // the exported functions whose calls are seen here

	// Internal says that the place is in the unnamed function through which
	// all of Symbols work.
	Internal bool

	Entry  uint64 // file offset for a uprobe on its own
	Return uint64 // file offset for a uretprobe, and the uprobe that goes with it

	// EntryCheap and ReturnCheap say that the kernel emulates the instruction
	// there. Any other is single-stepped out of line, at several times the cost.
	EntryCheap, ReturnCheap bool

	// Done is the argument, counted from 0, that points to the size_t which gets
	// the number of bytes when the function returns 1. Where it is 0, the function
	// returns the number of bytes itself, as an int. Every other return value means
	// that no byte was moved.
	Done int

	Reason string // why here, for people
}

// exported are the functions that move plaintext, by operation. SSL_peek does
// not consume what it reads, so it is not among them.
func exported(op Op) []function {
	if op == Read {
		return []function{{name: "SSL_read"}, {name: "SSL_read_ex", done: 3}}
	}
	return []function{{name: "SSL_write"}, {name: "SSL_write_ex", done: 3}, {name: "SSL_write_ex2", done: 4}}
}

// function is one exported function and what its code says.
type function struct {
	name  string
	done  int // argument that points to the count; 0: none
	addr  uint64
	size  uint64
	body  body
	place place
}

// OpenSSL chooses the probe sites of an ELF file that has the functions
// SSL_read and SSL_write: a libssl of any version, or a program or library that
// contains a copy. It returns ErrNoSSL for any other ELF file.
func OpenSSL(path string) ([]Site, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sites, err := openSSL(f)
	if err != nil {
		return nil, fmt.Errorf("choose probe sites in %s: %w", path, err)
	}
	return sites, nil
}

// HasSSL says whether an ELF file has the functions SSL_read and SSL_write.
func HasSSL(path string) (bool, error) {
	f, err := openRegular(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	im, err := newImage(f, []string{"SSL_read", "SSL_write"})
	if err != nil {
		return false, fmt.Errorf("look for SSL functions in %s: %w", path, err)
	}
	return len(im.symbols) == 2, nil
}

// openRegular opens a regular file, and does not wait on what is none.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openSSL(f io.ReaderAt) ([]Site, error) {
	writes, reads := exported(Write), exported(Read)
	var names []string
	for _, fn := range append(writes, reads...) {
		names = append(names, fn.name)
	}
	im, err := newImage(f, names)
	if err != nil {
		return nil, err
	}
	if _, ok := im.symbols["SSL_read"]; !ok {
		return nil, ErrNoSSL
	}
	if _, ok := im.symbols["SSL_write"]; !ok {
		return nil, ErrNoSSL
	}
	if im.arch == nil {
		return nil, fmt.Errorf("code for %s: %w", im.machine, errors.ErrUnsupported)
	}
	var sites []Site
	for op, fns := range map[Op][]function{Write: writes, Read: reads} {
		s, err := choose(im, op, fns)
		if err != nil {
			return nil, err
		}
		sites = append(sites, s...)
	}
	return sortSites(sites), nil
}

// choose finds the sites of one operation.
func choose(im *image, op Op, all []function) ([]Site, error) {
	var fns []function
	for _, fn := range all {
		sym, ok := im.symbols[fn.name]
		if !ok || aliased(fns, sym.addr) {
			continue
		}
		fn.addr, fn.size = sym.addr, sym.size
		fn.body = explore(im, im.arch, fn.addr, fn.size)
		fn.place = findPlace(im, im.arch, fn.addr, fn.done, fn.body)
		fns = append(fns, fn)
	}
	through := map[string][]string{} // function → those whose calls it sees too
	fns = dropForwarders(fns, through)
	if len(fns) == 0 {
		return nil, errors.New("functions call each other in a circle")
	}

	cheap := true
	for _, fn := range fns {
		cheap = cheap && fn.place.returnCheap
	}
	if !cheap {
		s, why := internalSite(im, op, fns, through)
		if s != nil {
			return []Site{*s}, nil
		}
		for i := range fns {
			if !fns[i].place.returnCheap {
				fns[i].place.reason += "; " + why
			}
		}
	}
	var sites []Site
	for _, fn := range fns {
		s, err := newSite(im, op, fn.place, fn.done)
		if err != nil {
			return nil, err
		}
		s.Symbols = append([]string{fn.name}, through[fn.name]...)
		sites = append(sites, s)
	}
	return sites, nil
}

func aliased(fns []function, addr uint64) bool {
	for _, fn := range fns {
		if fn.addr == addr {
			return true
		}
	}
	return false
}

// dropForwarders takes out the functions that hand their SSL and buffer to
// another one of fns, which sees their calls.
func dropForwarders(fns []function, through map[string][]string) []function {
	to := map[uint64]string{}
	for _, fn := range fns {
		to[fn.addr] = fn.name
	}
	next := map[string]string{}
	for _, fn := range fns {
		for _, c := range fn.body.calls {
			if name, ok := to[c.addr]; ok && c.passesBuffer() && name != fn.name {
				next[fn.name] = name
			}
		}
	}
	var kept []function
	for _, fn := range fns {
		last, hops := fn.name, 0
		for next[last] != "" && hops <= len(fns) {
			last = next[last]
			hops++
		}
		switch {
		case hops == 0:
			kept = append(kept, fn)
		case hops <= len(fns):
			through[last] = append(through[last], fn.name)
		}
	}
	return kept
}

// internalSite looks for the one function that all of fns work through, and
// says why not when there is none that would serve.
func internalSite(im *image, op Op, fns []function, through map[string][]string) (*Site, string) {
	if len(fns) < 2 {
		return nil, "no second function to confirm an internal one"
	}
	var target uint64
	done := 0
	for _, fn := range fns {
		c, err := fn.body.only(fn.done)
		if err != nil {
			return nil, fmt.Sprintf("no internal function: %s %v", fn.name, err)
		}
		if target == 0 {
			target, done = c.target, c.done
		}
		if c.target != target || c.done != done {
			return nil, "no internal function that all share"
		}
	}
	p := findPlace(im, im.arch, target, done, explore(im, im.arch, target, 0))
	if !p.returnCheap {
		return nil, "the internal function " + p.reason
	}
	s, err := newSite(im, op, p, done)
	if err != nil {
		return nil, "the internal function is not in the file"
	}
	s.Internal = true
	for _, fn := range fns {
		s.Symbols = append(append(s.Symbols, fn.name), through[fn.name]...)
	}
	s.Reason = fmt.Sprintf("%s %s; all work through %#x, which %s", fns[0].name, fns[0].place.reason, target, p.reason)
	return &s, ""
}

func newSite(im *image, op Op, p place, done int) (Site, error) {
	s := Site{Op: op, EntryCheap: p.entryCheap, ReturnCheap: p.returnCheap, Done: done, Reason: p.reason}
	var err error
	if s.Entry, err = im.offset(p.entry); err != nil {
		return Site{}, err
	}
	if s.Return, err = im.offset(p.ret); err != nil {
		return Site{}, err
	}
	return s, nil
}

// String describes a site on one line.
func (s Site) String() string {
	kind := ""
	if s.Internal {
		kind = " (internal)"
	}
	return fmt.Sprintf("%v %s%s entry %#x cheap=%t return %#x cheap=%t done=%d: %s", s.Op, strings.Join(s.Symbols, ","), kind,
		s.Entry, s.EntryCheap, s.Return, s.ReturnCheap, s.Done, s.Reason)
}

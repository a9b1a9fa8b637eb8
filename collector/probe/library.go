package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/cilium/ebpf/link"

	"github.com/peel-dev/peel/bpf"
	"github.com/peel-dev/peel/collector/probe/target"
)

// maxLibraries bounds the files that are probed at a time, counted once for
// each process they are probed in.
const maxLibraries = 1024

// fileID names a probed file, and the process for which it is probed: 0 means
// all of them.
type fileID struct {
	dev, inode uint64
	pid        int
}

// attachments are the library probes by file.
type attachments struct {
	mu    sync.Mutex
	files map[fileID]*Library
}

// Library is a probed file.
type Library struct {
	Path  string
	PID   int // 0: in all processes
	Sites []target.Site
	Err   error // why it could not be probed
	links []link.Link
}

// AttachLibrary probes the TLS library functions in a file, once for each
// file, in the process pid only, or in all of them when pid is 0. Other
// processes then do not pay for it. It reports whether the file is new.
func (p *Probe) AttachLibrary(path string, pid int) (*Library, bool, error) {
	if p.library == nil {
		return nil, false, fmt.Errorf("probe %s: %w", path, errors.New("no hook serves plaintext"))
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, fmt.Errorf("probe library: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, false, fmt.Errorf("probe %s: no inode", path)
	}
	id := fileID{dev: stat.Dev, inode: stat.Ino, pid: pid}

	p.attach.mu.Lock()
	defer p.attach.mu.Unlock()
	if lib := p.attach.files[id]; lib != nil {
		return lib, false, lib.Err
	}
	if len(p.attach.files) >= maxLibraries {
		return nil, false, fmt.Errorf("probe %s: %d files are probed already", path, maxLibraries)
	}
	lib := &Library{Path: path, PID: pid}
	lib.Sites, lib.Err = p.attach.sites(id, path)
	if lib.Err == nil {
		lib.Err = p.attachSites(lib)
	}
	if errors.Is(lib.Err, fs.ErrNotExist) || errors.Is(lib.Err, syscall.ESRCH) {
		// The process that path led through has ended. Another path to the
		// same file must still do.
		return nil, false, fmt.Errorf("probe %s: %w", path, lib.Err)
	}
	if p.attach.files == nil {
		p.attach.files = make(map[fileID]*Library)
	}
	p.attach.files[id] = lib
	if lib.Err != nil {
		lib.Err = fmt.Errorf("probe %s: %w", path, lib.Err)
	}
	return lib, true, lib.Err
}

func (p *Probe) attachSites(lib *Library) (err error) {
	file, err := link.OpenExecutable(lib.Path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			for _, l := range lib.links {
				err = errors.Join(err, l.Close())
			}
			lib.links = nil
		}
	}()
	for _, site := range lib.Sites {
		enter, ok := entryProgram(site)
		if !ok {
			return fmt.Errorf("%s: the count's place is argument %d", site.Op, site.Done)
		}
		// The return probe first: a call that it alone sees is ignored.
		for _, at := range []struct {
			program string
			ret     bool
		}{{p.returnProgram(), true}, {enter, false}} {
			l, err := p.attachSite(file, at.program, site.Return, lib.PID, at.ret)
			if err != nil {
				return fmt.Errorf("%s at %#x: %w", site.Op, site.Return, err)
			}
			lib.links = append(lib.links, l)
		}
	}
	return nil
}

func (p *Probe) attachSite(file *link.Executable, name string, at uint64, pid int, ret bool) (link.Link, error) {
	program := p.library[name]
	switch {
	case p.multi && ret:
		return file.UretprobeMulti(nil, program, &link.UprobeMultiOptions{Addresses: []uint64{at}, PID: uint32(pid)})
	case p.multi:
		return file.UprobeMulti(nil, program, &link.UprobeMultiOptions{Addresses: []uint64{at}, PID: uint32(pid)})
	case ret:
		return file.Uretprobe("", program, &link.UprobeOptions{Address: at, PID: pid})
	default:
		return file.Uprobe("", program, &link.UprobeOptions{Address: at, PID: pid})
	}
}

// returnProgram is the return program that loaded.
func (p *Probe) returnProgram() string {
	if p.library[bpf.ObserverProgLibraryReturn] != nil {
		return bpf.ObserverProgLibraryReturn
	}
	return bpf.ObserverProgOldLibraryReturn
}

// entryProgram is the program that finds the arguments where site has them.
func entryProgram(site target.Site) (string, bool) {
	switch {
	case site.Op == target.Write && site.Done == 0:
		return bpf.ObserverProgLibraryWriteBytes, true
	case site.Op == target.Write && site.Done == 3:
		return bpf.ObserverProgLibraryWriteDone, true
	case site.Op == target.Write && site.Done == 4:
		return bpf.ObserverProgLibraryWriteFlags, true
	case site.Op == target.Read && site.Done == 0:
		return bpf.ObserverProgLibraryReadBytes, true
	case site.Op == target.Read && site.Done == 3:
		return bpf.ObserverProgLibraryReadDone, true
	}
	return "", false
}

// Libraries lists the probed files.
func (p *Probe) Libraries() []*Library {
	p.attach.mu.Lock()
	defer p.attach.mu.Unlock()
	libs := make([]*Library, 0, len(p.attach.files))
	for _, lib := range p.attach.files {
		libs = append(libs, lib)
	}
	return libs
}

// Scopes says whether a library can be probed in one process alone. A uprobe by
// perf event can only be so in one thread.
func (p *Probe) Scopes() bool { return p.multi }

// DetachProcess takes away the probes that were for one process.
func (p *Probe) DetachProcess(pid int) error {
	p.attach.mu.Lock()
	var gone []*Library
	for id, lib := range p.attach.files {
		if pid != 0 && id.pid == pid {
			gone = append(gone, lib)
			delete(p.attach.files, id)
		}
	}
	p.attach.mu.Unlock()
	var errs []error
	for _, lib := range gone {
		for _, l := range lib.links {
			errs = append(errs, l.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach from process %d: %w", pid, err)
	}
	return nil
}

// sites finds the sites of a file, or takes them from another process's probes
// of the same.
func (a *attachments) sites(id fileID, path string) ([]target.Site, error) {
	for other, lib := range a.files {
		if other.dev == id.dev && other.inode == id.inode {
			if errors.Is(lib.Err, target.ErrNoSSL) {
				return nil, lib.Err
			}
			if lib.Err == nil {
				return lib.Sites, nil
			}
		}
	}
	return target.OpenSSL(path)
}

func (a *attachments) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, lib := range a.files {
		for _, l := range lib.links {
			errs = append(errs, l.Close())
		}
	}
	a.files = nil
	return errors.Join(errs...)
}

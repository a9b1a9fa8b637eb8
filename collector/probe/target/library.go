package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	maxCache    = 32 << 20 // bytes of ld.so.cache
	maxEntries  = 1 << 20  // files looked at in a folder, or named in the cache
	maxLinks    = 40       // symbolic links followed, as the kernel does
	maxPathName = 4096
)

// isLibrary says whether a file of this name may be a copy of libssl. Python
// wheels rename theirs to libssl-1a2b3c4d.so.3; libssl3.so is another library.
func isLibrary(name string) bool {
	rest, ok := strings.CutPrefix(name, "libssl")
	if !ok {
		return false
	}
	if strings.HasPrefix(rest, "-") {
		return strings.Contains(rest, ".so")
	}
	return rest == ".so" || strings.HasPrefix(rest, ".so.")
}

// fileID names a file whatever its path.
type fileID struct{ dev, ino uint64 }

func idOf(st fs.FileInfo) fileID {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return fileID{s.Dev, s.Ino}
	}
	return fileID{}
}

// folders are where the dynamic linkers of glibc and musl look by default.
func folders() []string {
	return []string{
		"/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64", "/usr/local/lib64",
		"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib/x86_64-linux-gnu",
		"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib/aarch64-linux-gnu",
	}
}

// Libraries returns the copies of libssl that programs can load which see root
// as their root folder, each once, by a path without symbolic links. What is
// missing or unreadable it leaves out; an error says that something was.
func Libraries(root string) ([]string, error) {
	var paths []string
	var errs []error
	cache, err := readFile(filepath.Join(root, "/etc/ld.so.cache"), maxCache)
	if err == nil {
		paths, err = parseCache(cache)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // musl has none
		errs = append(errs, fmt.Errorf("read ld.so.cache: %w", err))
	}
	for _, dir := range folders() {
		names, err := list(root, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, name := range names {
			paths = append(paths, filepath.Join(dir, name))
		}
	}

	seen := map[fileID]bool{}
	var libs []string
	for _, p := range paths {
		if !isLibrary(filepath.Base(p)) {
			continue
		}
		real, err := resolve(root, p)
		if err != nil {
			continue // the cache may be older than the file's removal
		}
		st, err := os.Lstat(real)
		if err != nil || !st.Mode().IsRegular() || seen[idOf(st)] {
			continue
		}
		seen[idOf(st)] = true
		libs = append(libs, real)
	}
	return libs, errors.Join(errs...)
}

// list returns the names in a folder below root that may be libraries.
func list(root, dir string) ([]string, error) {
	real, err := resolve(root, dir)
	if err != nil {
		return nil, err
	}
	d, err := os.Open(real)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var names []string
	for n := 0; n < maxEntries; {
		some, err := d.Readdirnames(1024)
		for _, name := range some {
			if isLibrary(name) {
				names = append(names, name)
			}
		}
		n += len(some)
		if err == io.EOF {
			return names, nil
		}
		if err != nil {
			return names, err
		}
	}
	return names, fmt.Errorf("read %s: more than %d files", dir, maxEntries)
}

// readFile reads a regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("read %s: more than %d bytes", path, limit)
	}
	return b, err
}

// resolve follows the symbolic links in path as a process does whose root
// folder is root, and returns the path to the file from here.
func resolve(root, path string) (string, error) {
	done, rest := "/", path
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(done, name) // takes .. away, not above /
		st, err := os.Lstat(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		to, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks || len(to)+len(rest) > maxPathName {
			return "", &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		if strings.HasPrefix(to, "/") {
			done = "/"
		}
		rest = to + "/" + rest
	}
	return filepath.Join(root, done), nil
}

// The two formats of ld.so.cache, as glibc's sysdeps/generic/dl-cache.h has
// them. Up to glibc 2.31 a file held the old one and then the new one.
const (
	oldMagic  = "ld.so-1.7.0\x00"
	oldHeader = 16
	oldEntry  = 12
	newMagic  = "glibc-ld.so.cache1.1"
	newHeader = 48
	newEntry  = 24
	// flags of an entry: the low byte says ELF, the next which ABI
	flagX8664   = 0x0303
	flagAArch64 = 0x0a03
)

// parseCache returns the paths of the 64-bit libraries in an ld.so.cache.
func parseCache(b []byte) ([]string, error) {
	if bytes.HasPrefix(b, []byte(oldMagic)) {
		if len(b) < oldHeader {
			return nil, io.ErrUnexpectedEOF
		}
		skip := oldHeader + uint64(binary.LittleEndian.Uint32(b[12:]))*oldEntry
		skip = (skip + 7) &^ 7
		if skip > uint64(len(b)) {
			return nil, io.ErrUnexpectedEOF
		}
		b = b[skip:]
	}
	if !bytes.HasPrefix(b, []byte(newMagic)) {
		return nil, errors.New("not a cache of a known format")
	}
	if len(b) < newHeader {
		return nil, io.ErrUnexpectedEOF
	}
	n := uint64(binary.LittleEndian.Uint32(b[20:]))
	if n > maxEntries || newHeader+n*newEntry > uint64(len(b)) {
		return nil, io.ErrUnexpectedEOF
	}
	var paths []string
	for e := b[newHeader : newHeader+n*newEntry]; len(e) > 0; e = e[newEntry:] {
		flags, at := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[8:])
		if flags != flagX8664 && flags != flagAArch64 || uint64(at) >= uint64(len(b)) {
			continue
		}
		path := b[at:min(len(b), int(at)+maxPathName)]
		end := bytes.IndexByte(path, 0)
		if end > 0 && isLibrary(filepath.Base(string(path[:end]))) {
			paths = append(paths, string(path[:end]))
		}
	}
	return paths, nil
}

package target

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Lib is a file with TLS functions that a process has mapped.
type Lib struct {
	// Path opens the file from here, whatever the process's mount namespace, as
	// long as the process lives.
	Path string
	Name string // as the process sees it
	Main bool   // it is the process's own executable

	Dev, Inode uint64 // the file's identity, as stat gives it
}

// maxMaps bounds the lines of /proc/PID/maps that are read; the kernel's own
// default limit (vm.max_map_count) is 65530.
const maxMaps = 1 << 17

// MappedBy returns the copies of libssl that a process has mapped for execution,
// and its executable if that has SSL_read and SSL_write.
func MappedBy(pid int) ([]Lib, error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	f, err := os.Open(proc + "/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mapped, errMaps := parseMaps(f)
	if errMaps != nil {
		errMaps = fmt.Errorf("read the maps of process %d: %w", pid, errMaps)
	}

	var libs []Lib
	seen := map[fileID]bool{}
	add := func(l Lib) error {
		st, err := os.Stat(l.Path)
		if err != nil || !st.Mode().IsRegular() {
			return cmp.Or(err, fs.ErrInvalid)
		}
		id := idOf(st)
		l.Dev, l.Inode = id.dev, id.ino
		if !seen[id] {
			seen[id] = true
			libs = append(libs, l)
		}
		return nil
	}
	errs := []error{errMaps}
	for _, m := range mapped {
		// map_files leads to the very file, even if it was replaced since; it
		// needs a capability that the path through root does not.
		err := add(Lib{Path: proc + "/map_files/" + m.addrs, Name: m.name})
		if err != nil && !m.deleted {
			err = add(Lib{Path: proc + "/root" + m.name, Name: m.name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("find %s of process %d: %w", m.name, pid, err))
		}
	}
	exe := proc + "/exe"
	name, err := os.Readlink(exe)
	if err != nil { // a kernel thread has none
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return libs, errors.Join(errs...)
	}
	has, err := HasSSL(exe)
	if err == nil && has {
		err = add(Lib{Path: exe, Name: strings.TrimSuffix(name, deleted), Main: true})
	}
	return libs, errors.Join(append(errs, err)...)
}

type mapping struct {
	addrs   string // first and last address, as map_files names them
	name    string
	deleted bool
}

// deleted is what the kernel adds to the name of a file that has no name left.
const deleted = " (deleted)"

// parseMaps returns the executable mappings of libssl in a /proc/PID/maps.
func parseMaps(r io.Reader) ([]mapping, error) {
	var found []mapping
	s := bufio.NewScanner(r)
	s.Buffer(nil, 2*maxPathName)
	for n := 0; s.Scan(); n++ {
		if n == maxMaps {
			return found, fmt.Errorf("more than %d mappings", maxMaps)
		}
		// address perms offset dev inode name; the name may have spaces
		field := strings.SplitN(s.Text(), " ", 6)
		if len(field) < 6 || len(field[1]) != 4 || field[1][2] != 'x' {
			continue
		}
		m := mapping{addrs: field[0], name: strings.TrimLeft(field[5], " ")}
		m.name, m.deleted = strings.CutSuffix(m.name, deleted)
		m.name = strings.ReplaceAll(m.name, `\012`, "\n")
		if filepath.IsAbs(m.name) && isLibrary(filepath.Base(m.name)) && isRange(m.addrs) {
			found = append(found, m)
		}
	}
	return found, s.Err()
}

// isRange says whether s is two hexadecimal numbers with a dash between.
func isRange(s string) bool {
	lo, hi, ok := strings.Cut(s, "-")
	return ok && lo != "" && hi != "" && strings.Trim(lo+hi, "0123456789abcdef") == ""
}

// Executable is what a command runs.
type Executable struct {
	Path   string // without symbolic links; of the interpreter where Script is set
	Script string // the script that Path interprets, or ""
	SSL    bool   // Path itself has SSL_read and SSL_write
}

// The kernel follows four interpreters at most, and reads so much of a script's
// first line.
const (
	maxInterpreters = 5
	maxFirstLine    = 256
)

// Command finds the executable that runs when a command is started by its name
// under an environment of KEY=value strings. It follows interpreters, also those
// that are looked for by env.
func Command(argv0 string, env []string) (Executable, error) {
	path, err := lookPath(argv0, env)
	if err != nil {
		return Executable{}, err
	}
	x := Executable{Path: path}
	for range maxInterpreters {
		if x.Path, err = filepath.EvalSymlinks(x.Path); err != nil {
			return Executable{}, err
		}
		name, err := interpreter(x.Path, env)
		if err != nil {
			return Executable{}, err
		}
		if name == "" {
			var format *elf.FormatError
			x.SSL, err = HasSSL(x.Path)
			if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, errors.ErrUnsupported) {
				err = nil // it may run all the same, but there is nothing to probe
			}
			return x, err
		}
		if x.Script == "" {
			x.Script = x.Path
		}
		x.Path = name
	}
	return Executable{}, fmt.Errorf("run %s: too many interpreters", argv0)
}

// interpreter returns the interpreter that a script names, "" if path is none.
func interpreter(path string, env []string) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFirstLine))
	if err != nil {
		return "", err
	}
	line, ok := bytes.CutPrefix(b, []byte("#!"))
	if !ok {
		return "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", fmt.Errorf("read %s: no interpreter", path)
	}
	if filepath.Base(words[0]) != "env" {
		return words[0], nil
	}
	for _, w := range words[1:] {
		if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
			return lookPath(w, env)
		}
	}
	return words[0], nil
}

// lookPath finds an executable file as exec.LookPath does, but by env's PATH.
// Folders of PATH that are not absolute do not count.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v // the last one counts, as for exec.Cmd
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if p := filepath.Join(dir, name); filepath.IsAbs(dir) && executable(p) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("find %q in PATH: %w", name, fs.ErrNotExist)
}

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return &fs.PathError{Op: "exec", Path: path, Err: fs.ErrPermission}
	}
	return nil
}

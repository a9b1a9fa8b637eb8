package target

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// mapFile maps a file into this process for execution, as the dynamic linker
// does with a library.
func mapFile(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_EXEC, syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
}

func sslProgram() program {
	return program{machine: elf.EM_X86_64, funcs: []source{{"SSL_write", plainPush}, {"SSL_read", plainPush}}}
}

func TestMappedBy(t *testing.T) {
	path := sslProgram().write(t)
	mapFile(t, path)
	mapFile(t, path)
	libs, err := MappedBy(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	id := idOf(st)
	n := 0
	for _, l := range libs {
		if l.Name != path {
			continue
		}
		n++
		if l.Dev != id.dev || l.Inode != id.ino || l.Main {
			t.Errorf("got %+v, want %+v", l, id)
		}
		if sites, err := OpenSSL(l.Path); err != nil || len(sites) != 2 {
			t.Errorf("OpenSSL(%s) = %v, %v", l.Path, sites, err)
		}
	}
	if n != 1 {
		t.Errorf("%d of %+v", n, libs)
	}
}

// A replaced library is either found by its mapping or reported, never silently
// taken for the file that now has its name.
func TestMappedByReplaced(t *testing.T) {
	path := sslProgram().write(t)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	mapFile(t, path)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + ".old"); err != nil {
		t.Fatal(err)
	}
	libs, err := MappedBy(os.Getpid())
	for _, l := range libs {
		if l.Inode == idOf(st).ino {
			return
		}
	}
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %+v, %v", libs, err)
	}
}

func TestParseMaps(t *testing.T) {
	const maps = `55e0-55f0 r-xp 00001000 fe:00 10 /usr/bin/curl
7f10-7f20 r--p 00000000 fe:00 12 /usr/lib/libssl.so.3
7f20-7f30 r-xp 0001e000 fe:00 12                      /usr/lib/libssl.so.3
7f40-7f50 r-xp 00000000 fe:00 13   /opt/my app/libssl-1a.so.1.1 (deleted)
7f50-7f60 r-xp 00000000 00:00 0
../../etc r-xp 00000000 fe:00 14 /usr/lib/libssl.so.4
7f60-7f70 r-xp 00000000 fe:00 15 libssl.so.3
nonsense
`
	got, err := parseMaps(strings.NewReader(maps))
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{
		{addrs: "7f20-7f30", name: "/usr/lib/libssl.so.3"},
		{addrs: "7f40-7f50", name: "/opt/my app/libssl-1a.so.1.1", deleted: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCommand(t *testing.T) {
	ssl := string(sslProgram().build(t))
	none := string(program{machine: elf.EM_X86_64, funcs: []source{{"SSL_read", plainPush}}}.build(t))
	root := tree(t,
		"bin/node = "+ssl,
		"bin/curl = "+none,
		"bin/nodejs -> node",
		"bin/cli = #!/usr/bin/env -S node --flag\n",
		"bin/data = neither\n",
		"bin/none = #!\n",
	)
	bin := filepath.Join(root, "bin")
	for name, line := range map[string]string{"direct": filepath.Join(bin, "nodejs") + " -x", "loop": filepath.Join(bin, "loop"), "nest": filepath.Join(bin, "direct")} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#! "+line+"\nrest"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	errAny := errors.New("any")
	at := func(name string) string { return filepath.Join(bin, name) }
	tests := []struct {
		argv0 string
		want  Executable
		err   error // errors.Is; errAny for any
	}{
		{"node", Executable{Path: at("node"), SSL: true}, nil},
		{"nodejs", Executable{Path: at("node"), SSL: true}, nil},
		{at("curl"), Executable{Path: at("curl")}, nil},
		{"cli", Executable{Path: at("node"), Script: at("cli"), SSL: true}, nil},
		{"direct", Executable{Path: at("node"), Script: at("direct"), SSL: true}, nil},
		{"nest", Executable{Path: at("node"), Script: at("nest"), SSL: true}, nil},
		{"data", Executable{Path: at("data")}, nil},
		{"none", Executable{}, errAny},
		{"loop", Executable{}, errAny},
		{"plain", Executable{}, fs.ErrNotExist},
		{at("plain"), Executable{}, fs.ErrPermission},
		{at("gone"), Executable{}, fs.ErrNotExist},
	}
	for _, tt := range tests {
		t.Run(filepath.Base(tt.argv0), func(t *testing.T) {
			got, err := Command(tt.argv0, []string{"PATH=/gone", "PATH=relative:" + bin})
			anyError := errors.Is(tt.err, errAny)
			if anyError && err == nil || !anyError && !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err == nil && got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

package target

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cache builds an ld.so.cache of the new format.
func cache(flags uint32, paths ...string) []byte {
	b := append([]byte(newMagic), make([]byte, newHeader-len(newMagic))...)
	binary.LittleEndian.PutUint32(b[20:], uint32(len(paths)))
	at := newHeader + len(paths)*newEntry
	var text []byte
	for _, p := range paths {
		e := make([]byte, newEntry)
		binary.LittleEndian.PutUint32(e, flags)
		binary.LittleEndian.PutUint32(e[8:], uint32(at+len(text)))
		b = append(b, e...)
		text = append(append(text, p...), 0)
	}
	binary.LittleEndian.PutUint32(b[24:], uint32(len(text)))
	return append(b, text...)
}

// withOld puts a cache of the old format with n entries before another one.
func withOld(n int, b []byte) []byte {
	old := append([]byte(oldMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(old[12:], uint32(n))
	old = append(old, make([]byte, n*oldEntry)...)
	for len(old)%8 != 0 {
		old = append(old, 0)
	}
	return append(old, b...)
}

func TestParseCache(t *testing.T) {
	two := cache(flagX8664, "/lib/libc.so.6", "/opt/tls/libssl.so.1.1")
	tests := []struct {
		name string
		in   []byte
		want []string
		err  bool
	}{
		{name: "new", in: two, want: []string{"/opt/tls/libssl.so.1.1"}},
		{name: "old before new", in: withOld(3, two), want: []string{"/opt/tls/libssl.so.1.1"}},
		{name: "arm64", in: cache(flagAArch64, "/a/libssl.so.3"), want: []string{"/a/libssl.so.3"}},
		{name: "32 bits", in: cache(0x0003, "/a/libssl.so.3")},
		{name: "another library", in: cache(flagX8664, "/a/libssl3.so")},
		{name: "empty", err: true},
		{name: "old only", in: withOld(3, nil), err: true},
		{name: "cut in the entries", in: two[:newHeader+newEntry], err: true},
		{name: "cut in the text", in: two[:len(two)-1]},
		{name: "cut in the old format's head", in: []byte(oldMagic), err: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseCache(tt.in)
			if (err != nil) != tt.err || !slices.Equal(got, tt.want) {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add(cache(flagX8664, "/lib/libc.so.6", "/opt/tls/libssl.so.1.1"))
	f.Add(withOld(3, cache(flagAArch64, "/a/libssl.so.3")))
	f.Fuzz(func(t *testing.T, b []byte) {
		paths, _ := parseCache(b)
		for _, p := range paths {
			if !isLibrary(filepath.Base(p)) || len(p) > maxPathName {
				t.Fatalf("path %q", p)
			}
		}
	})
}

func TestIsLibrary(t *testing.T) {
	for name, want := range map[string]bool{
		"libssl.so": true, "libssl.so.3": true, "libssl.so.1.0.0": true, "libssl-1a2b3c4d.so.1.1": true,
		"libssl3.so": false, "libssl.a": false, "libssl-dev": false, "libcrypto.so.3": false, "libssl.sock": false,
	} {
		if got := isLibrary(name); got != want {
			t.Errorf("isLibrary(%q) = %t", name, got)
		}
	}
}

// tree makes a folder from lines "path", "path -> link", or "path = content".
func tree(t *testing.T, lines ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		path, to, link := strings.Cut(line, " -> ")
		path, content, _ := strings.Cut(path, " = ")
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if link {
			err = os.Symlink(to, full)
		} else {
			err = os.WriteFile(full, []byte(content), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLibraries(t *testing.T) {
	root := tree(t,
		"usr/lib/libssl.so.3",
		"usr/lib/libssl3.so",
		"usr/lib/libssl.so -> libssl.so.3",
		"lib -> usr/lib",
		"opt/real/libssl.so.1.1",
		"opt/tls -> /opt/real", // absolute, as seen in root
		"usr/lib64/libssl.so.3 -> ../../../../../../../../usr/lib/libssl.so.3",
		"usr/local/lib/libssl.so -> libssl.so", // a circle
		"etc/ld.so.cache = "+string(cache(flagX8664, "/opt/tls/libssl.so.1.1", "/gone/libssl.so.3")),
	)
	got, err := Libraries(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(root, "opt/real/libssl.so.1.1"), filepath.Join(root, "usr/lib/libssl.so.3")}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLibrariesReportsABadCache(t *testing.T) {
	root := tree(t, "etc/ld.so.cache = nonsense", "lib/libssl.so.3")
	got, err := Libraries(root)
	if err == nil || len(got) != 1 {
		t.Errorf("got %q, %v", got, err)
	}
}

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/testbed"
)

// TestWrongUsage needs no privileges: what is asked for is looked at first.
func TestWrongUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	notExecutable, exists := filepath.Join(dir, "data"), filepath.Join(dir, "exists")
	testbed.WriteFile(t, notExecutable, []byte("data"))
	testbed.WriteFile(t, exists, []byte("precious"))
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"run --no-such-flag -- true", exitUsage, "unknown flag: --no-such-flag"},
		{"watch --no-such-flag", exitUsage, "unknown flag"},
		{"no-such-command", exitUsage, "unknown command"},
		{"run", exitUsage, "requires at least 1 arg"},
		{"watch true", exitUsage, "unknown command"},
		{"doctor extra", exitUsage, ""},
		{"run -- peel-no-such-program", exitNotFound, "peel-no-such-program"},
		{"run -- /no/such/program", exitNotFound, "no such file"},
		{"run -- " + notExecutable, exitNotExec, "permission denied"},
		{"run -- " + dir, exitNotExec, "directory"},
		{"run --port 0 -- true", exitUsage, "--port 0"},
		{"run --port 65536 -- true", exitUsage, "--port 65536"},
		{"run --port -1 -- true", exitUsage, "port"},
		{"run --port http -- true", exitUsage, "port"},
		{"run --cidr 10.0.0.0/33 -- true", exitUsage, "--cidr"},
		{"run --cidr nowhere -- true", exitUsage, "--cidr"},
		{"run --cidr fe80::/129 -- true", exitUsage, "--cidr"},
		{"watch --pid 0", exitUsage, "--pid 0"},
		{"watch --pid -4", exitUsage, "--pid -4"},
		{"watch --pid 4194303", exitUsage, "no such process"},
		{"watch --role bystander", exitUsage, "--role"},
		{"watch --host [", exitUsage, "--host"},
		{"watch --comm=", exitUsage, "--comm"},
		{"watch --duration -1s", exitUsage, "--duration"},
		{"run -o yaml -- true", exitUsage, "--output"},
		{"run --write " + exists + " -- true", exitUsage, "--force"},
		{"run --write /no/such/folder/file -- true", exitUsage, "no such file"},
		{"run --write " + dir + " --force -- true", exitUsage, "directory"},
		{"watch --cgroup /no/such/cgroup", exitUsage, "cgroup"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			r := peel(t, strings.Fields(tt.args)...)
			if r.code != tt.code || !strings.Contains(r.stderr, tt.says) || !strings.HasPrefix(r.stderr, "peel: ") {
				t.Errorf("status %d, says %q; want %d, %q", r.code, r.stderr, tt.code, tt.says)
			}
			if r.stdout != "" {
				t.Errorf("standard output has %q", r.stdout)
			}
		})
	}
	if got, err := os.ReadFile(exists); err != nil || string(got) != "precious" {
		t.Errorf("the file that exists has %q now (%v)", got, err)
	}
}

// TestForce overwrites a file, and only with the flag.
func TestForce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "exists")
	testbed.WriteFile(t, file, []byte("precious"))
	if r := peel(t, "run", "--write", file, "--force", "--", "true"); r.code != 0 {
		t.Errorf("status %d: %s", r.code, r.stderr)
	}
	if got, err := os.ReadFile(file); err != nil || len(got) != 0 {
		t.Errorf("the file has %q (%v), want nothing", got, err)
	}
}

// TestFullDisk must not pass for success, and must not cost the summary.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	argv := []string{"curl", "-sSk", "https://" + addr + "/small"}
	for range 100 {
		argv = append(argv, argv[2])
	}
	r := peel(t, append([]string{"run", "--write", "/dev/full", "--force", "--"}, argv...)...)
	if r.code != exitFailure || !strings.Contains(r.stderr, "no space left") || !strings.Contains(r.stderr, "missing") {
		t.Errorf("status %d, says\n%s", r.code, r.stderr)
	}
	if !strings.Contains(r.stderr, "101 exchanges") {
		t.Errorf("the summary is not there:\n%s", r.stderr)
	}
}

// TestFullDiskKeepsTheStatus gives the command's own status precedence.
func TestFullDiskKeepsTheStatus(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	r := peel(t, "run", "--write", "/dev/full", "--force", "--", "sh", "-c", "curl -sk https://"+addr+"/small >/dev/null; exit 7")
	if r.code != 7 || !strings.Contains(r.stderr, "no space left") {
		t.Errorf("status %d, says\n%s", r.code, r.stderr)
	}
}

// copySelf makes this program one that everybody may run.
func copySelf(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.CreateTemp("", "peel-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(to.Name()) })
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Chmod(0o755); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return to.Name()
}

// wrapped is peel started by another program.
func wrapped(t *testing.T, program string, args []string, peel ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return asPeelCommand(program, append(append(args, self), peel...)...)
}

// TestNoPrivileges names what is lacking and what for.
func TestNoPrivileges(t *testing.T) {
	t.Parallel()
	self := copySelf(t)
	nobody := []string{"--reuid=65534", "--regid=65534", "--clear-groups"}
	for _, args := range [][]string{{"run", "--", "true"}, {"watch"}, {"doctor"}, {"demo"}} {
		for _, who := range [][]string{nobody, {"--bounding-set=-all", "--inh-caps=-all"}} {
			cmd := asPeelCommand("setpriv", append(append(who, self), args...)...)
			cmd.Dir = "/"
			r := finish(t, cmd)
			if r.code != exitUnable {
				t.Errorf("%v: status %d, want %d", args, r.code, exitUnable)
			}
			for _, says := range []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "plaintext", "connect", "root"} {
				if !strings.Contains(r.stderr+r.stdout, says) {
					t.Errorf("%v does not say %s:\n%s", args, says, r.stderr)
				}
			}
		}
	}
}

// TestNoBTF hides the kernel's types.
func TestNoBTF(t *testing.T) {
	t.Parallel()
	hide := fmt.Sprintf("mount --bind %s /sys/kernel/btf && exec \"$@\"", t.TempDir())
	for _, args := range [][]string{{"run", "--", "true"}, {"doctor"}} {
		r := finish(t, wrapped(t, "unshare", []string{"-m", "sh", "-c", hide, "sh"}, args...))
		if r.code != exitUnable || !strings.Contains(r.stderr, "CONFIG_DEBUG_INFO_BTF") {
			t.Errorf("%v: status %d, says %s", args, r.code, r.stderr)
		}
	}
}

// TestNoCgroup2 unmounts it: peel mounts its own, and takes it away again.
func TestNoCgroup2(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	unmount := "awk '$3 == \"cgroup2\" {print $2}' /proc/self/mounts | xargs -r -n 1 umount -l || exit 99\n" +
		"\"$@\"\nstatus=$?\ngrep cgroup2 /proc/self/mounts && exit 98\nexit $status"
	tmp := t.TempDir()
	cmd := wrapped(t, "unshare", []string{"-m", "sh", "-c", unmount, "sh"}, "run", "--", "curl", "-sSk", "-o", "/dev/null", "https://"+addr+"/small")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	r := finish(t, cmd)
	if r.code != 0 || !strings.Contains(r.stderr, "/small → 200") {
		t.Errorf("status %d, says\n%s%s", r.code, r.stdout, r.stderr)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

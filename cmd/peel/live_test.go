package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/peel-dev/peel/collector/testbed"
)

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// prime calls until watch has probed the libraries, which it does when the first
// connection that it wants is opened.
func prime(t *testing.T, p *live, addr string) {
	t.Helper()
	eventually(t, func() bool {
		exec.Command("curl", "-sk", "-o", "/dev/null", "https://"+addr+"/prime").Run()
		return strings.Contains(p.stdout.String(), "/prime")
	}, func() string { return "nothing is seen:\n" + p.stderr.String() })
}

// TestWatch observes what others start, and ends cleanly on any signal.
func TestWatch(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "exchanges.jsonl")
			p := begin(t, "watch", "--port", port(addr), "--write", file)
			prime(t, p, addr)
			if out, err := exec.Command("curl", "-sSk", "-o", "/dev/null", "https://"+addr+"/small", "https://"+addr+"/small").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			// Standard output is a pipe: JSON, as it comes.
			measured := func() int { return strings.Count(p.stdout.String(), `"/small"`) }
			eventually(t, func() bool { return measured() == 2 }, func() string {
				return "not two records:\n" + p.stdout.String() + p.stderr.String()
			})
			r := p.end(t, sig)
			if r.code != 0 || !strings.Contains(r.stderr, "exchanges in") || strings.Contains(r.stderr, "goroutine") {
				t.Errorf("status %d, says\n%s", r.code, r.stderr)
			}
			if shown, written := decodeRecords(t, strings.NewReader(r.stdout)), readRecords(t, file); len(shown) < 3 || len(written) != len(shown) || measured() != 2 {
				t.Errorf("%d records shown, %d written", len(shown), len(written))
			}
		})
	}
}

// TestWatchChooses picks processes that run already, by pid and by name.
func TestWatchChooses(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	client := filepath.Join(t.TempDir(), "peel-client") // a name of its own
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shell, client); err != nil {
		t.Fatal(err)
	}
	// It waits for a line, then calls.
	waiting := exec.Command(client, "-c", "while read call; do curl -sk https://"+addr+"/$call >/dev/null; done")
	stdin, err := waiting.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	waiting.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-waiting.Process.Pid, syscall.SIGKILL)
		waiting.Wait()
	})
	byPID := begin(t, "watch", "--pid", fmt.Sprint(waiting.Process.Pid))
	byComm := begin(t, "watch", "--comm", "peel-client")
	byOther := begin(t, "watch", "--pid", fmt.Sprint(os.Getppid()), "--port", port(addr))
	fmt.Fprintln(stdin, "first") // --pid may miss it: from now on it knows of children
	time.Sleep(200 * time.Millisecond)
	fmt.Fprintln(stdin, "small")
	for name, p := range map[string]*live{"--pid": byPID, "--comm": byComm} {
		eventually(t, func() bool { return strings.Count(p.stdout.String(), `"/small"`) == 1 }, func() string {
			return name + " saw nothing of it:\n" + p.stdout.String() + p.stderr.String()
		})
	}
	for name, p := range map[string]*live{"--pid": byPID, "--comm": byComm, "--pid of another": byOther} {
		want := 1
		if p == byOther {
			want = 0
		}
		if r := p.end(t, os.Interrupt); r.code != 0 || strings.Count(r.stdout, `"/small"`) != want {
			t.Errorf("%s: status %d, shows\n%s\n%s", name, r.code, r.stdout, r.stderr)
		}
	}
}

// TestWatchSaysWhyNothing is not silent when there is nothing to show.
func TestWatchSaysWhyNothing(t *testing.T) {
	t.Parallel()
	sink := testbed.Serve(t, testbed.Listen(t), testbed.Drain)
	none := begin(t, "watch", "--port", "1")
	opaque := begin(t, "watch", "--port", port(sink))
	talk := exec.Command(testbed.Python, "-c", "import socket,sys,time\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\ns.sendall(bytes(100))\ntime.sleep(60)", port(sink))
	if err := talk.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { talk.Process.Kill(); talk.Wait() })
	none.until(t, "no exchange yet")
	none.until(t, "no connection that the flags choose")
	opaque.until(t, "1 connections watched (1 open now), 100 bytes out")
	none.end(t, os.Interrupt)
	opaque.end(t, os.Interrupt)
}

// TestWatchEndsItself ends after --duration, and when nobody reads any more.
func TestWatchEndsItself(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	if r := peel(t, "watch", "--port", "1", "--duration", "100ms"); r.code != 0 || !strings.Contains(r.stderr, "No exchange was seen") {
		t.Errorf("status %d, says\n%s", r.code, r.stderr)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "watch", "--port", port(addr))
	var stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = writer, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	reader.Close()
	p := &live{cmd: cmd}
	eventually(t, func() bool { return strings.Contains(stderr.String(), "watching") }, stderr.String)
	ended := make(chan result, 1)
	go func() { ended <- p.wait(t) }()
	eventually(t, func() bool {
		exec.Command("curl", "-sk", "-o", "/dev/null", "https://"+addr+"/small").Run()
		return len(ended) > 0
	}, func() string { return "it goes on though nobody reads" })
	if r := <-ended; r.code != 0 {
		t.Errorf("status %d, says\n%s", r.code, stderr.String())
	}
}

// TestRunOnSignals passes signals on to the command, waits for its end, and
// still tells what it saw.
func TestRunOnSignals(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	started := filepath.Join(t.TempDir(), "started")
	for _, tt := range []struct {
		name   string
		sig    syscall.Signal
		script string
		code   int
	}{
		{"the command dies of it", syscall.SIGTERM, "exec sleep 60", 143},
		{"of an interrupt", syscall.SIGINT, "exec sleep 60", 130},
		{"the command handles it", syscall.SIGTERM, "trap 'kill $!; exit 5' TERM; sleep 60 & wait", 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(started)
			p := begin(t, "run", "--", "sh", "-c", fmt.Sprintf("curl -sk https://%s/small >/dev/null; touch %s; %s", addr, started, tt.script))
			eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, p.stderr.String)
			r := p.end(t, tt.sig)
			if r.code != tt.code || !strings.Contains(r.stderr, "/small → 200") {
				t.Errorf("status %d, want %d, says\n%s", r.code, tt.code, r.stderr)
			}
		})
	}
}

// TestNothingIsLeftBehind looks whether the kernel still has what peel loaded,
// after each way in which it can end.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			p := begin(t, "watch", "--port", "1")
			loaded := bpfObjects(t, p.cmd.Process.Pid)
			for _, kind := range []string{"prog", "map", "link"} {
				if len(loaded[kind]) == 0 {
					t.Errorf("no %s is loaded while peel watches: %v", kind, loaded)
				}
			}
			p.end(t, sig)
			expectGone(t, loaded)
		})
	}
}

// objectKinds are the kinds of BPF objects in /proc/PID/fdinfo, and the bpf(2)
// command that gets each by its id.
func objectKinds() map[string]uintptr {
	return map[string]uintptr{"prog": unix.BPF_PROG_GET_FD_BY_ID, "map": unix.BPF_MAP_GET_FD_BY_ID, "link": unix.BPF_LINK_GET_FD_BY_ID}
}

// bpfObjects lists the ids of what a process holds.
func bpfObjects(t *testing.T, pid int) map[string][]uint32 {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	objects := make(map[string][]uint32)
	id := regexp.MustCompile(`(?m)^(prog|map|link)_id:\s+(\d+)$`)
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue // closed meanwhile
		}
		for _, match := range id.FindAllStringSubmatch(string(info), -1) {
			var n uint32
			fmt.Sscan(match[2], &n)
			objects[match[1]] = append(objects[match[1]], n)
		}
	}
	return objects
}

// expectGone asks the kernel for each object. It frees some a little later.
func expectGone(t *testing.T, objects map[string][]uint32) {
	t.Helper()
	for kind, ids := range objects {
		for _, id := range ids {
			eventually(t, func() bool {
				attr := struct{ id, next, flags uint32 }{id: id}
				fd, _, errno := unix.Syscall(unix.SYS_BPF, objectKinds()[kind], uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
				if errno == 0 {
					unix.Close(int(fd))
				} else if !errors.Is(errno, unix.ENOENT) {
					t.Fatalf("get %s %d: %v", kind, id, errno)
				}
				return errno != 0
			}, func() string { return fmt.Sprintf("%s %d is still in the kernel", kind, id) })
		}
	}
}

// TestDoctorAndDemo are whole commands that must do on any host that can serve.
func TestDoctorAndDemo(t *testing.T) {
	t.Parallel()
	if r := peel(t, "doctor"); r.code != 0 || !strings.Contains(r.stdout, "peel can do its main job here") || r.stderr != "" {
		t.Errorf("doctor: status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := peel(t, "demo"); r.code != 0 || !strings.Contains(r.stdout, "bounds hold the true value") {
		t.Errorf("demo: status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/testbed"
)

// twice is http.client: two uploads on one connection.
const twice = `
import http.client, ssl, sys
host, port = sys.argv[1].rsplit(":", 1)
c = http.client.HTTPSConnection(host, int(port), context=ssl._create_unverified_context())
for _ in range(2):
    c.request("POST", "/upload", b"u" * 100_000)
    print(c.getresponse().read().decode())
`

// fact is what an exchange is, to peel and to the server.
type fact struct {
	method, path string
	status       int
	bytes        int64 // of the answer's body
	version      string
	sequence     int
}

func factOf(r *exchange.Record) fact {
	return fact{r.HTTP.Method, r.HTTP.Path, r.HTTP.Status, r.HTTP.ResponseBodyBytes, r.HTTP.Version, r.Connection.Sequence}
}

func sorted(facts []fact) []fact {
	slices.SortFunc(facts, func(a, b fact) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return facts
}

// TestRunBesideAccessLog compares what peel saw of real clients with what nginx
// logged: no exchange too few or too many, from the first one on.
func TestRunBesideAccessLog(t *testing.T) {
	t.Parallel()
	nginx := testbed.StartNginx(t)
	small, big := "/small", "/big"
	curl := func(args ...string) []string {
		return append([]string{"curl", "-sSk", "--remote-name-all", "-o", "/dev/null"}, args...)
	}
	tests := []struct {
		name      string
		argv      []string
		exchanges int
		conns     int
	}{
		{"curl h2", curl("https://" + nginx.TLS + small), 1, 1},
		{"curl h1", curl("--http1.1", "https://"+nginx.TLS+small), 1, 1},
		{"curl plain", curl("http://" + nginx.Plain + small), 1, 1},
		{"curl IPv6", curl("-g", "https://"+nginx.TLS6+small), 1, 1},
		{"curl reuse h2", curl("https://"+nginx.TLS+small, "-o", "/dev/null", "https://"+nginx.TLS+big, "-o", "/dev/null", "https://"+nginx.TLS+"/nowhere"), 3, 1},
		{"curl reuse h1", curl("--http1.1", "https://"+nginx.TLS+small, "-o", "/dev/null", "https://"+nginx.TLS+big), 2, 1},
		{"curl parallel", curl("-Z", "--http1.1", "https://"+nginx.TLS+"/small?[1-6]"), 6, -1},
		{"curl HEAD", []string{"curl", "-sSkI", "-o", "/dev/null", "https://" + nginx.TLS + big}, 1, 1},
		{"nghttp", []string{"nghttp", "-n", "-m", "5", "https://" + nginx.TLS + big}, 5, 1},
		{"h2load", []string{"h2load", "-n", "60", "-c", "3", "-m", "10", "https://" + nginx.TLS + small}, 60, 3},
		{"h2load h1", []string{"h2load", "--h1", "-n", "20", "-c", "4", "https://" + nginx.TLS + small}, 20, 4},
		{"python", []string{testbed.Python, "-c", twice, nginx.TLS}, 2, 1},
		{"shell", []string{"sh", "-c", fmt.Sprintf("curl -sSk https://%[1]s/small >/dev/null; curl -sSk https://%[1]s/big >/dev/null & curl -sS http://%[2]s/small >/dev/null & wait", nginx.TLS, nginx.Plain)}, 3, 3},
		{"grandchildren", []string{"sh", "-c", fmt.Sprintf("(sh -c 'curl -sSk https://%s/small | cat >/dev/null')", nginx.TLS)}, 1, 1},
	}
	logged := 0
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, records := observed(t, tt.argv...)
			if r.code != 0 {
				t.Errorf("status %d: %s", r.code, r.stderr)
			}
			log := nginx.Log(t, logged+tt.exchanges)[logged:]
			logged += len(log)
			var want, got []fact
			for _, l := range log {
				version := strings.TrimSuffix(strings.TrimPrefix(l.Protocol, "HTTP/"), ".0")
				want = append(want, fact{l.Method, l.Path, l.Status, l.BodyBytes, version, l.Sequence})
			}
			conns, opened := make(map[string][]*exchange.Record), 0
			for _, r := range records {
				got = append(got, factOf(r))
				conns[r.Connection.ID] = append(conns[r.Connection.ID], r)
				if !r.Quality.Complete || !r.Quality.Plaintext || r.Quality.LostEvents > 0 {
					t.Errorf("%+v: %+v", factOf(r), r.Quality)
				}
				if !r.Connection.Reused {
					opened++
				}
				if r.Process.Comm == "" || r.Process.Exe == "" {
					t.Errorf("whose was it? %+v", r.Process)
				}
			}
			if want, got := sorted(want), sorted(got); !slices.Equal(want, got) || len(got) != tt.exchanges {
				t.Errorf("peel saw\n%v\nnginx logged\n%v\nwanted were %d", got, want, tt.exchanges)
			}
			if tt.conns >= 0 && len(conns) != tt.conns || opened != len(conns) {
				t.Errorf("%d connections, %d exchanges opened one; want %d", len(conns), opened, tt.conns)
			}
			for id, records := range conns {
				slices.SortFunc(records, func(a, b *exchange.Record) int {
					return cmp.Compare(a.Connection.Sequence, b.Connection.Sequence)
				})
				for i, r := range records {
					if r.Connection.Sequence != i+1 || r.Connection.Reused != (i > 0) || i > 0 && r.Start.Before(records[i-1].Start) {
						t.Errorf("connection %s: exchange %d has number %d, reused %v, start %v", id, i+1, r.Connection.Sequence, r.Connection.Reused, r.Start)
					}
				}
			}
		})
	}
}

// TestRunNghttpd observes against nghttpd, which has no log: every count is known.
func TestRunNghttpd(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	for _, tt := range []struct {
		name string
		argv []string
		n    int
	}{
		{"curl", []string{"curl", "-sSk", "-o", "/dev/null", "https://" + addr + "/small"}, 1},
		{"nghttp", []string{"nghttp", "-n", "-m", "100", "https://" + addr + "/small"}, 100},
		{"h2load", []string{"h2load", "-n", "2000", "-c", "4", "-m", "10", "https://" + addr + "/small"}, 2000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, records := observed(t, tt.argv...)
			if r.code != 0 || len(records) != tt.n {
				t.Fatalf("status %d, %d exchanges, want %d:\n%s", r.code, len(records), tt.n, r.stderr)
			}
			for _, r := range records {
				if r.HTTP.Status != 200 || r.HTTP.ResponseBodyBytes != testbed.SmallSize || !r.Quality.Complete {
					t.Fatalf("%+v %+v", *r.HTTP, r.Quality)
				}
			}
		})
	}
}

// TestRunPassesThrough leaves the command's status and output alone.
func TestRunPassesThrough(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	for _, tt := range []struct {
		name   string
		argv   []string
		code   int
		stdout string
	}{
		{"true", []string{"true"}, 0, ""},
		{"status", []string{"sh", "-c", "exit 42"}, 42, ""},
		{"status 2 is the command's", []string{"sh", "-c", "exit 2"}, 2, ""},
		{"signal", []string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		{"output", []string{"printf", "a\\nb"}, 0, "a\nb"},
		{"an answer", []string{"curl", "-sSk", "https://" + addr + "/small"}, 0, strings.Repeat("s", testbed.SmallSize)},
		{"no server", []string{"curl", "-sSk", "https://127.0.0.1:1/"}, 7, ""},
		{"flags of the command", []string{"printf", "%s", "--debug"}, 0, "--debug"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := peel(t, append([]string{"run", "--"}, tt.argv...)...)
			if r.code != tt.code || r.stdout != tt.stdout {
				t.Errorf("status %d, output %q; want %d, %q\n%s", r.code, r.stdout, tt.code, tt.stdout, r.stderr)
			}
		})
	}
	// Without "--", and with standard input.
	cmd := command(t, "run", "cat", "-")
	cmd.Stdin = strings.NewReader("through")
	if r := finish(t, cmd); r.code != 0 || r.stdout != "through" {
		t.Errorf("status %d, output %q", r.code, r.stdout)
	}
}

// TestChoice has two servers, and takes one.
func TestChoice(t *testing.T) {
	t.Parallel()
	one, other := testbed.Nghttpd(t), testbed.Nghttpd(t)
	_, port, _ := strings.Cut(one, ":")
	clients := fmt.Sprintf("curl -sk https://%s/small https://%s/small >/dev/null; curl -gsk --connect-to x.test:443:%s https://x.test/small >/dev/null", one, other, other)
	for _, tt := range []struct {
		flags string
		n     int
	}{
		{"", 3},
		{"--port " + port, 1},
		{"--port 1", 0},
		{"--cidr 127.0.0.0/8", 3},
		{"--cidr 127.0.0.1", 3},
		{"--cidr 10.0.0.0/8 --cidr ::1", 0},
		{"--host *.test", 1},
		{"--host X.TEST", 1},
		{"--host 127.*", 2},
		{"--host nowhere", 0},
		{"--host *.test --port " + port, 0},
		{"--role server", 0},
	} {
		t.Run(tt.flags, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "exchanges.jsonl")
			args := append([]string{"run", "--write", file}, strings.Fields(tt.flags)...)
			r := peel(t, append(args, "--", "sh", "-c", clients)...)
			if records := readRecords(t, file); r.code != 0 || len(records) != tt.n {
				t.Errorf("status %d, %d exchanges, want %d\n%s", r.code, len(records), tt.n, r.stderr)
			}
		})
	}
}

// TestOutputs asks for every form of output.
func TestOutputs(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	curl := []string{"--", "curl", "-sSk", "-o", "/dev/null", "https://" + addr + "/small"}
	run := func(t *testing.T, env []string, args ...string) string {
		cmd := command(t, append(append([]string{"run"}, args...), curl...)...)
		cmd.Env = append(cmd.Env, env...)
		r := finish(t, cmd)
		if r.code != 0 {
			t.Fatalf("status %d: %s", r.code, r.stderr)
		}
		return r.stderr
	}
	t.Run("text", func(t *testing.T) {
		text := run(t, nil)
		for _, word := range []string{"/small → 200", "connect", "tls", "wait", "server", "network", "client", "1 connection"} {
			if !strings.Contains(text, word) {
				t.Errorf("there is no %q in\n%s", word, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Error("there are escapes in what is no terminal")
		}
	})
	t.Run("narrow", func(t *testing.T) {
		for _, columns := range []int{60, 80, 200} {
			for line := range strings.Lines(run(t, []string{fmt.Sprintf("COLUMNS=%d", columns)})) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > columns {
					t.Errorf("%d columns in %d: %s", n, columns, line)
				}
			}
		}
		run(t, []string{"COLUMNS=1"})
		run(t, []string{"COLUMNS=none"})
	})
	t.Run("ASCII", func(t *testing.T) {
		if text := run(t, []string{"LC_ALL=C"}); strings.IndexFunc(text, func(r rune) bool { return r > 126 }) >= 0 {
			t.Errorf("a C locale gets\n%s", text)
		}
	})
	t.Run("wide", func(t *testing.T) {
		if text := run(t, nil, "-o", "wide"); !strings.Contains(text, "/small") {
			t.Error(text)
		}
	})
	t.Run("json", func(t *testing.T) {
		if records := decodeRecords(t, strings.NewReader(run(t, nil, "-o", "json"))); len(records) != 1 {
			t.Errorf("%d records, want 1", len(records))
		}
	})
	t.Run("nothing", func(t *testing.T) {
		r := peel(t, "run", "--", "true")
		if r.code != 0 || !strings.Contains(r.stderr, "No exchange was seen") {
			t.Errorf("status %d, says %q", r.code, r.stderr)
		}
	})
	t.Run("a name for the record", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "a")
		run(t, nil, "--write", file)
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Error(info, err)
		}
	})
}

// TestTerminal gives peel a terminal, where colours go unless NO_COLOR says no.
func TestTerminal(t *testing.T) {
	t.Parallel()
	addr := testbed.Nghttpd(t)
	for _, tt := range []struct {
		env    string
		colour bool
	}{{"TERM=xterm", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}

		pty := fmt.Sprintf("import os,pty,sys\nos.environ.update(%s='%s')\nsys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
			strings.Split(tt.env, "=")[0], strings.Split(tt.env, "=")[1])
		r := finish(t, asPeelCommand(testbed.Python, "-c", pty, self, "run", "--", "curl", "-sSk", "-o", "/dev/null", "https://"+addr+"/small"))
		if r.code != 0 || !strings.Contains(r.stdout, "/small") || strings.Contains(r.stdout, "\x1b[") != tt.colour {
			t.Errorf("%s: status %d, want colour: %v\n%q", tt.env, r.code, tt.colour, r.stdout)
		}
	}
}

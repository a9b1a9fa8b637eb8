package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		args  string
		wrong string // in the error; empty: none
	}{
		{"", ""},
		{"--pairs 7 --streams 1,10,100 --only none,tcpdump", ""},
		{"--pairs 0", "at least 1"},
		{"--streams 1,x", "--streams"},
		{"--only strace", `"strace"`},
		{"--nonsense", "nonsense"},
		{"extra", "no arguments"},
	} {
		_, err := parse(strings.Fields(tt.args), io.Discard)
		if tt.wrong == "" {
			if err != nil {
				t.Errorf("parse(%q): %v", tt.args, err)
			}
			continue
		}
		if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("parse(%q) = %v, want wrong usage with %q", tt.args, err, tt.wrong)
		}
	}
}

func TestParseRate(t *testing.T) {
	const out = `finished in 1.50s, 40000.25 req/s, 1.2MB/s
requests: 60000 total, 60000 started, 60000 done, 60000 succeeded, 0 failed, 0 errored, 0 timeout
`
	got, err := parseRate(out, 60000)
	if err != nil || got != 40000.25 {
		t.Errorf("parseRate = %v, %v", got, err)
	}
	if _, err := parseRate(out, 70000); err == nil {
		t.Error("parseRate took a run without all its answers")
	}
}

func TestReadLatencies(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1700000000000000\t200\t30\n1700000000000001\t200\t10\n1700000000000002\t200\t20\n")
	got, err := readLatencies(name)
	if err != nil || len(got) != 3 || got[0] != 10 || got[2] != 30 || mean(got) != 20 {
		t.Errorf("readLatencies = %v, %v", got, err)
	}
	for _, bad := range []string{"", "1\t200\n", "1\t200\tx\n"} {
		write(bad)
		if got, err := readLatencies(name); err == nil {
			t.Errorf("readLatencies(%q) = %v, want an error", bad, got)
		}
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{1, 2, 3, 4, 5}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.625: 3.5, 1: 5} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile(%v) = %v, want %v", q, got, want)
		}
	}
}

func TestListener(t *testing.T) {
	for _, tt := range []struct {
		name, says string
		want       words
	}{
		{"tcpdump", "tcpdump: listening on lo\n1 packet captured\n0 packets dropped by kernel\n", words{missed: "0 packets dropped by kernel"}},
		{"peel", "peel: listening\n\n240 000 exchanges in 1.4 s · 88 % on reused connections\n dropped     event: 3\n not seen    dns of 2 exchanges\n", words{saw: 240000, missed: "dropped event: 3"}},
		{"thin spaces", "listening\n2\u202f500 exchanges in 1 s\n", words{saw: 2500}},
	} {
		l := newListener("listening")
		for half := range slices.Chunk([]byte(tt.says), 7) {
			if _, err := l.Write(half); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-l.ready:
		default:
			t.Errorf("%s: the word was not heard", tt.name)
		}
		if got := l.words(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestBesideFails(t *testing.T) {
	_, err := startBeside(context.Background(), observer{name: "x", beside: []string{"sh", "-c", "echo no such device >&2; exit 1"}, ready: "listening"})
	if err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("err = %v, want what the observer said", err)
	}
}

func TestProcessCPU(t *testing.T) {
	used, err := processCPU(os.Getpid())
	if err != nil || used <= 0 {
		t.Errorf("processCPU of itself = %v, %v", used, err)
	}
}

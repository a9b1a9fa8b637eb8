package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
)

func TestLineGolden(t *testing.T) {
	for name, st := range styles() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			for _, k := range kinds() {
				Line(&out, k.r, st)
			}
			golden(t, "line-"+name+".txt", out.String())
			fits(t, st, out.String())
			if got, want := strings.Count(out.String(), "\n"), len(kinds()); got != want {
				t.Errorf("%d lines for %d exchanges", got, want)
			}
		})
	}
}

func TestWideGolden(t *testing.T) {
	var out bytes.Buffer
	st := Style{}
	WideHeader(&out, st)
	for _, k := range kinds() {
		Wide(&out, k.r, st)
	}
	golden(t, "wide.txt", out.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	columns := len(strings.Fields(lines[0]))
	for _, line := range lines[1:] {
		if n := len(strings.Fields(line)); n < columns {
			t.Errorf("%d columns, want %d: %s", n, columns, line)
		}
	}
}

func TestWideTellsUnseenFromUnpaid(t *testing.T) {
	r := kinds()[7].r // incomplete
	var out bytes.Buffer
	WideHeader(&out, Style{})
	Wide(&out, r, Style{})
	lines := strings.Split(out.String(), "\n")
	names, cells := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, name := range names {
		for ph := range exchange.NumPhases {
			if name == strings.ToUpper(ph.String()) {
				if got, want := cells[i] == "-", !r.Phases[ph].Seen; got != want {
					t.Errorf("%s is %q, seen is %v", name, cells[i], r.Phases[ph].Seen)
				}
			}
		}
	}
}

package report

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/peel-dev/peel/collector/exchange"
)

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		ns   int64
		want string
	}{
		{0, "0 ms"}, {-5, "0 ms"}, {1, "1 ns"}, {999, "999 ns"}, {1000, "1.00 µs"}, {9994, "9.99 µs"}, {9996, "10.0 µs"}, {99_960, "100 µs"},
		{999_499, "999 µs"}, {999_500, "1.00 ms"}, {61_234_000, "61.2 ms"}, {61_250_000, "61.3 ms"}, {999_500_000, "1.00 s"},
		{38_859_000_000, "38.9 s"}, {600_000_000_000, "600 s"}, {1<<63 - 1, "9223372037 s"},
	} {
		if got := duration(tt.ns, Style{Unicode: true}); got != tt.want {
			t.Errorf("%d ns is %q, want %q", tt.ns, got, tt.want)
		}
	}
}

func TestBounded(t *testing.T) {
	st := Style{}
	for _, tt := range []struct {
		b    exchange.Bounded
		want string
	}{
		{exchange.Bounded{Value: 48_200_000, Low: 48_100_000, High: 48_300_000}, "48.2 ms [48.1-48.3]"},
		{exchange.Bounded{Value: 48_200_000, Low: 48_149_999, High: 48_250_001}, "48.2 ms [48.1-48.3]"}, // outwards
		{exchange.Bounded{Value: 10_000_000, Low: 9_910_000, High: 10_060_000}, "10.0 ms [9.9-10.1]"},
		{exchange.Bounded{Value: 900_000, Low: 890_000, High: 1_010_000}, "0.90 ms [0.89-1.01]"}, // one unit
		{exchange.Bounded{Value: 0, Low: 0, High: 2_000_000}, "0 ms [0-2.00]"},
		{exchange.Bounded{Value: 40_000, Low: 0, High: 300_000_000}, "0.04 ms [0-300]"},
		{exchange.Bounded{Value: 5_000_000, Low: 5_000_000, High: 5_000_000}, "5.00 ms"},
	} {
		if got := boundedText(tt.b, st); got != tt.want {
			t.Errorf("%+v is %q, want %q", tt.b, got, tt.want)
		}
	}
}

// TestBoundsOnlyWiden: what is printed must hold the truth that the bounds
// hold.
func TestBoundsOnlyWiden(t *testing.T) {
	for v := int64(1); v < 1e13; v = v*11/7 + 1 {
		u := unitOf(v, Style{})
		digits := u.digits(v)
		parse := func(s string) (ns int64) {
			whole, frac, _ := strings.Cut(s, ".")
			step := u.ns
			for _, c := range whole {
				ns = ns*10 + int64(c-'0')
			}
			ns *= u.ns
			for _, c := range frac {
				step /= 10
				ns += int64(c-'0') * step
			}
			return ns
		}
		if low, high := parse(u.number(v, digits, -1)), parse(u.number(v, digits, 1)); low > v || high < v {
			t.Errorf("%d is printed between %d and %d", v, low, high)
		}
	}
}

func TestShares(t *testing.T) {
	for _, tt := range []struct {
		cells int
		parts []int64
		want  []int
	}{
		{10, []int64{1, 1}, []int{5, 5}},
		{10, []int64{0, 0}, []int{0, 0}},
		{10, []int64{1, 999}, []int{0, 10}},
		{3, []int64{1, 1, 1, 1}, []int{1, 1, 1, 0}},
		{7, []int64{-5, 100}, []int{0, 7}},
		{50, []int64{1 << 62, 1 << 61}, []int{33, 17}},
	} {
		got := shares(tt.cells, tt.parts)
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%d cells for %v: %v, want %v", tt.cells, tt.parts, got, tt.want)
				break
			}
		}
	}
}

// everything writes r in every form.
func everything(w io.Writer, r *exchange.Record, st Style) {
	Waterfall(w, r, st)
	Line(w, r, st)
	Wide(w, r, st)
	s := NewSummary(1)
	s.Add(r)
	s.Add(r)
	s.Write(w, st, Extra{Unknown: map[string]int{"x\x1b[2J": 1}})
}

// TestHostile: a peer chooses these strings and must not drive the terminal.
func TestHostile(t *testing.T) {
	for _, evil := range []string{
		"\x1b[2J\x1b[31mroot", "\x1b]0;title\a", "\u009b31m", "a\nb", "a\rb", "a\tb", "\x00", "\x7f",
		"\u202egnp.exe", "\u2066x\u2069", "\u200b", "\ufeff", "e\u0301\u0301\u0301", "\xff\xfe", "\u2028", "\U000e0041",
		"/ 200 h2 new 1 ms", `"quoted"`,
	} {
		for _, st := range []Style{{Width: 100, Unicode: true}, {Width: 60}, {Width: 160, Unicode: true}, {Width: 40}} {
			r := kinds()[0].r
			r.HTTP.Path, r.HTTP.Authority, r.HTTP.Method, r.HTTP.Version = "/"+evil, evil, evil, evil
			r.HTTP.Reset, r.TLS.Version, r.TLS.SNI, r.Process.Comm = evil, evil, evil, evil
			r.Quality.Notes = []string{evil, "read: " + evil}
			r.Quality.RTTSource = evil
			r.Phases[exchange.Read].Seen = false
			var out bytes.Buffer
			everything(&out, r, st)
			for _, c := range out.String() {
				if c != '\n' && (!unicode.IsPrint(c) || unicode.Is(unicode.M, c) || c == unicode.ReplacementChar) {
					t.Fatalf("%q lets %U through", evil, c)
				}
			}
		}
	}
	r := kinds()[0].r
	r.HTTP.Path = "/x\n/y"
	var out bytes.Buffer
	Line(&out, r, Style{Width: 160})
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("a path makes %d lines of one", n)
	}
}

func TestQuoted(t *testing.T) {
	for _, tt := range []struct {
		in, unicode, ascii string
	}{
		{"/v1/messages", "/v1/messages", "/v1/messages"},
		{"/日本", "/日本", `"/\u65e5\u672c"`},
		{"/a b", `"/a b"`, `"/a b"`},
		{"/\x1b[0m", `"/\x1b[0m"`, `"/\x1b[0m"`},
		{"", "", ""},
	} {
		if got := quoted(tt.in, false, Style{Unicode: true}); got != tt.unicode {
			t.Errorf("%q is %s, want %s", tt.in, got, tt.unicode)
		}
		if got := quoted(tt.in, false, Style{}); got != tt.ascii {
			t.Errorf("%q in ASCII is %s, want %s", tt.in, got, tt.ascii)
		}
	}
}

// TestColor: escapes only where they are wanted, and never a shifted column.
func TestColor(t *testing.T) {
	for _, k := range kinds() {
		for _, width := range []int{40, 60, 100, 160} {
			var with, without bytes.Buffer
			everything(&with, k.r, Style{Width: width, Unicode: true, Color: true})
			everything(&without, k.r, Style{Width: width, Unicode: true})
			if strings.Contains(without.String(), "\x1b") {
				t.Fatalf("%s: an escape without colour", k.name)
			}
			if !strings.Contains(with.String(), "\x1b[35m█") {
				t.Errorf("%s: no colour for the server", k.name)
			}
			if got := stripped(with.String()); got != without.String() {
				t.Errorf("%s at %d: colour changes the text", k.name, width)
			}
		}
	}
}

// stripped is s without SGR sequences.
func stripped(s string) string {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(s, "\x1b[")
		b.WriteString(text)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(rest, "m")
	}
}

// TestEveryWidth: no width makes a line too long, or panics.
func TestEveryWidth(t *testing.T) {
	for w := -1; w <= 220; w++ {
		st := Style{Width: w, Unicode: w%2 == 0}
		var out bytes.Buffer
		for _, k := range kinds() {
			k.r.Quality.Notes = append(k.r.Quality.Notes, strings.Repeat("long", 40)+" "+strings.Repeat("words ", 40))
			Waterfall(&out, k.r, st)
			Line(&out, k.r, st)
		}
		summaryOf(5, load(50)).Write(&out, st, Extra{Unknown: map[string]int{"x": 1}})
		fits(t, st, out.String())
	}
}

// FuzzWaterfall: records come from files too; none may panic or overflow.
func FuzzWaterfall(f *testing.F) {
	f.Add(int64(1e9), int64(1e8), int64(2e8), int64(5e8), "/path", 100)
	f.Add(int64(0), int64(-1), int64(1<<62), int64(1<<63-1), "\x1b[0m", 0)
	f.Add(int64(1<<63-1), int64(1), int64(2), int64(3), "", 50)
	f.Add(int64(70), int64(-1), int64(1<<62), int64(1<<63-1), "0", 0)
	f.Fuzz(func(t *testing.T, total, a, b, c int64, text string, width int) {
		r := kinds()[0].r
		r.Total, r.TTFB = total, a
		r.Phases[exchange.Wait].Total, r.Phases[exchange.TLS].Total, r.Phases[exchange.Read].Total = b, c, a
		r.Phases[exchange.Wait].Parts[exchange.Server] = exchange.Bounded{Value: a, Low: b, High: c}
		r.Components[exchange.CompServer] = exchange.Bounded{Value: c, Low: b, High: a}
		r.Timeline.FirstIn, r.Timeline.LastRead, r.Timeline.Need = a, b, c
		r.HTTP.Path, r.Quality.Notes = text, []string{text}
		st := Style{Width: width % 300, Unicode: true}
		var out bytes.Buffer
		Waterfall(&out, r, st)
		Line(&out, r, st)
		fits(t, st, out.String())
		everything(io.Discard, r, st)
	})
}

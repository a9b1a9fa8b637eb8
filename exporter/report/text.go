// Package report shows exchanges to a person: a waterfall of one, a line for
// each, a summary of many. It writes nothing wider than the terminal and lets
// nothing through that a peer could use to drive it.
package report

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"

	"github.com/peel-dev/peel/collector/exchange"
)

// Style says what the terminal can do.
type Style struct {
	Width   int  // columns; 0 is taken as 80, less than 40 as 40
	Color   bool // false: not a single escape sequence
	Unicode bool // false: ASCII only
}

func (st Style) width() int {
	if st.Width <= 0 {
		return 80
	}
	return max(st.Width, 40)
}

// ink is what a stretch of text is coloured for.
type ink uint8

const (
	plain ink = iota
	strong
	faint
	alarm
	client
	network
	server
	handshake
	dns
	numInks
)

// heavy makes any ink bold.
const heavy ink = 1 << 7

// sgr is the escape sequence's parameter: one of the terminal's own sixteen
// colours each, so that they fit its theme.
func (c ink) sgr() string {
	code := [numInks]string{plain: "", strong: "1", faint: "2", alarm: "1;31",
		client: "36", network: "33", server: "35", handshake: "34", dns: "32"}[c&^heavy]
	if c&heavy != 0 {
		return "1;" + code
	}
	return code
}

// fill is the character that draws a party or component in bars, telling them
// apart without colour too.
func (c ink) fill(st Style) string {
	if st.Unicode {
		return [numInks]string{client: "▄", network: "▒", server: "█", handshake: "▚", dns: "▖"}[c]
	}
	return [numInks]string{client: "o", network: "-", server: "#", handshake: "=", dns: "."}[c]
}

func ofParty(p exchange.Party) ink {
	return [exchange.NumParties]ink{client, network, server}[p]
}

func ofComponent(c exchange.Component) ink {
	return [exchange.NumComponents]ink{dns, handshake, network, server, client}[c]
}

// span is text in one paint; row is a line of them. Widths are counted on the
// text alone, so colour can never shift a column.
type span struct {
	text  string
	paint ink
}

type row []span

func (r *row) add(c ink, text string) { *r = append(*r, span{text, c}) }

func (r row) width() int {
	n := 0
	for _, s := range r {
		n += width(s.text)
	}
	return n
}

// pad fills r with spaces up to w columns.
func (r *row) pad(w int) {
	if n := w - r.width(); n > 0 {
		r.add(plain, strings.Repeat(" ", n))
	}
}

// cut is r in at most w columns.
func (r row) cut(w int, st Style) row {
	if r.width() <= w {
		return r
	}
	var out row
	for _, s := range r {
		n := width(s.text)
		if n >= w {
			out.add(s.paint, truncate(s.text, w, st))
			break
		}
		out = append(out, s)
		w -= n
	}
	return out
}

// page collects lines and writes them at once.
type page struct {
	bytes.Buffer
	st    Style
	width int
}

func newPage(st Style) *page { return &page{st: st, width: st.width()} }

// line writes r, cut at the page's width, without spaces at its end.
func (p *page) line(r row) { p.wide(r.cut(p.width, p.st)) }

// wide writes r however long it is.
func (p *page) wide(r row) {
	for len(r) > 0 {
		last := &r[len(r)-1]
		if last.text = strings.TrimRight(last.text, " "); last.text != "" {
			break
		}
		r = r[:len(r)-1]
	}
	for _, s := range r {
		if code := s.paint.sgr(); code != "" && p.st.Color && strings.TrimSpace(s.text) != "" {
			p.WriteString("\x1b[" + code + "m" + s.text + "\x1b[0m")
		} else {
			p.WriteString(s.text)
		}
	}
	p.WriteByte('\n')
}

// flow writes items after one another with sep between them, breaking lines
// between items, or within one that has spaces and is too long. Lines after
// the first begin with indent spaces.
func (p *page) flow(first row, indent int, sep string, items []row) {
	mark := strings.TrimRight(sep, " ·") // what ends a line that goes on
	cur := first
	for i, item := range items {
		room := p.width
		if i < len(items)-1 {
			room -= width(mark)
		}
		if i > 0 {
			if cur.width()+width(sep)+item.width() <= room {
				cur.add(faint, sep)
			} else {
				cur.add(faint, mark)
				p.line(cur)
				cur = indentation(indent)
			}
		}
		for cur.width()+item.width() > room {
			head, tail := item.split(room - cur.width())
			if head == nil {
				break
			}
			p.line(append(cur, head...))
			cur, item = indentation(indent), tail
		}
		cur = append(cur, item...)
	}
	if len(items) > 0 {
		p.line(cur)
	}
}

func indentation(n int) row { return row{{strings.Repeat(" ", n), plain}} }

// split breaks r at the last space that leaves at most w columns before it.
// head is nil where there is none.
func (r row) split(w int) (head, tail row) {
	at, used := -1, 0
	text := r.text()
	for i, c := range text {
		if c == ' ' && used <= w && used > 0 {
			at = i
		}
		if used += runeWidth(c); used > w+1 {
			break
		}
	}
	if at < 0 {
		return nil, r
	}
	for _, s := range r {
		switch {
		case at < 0:
			tail = append(tail, s)
		case at < len(s.text):
			head.add(s.paint, s.text[:at])
			tail.add(s.paint, s.text[at+1:])
			at = -1
		default:
			head = append(head, s)
			at -= len(s.text)
		}
	}
	return head, tail
}

func (r row) text() string {
	var b strings.Builder
	for _, s := range r {
		b.WriteString(s.text)
	}
	return b.String()
}

// send writes the page. A terminal that is gone has no reader for the error.
func (p *page) send(w io.Writer) { _, _ = w.Write(p.Bytes()) }

// pick chooses by what the terminal can show.
func (st Style) pick(unicode, ascii string) string {
	if st.Unicode {
		return unicode
	}
	return ascii
}

func (st Style) dot() string  { return st.pick(" · ", ", ") }
func (st Style) dash() string { return st.pick("–", "-") }

func runeWidth(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	c := runewidth.Condition{} // never by the environment: a golden test must not depend on it
	return c.RuneWidth(r)
}

func width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// truncate cuts s to w columns and marks that.
func truncate(s string, w int, st Style) string {
	if width(s) <= w {
		return s
	}
	mark := st.pick("…", "~")
	w -= width(mark)
	if w < 0 {
		return ""
	}
	for i, r := range s {
		if w -= runeWidth(r); w < 0 {
			return s[:i] + mark
		}
	}
	return s
}

// quoted makes a string that came from outside safe to print: as it is when
// every rune prints and takes room, else quoted and escaped to ASCII. A space
// is kept only where loose, since it could fake a column.
func quoted(s string, loose bool, st Style) string {
	safe := utf8.ValidString(s)
	for _, r := range s {
		if !unicode.IsPrint(r) || unicode.Is(unicode.M, r) || runeWidth(r) < 1 ||
			r == '"' || r == '\\' || r == ' ' && !loose || r >= utf8.RuneSelf && !st.Unicode {
			safe = false
			break
		}
	}
	if safe {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// unit is what a time is written in.
type unit struct {
	ns   int64
	name string
}

// unitOf chooses the unit in which ns has one to three digits before its
// point.
func unitOf(ns int64, st Style) unit {
	switch {
	case ns < 1_000 && ns > 0:
		return unit{1, "ns"}
	case ns < 999_500 && ns > 0:
		return unit{1_000, st.pick("µs", "us")}
	case ns < 999_500_000:
		return unit{1_000_000, "ms"}
	default:
		return unit{1_000_000_000, "s"}
	}
}

// digits is how many decimals give ns three significant digits in u.
func (u unit) digits(ns int64) int {
	switch {
	case ns >= 100*u.ns-u.ns/20 || u.ns == 1:
		return 0
	case ns >= 10*u.ns-u.ns/200:
		return 1
	}
	return 2
}

// number writes ns in u, rounded to the nearest (way 0), down (-1) or up (1),
// so that bounds only ever widen.
func (u unit) number(ns int64, digits, way int) string {
	if ns <= 0 {
		return "0"
	}
	step := u.ns / int64(math.Pow10(digits))
	n := ns / step
	if rest := ns % step; way > 0 && rest > 0 || way == 0 && rest >= step-rest {
		n++
	}
	s := strconv.FormatInt(n, 10)
	if digits == 0 {
		return s
	}
	for len(s) <= digits {
		s = "0" + s
	}
	return s[:len(s)-digits] + "." + s[len(s)-digits:]
}

// duration writes ns with its unit: "61.2 ms".
func duration(ns int64, st Style) string {
	u := unitOf(ns, st)
	return u.number(ns, u.digits(ns), 0) + " " + u.name
}

// places is the unit and the decimals of a bounded time: what its high bound
// has, so that the value does not look surer than it is.
func places(b exchange.Bounded, st Style) (unit, int) {
	top := max(b.Value, b.High)
	u := unitOf(top, st)
	digits := u.digits(top)
	if b.Value > 0 && u.number(b.Value, digits, -1) == u.number(0, digits, 0) {
		digits = u.digits(b.Value)
	}
	return u, digits
}

// value and interval write a bounded time in one unit: "48.2 ms",
// "[48.1–48.3]". The interval is empty when the time is exact.
func value(b exchange.Bounded, st Style) string {
	u, digits := places(b, st)
	return u.number(b.Value, digits, 0) + " " + u.name
}

func interval(b exchange.Bounded, st Style) string {
	if b.Low == b.High {
		return ""
	}
	u, _ := places(b, st)
	digits := u.digits(b.High)
	return "[" + u.number(b.Low, digits, -1) + st.dash() + u.number(b.High, digits, 1) + "]"
}

// extent is the interval, or the value where that is exact.
func extent(b exchange.Bounded, st Style) string {
	if i := interval(b, st); i != "" {
		return i
	}
	return value(b, st)
}

func boundedText(b exchange.Bounded, st Style) string {
	if i := interval(b, st); i != "" {
		return value(b, st) + " " + i
	}
	return value(b, st)
}

// percent writes part of whole: "82 %", "99.7 %" near the ends, "<1 %".
func percent(part, whole int64) string {
	if whole <= 0 {
		return "0 %"
	}
	x := 100 * float64(part) / float64(whole)
	switch {
	case x > 0 && x < 1:
		return "<1 %"
	case x < 100 && x > 99:
		return strconv.FormatFloat(math.Floor(x*10)/10, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(x, 'f', 0, 64) + " %"
}

// size writes bytes: "1.2 kB" is 1200.
func size(n int64) string {
	x, i := float64(n), 0
	for ; x >= 999.5 && i < 4; i++ {
		x /= 1000
	}
	if i == 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	digits := 0
	if x < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + []string{"B", "kB", "MB", "GB", "TB"}[i]
}

// count writes n with thin groups: "12 345".
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// plural is "1 exchange", "2 exchanges".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}

// shares divides cells among parts by their size, by largest remainder.
func shares(cells int, parts []int64) []int {
	out := make([]int, len(parts))
	var sum int64
	for _, v := range parts {
		sum += max(v, 0)
	}
	if sum == 0 {
		return out
	}
	rest := make([]float64, len(parts))
	left := cells
	for i, v := range parts {
		exact := float64(cells) * (float64(max(v, 0)) / float64(sum))
		out[i] = int(exact)
		rest[i] = exact - float64(out[i])
		left -= out[i]
	}
	for ; left > 0; left-- {
		best := 0
		for i := range rest {
			if rest[i] > rest[best] {
				best = i
			}
		}
		out[best]++
		rest[best] = -1
	}
	return out
}

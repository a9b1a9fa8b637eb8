package demo

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/exporter/report"
)

// Row is one figure as measured beside the truth.
type Row struct {
	Step string
	Expect
	Measured exchange.Bounded // nanoseconds
	True     time.Duration
	Resent   bool   // from the request's first copy on, not from its last
	Missing  string // why there is nothing to compare; empty: there is
}

// Holds reports whether the bounds hold the truth.
func (r Row) Holds() bool {
	return r.Missing == "" && r.Measured.Low <= int64(r.True) && int64(r.True) <= r.Measured.High
}

// Difference is the measured value less the true one.
func (r Row) Difference() time.Duration { return time.Duration(r.Measured.Value) - r.True }

// Judge pairs each figure that the steps expect with its record, by request
// id, and with the truth.
func Judge(steps []Step, records []*exchange.Record, truth func(id string) (Truth, bool)) []Row {
	byID := make(map[string]*exchange.Record, len(records))
	for _, r := range records {
		// On loopback the server's end may be seen too.
		if r.HTTP != nil && r.Role != exchange.Server.String() {
			byID[requestID(r.HTTP.Path)] = r
		}
	}
	var rows []Row
	for _, step := range steps {
		for _, expect := range step.Expect {
			row := Row{Step: step.Name, Expect: expect}
			record, seen := byID[expect.ID]
			real, known := truth(expect.ID)
			if known {
				row.True, known = real.Of(expect.Phase)
			}
			switch {
			case !seen:
				row.Missing = "exchange not seen"
			case !record.Phases[expect.Phase].Seen:
				row.Missing = expect.Phase.String() + " not seen"
			case !known:
				row.Missing = "no truth known"
			default:
				split := &record.Phases[expect.Phase]
				row.Measured = split.Parts[exchange.Server]
				// The server's span of the answer and the span of its arrival
				// differ by how unlike two packets travel, some microseconds:
				// what lies outside the phase is not in it.
				if expect.Phase == exchange.Receive {
					row.True = min(row.True, time.Duration(split.Total))
				}
				// A wait begins with the last copy of the request. A busy
				// host acknowledges late and gets a copy that it did not
				// need: it had the first, and what it may have done since
				// then peel counts, as a bound, in send.
				if expect.Phase == exchange.Wait && record.Evidence.RequestResent {
					send := record.Phases[exchange.Send].Parts[exchange.Server]
					row.Measured.High += send.High - send.Low
					row.Resent = true
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// Compare prints what was measured beside what was true, in lines of at most
// the style's width, as far as a table can be that narrow, and how many of the
// bounds hold. Its error is w's.
func Compare(w io.Writer, steps []Step, records []*exchange.Record, truth func(id string) (Truth, bool), st report.Style) error {
	rows := Judge(steps, records, truth)
	var out bytes.Buffer
	wrap(&out, "Server time in ms: measured [low"+dash(st)+"high] from outside, true by its own clock.", st.Width)
	out.WriteByte('\n')
	layout(rows, st).print(&out, rows, st.Color)
	out.WriteByte('\n')
	if slices.ContainsFunc(rows, func(r Row) bool { return r.Resent }) {
		wrap(&out, "* The request was sent again: the bounds are those from its first copy on.", st.Width)
	}
	wrap(&out, tally(rows), st.Width)
	_, err := w.Write(out.Bytes())
	return err
}

func dash(st report.Style) string {
	if st.Unicode {
		return "–"
	}
	return "-"
}

// tally counts, in words.
func tally(rows []Row) string {
	holds, missing := 0, 0
	for _, r := range rows {
		switch {
		case r.Missing != "":
			missing++
		case r.Holds():
			holds++
		}
	}
	compared := len(rows) - missing
	text := fmt.Sprintf("%d of %d bounds hold the true value", holds, compared)
	if missing > 0 {
		text += fmt.Sprintf("; %d could not be compared", missing)
	}
	return text + "."
}

// table is how much of a row fits: the step in a column of its own or on a
// line above its rows, and the columns that come after.
type table struct {
	stepLines bool
	step      int // width of the step's column, or of the indent
	columns   []column
	widths    []int
	width     int
}

type column struct {
	title string
	cell  func(Row) string
	left  bool
}

const (
	columnGap = 2
	indent    = 2
	micro     = int64(time.Microsecond)
)

func columns(st report.Style) (phase, added, measured, bounds, real, difference, holds column) {
	return column{"phase", func(r Row) string {
			if r.Resent {
				return r.Phase.String() + "*"
			}
			return r.Phase.String()
		}, true},
		column{"added", func(r Row) string { return millis(int64(r.Added)) }, false},
		column{"measured", func(r Row) string { return millis(r.Measured.Value) }, false},
		column{"[low" + dash(st) + "high]", func(r Row) string {
			// Rounded outwards, so that no shown bound claims too much.
			low, high := r.Measured.Low/micro*micro, (r.Measured.High+micro-1)/micro*micro
			return "[" + millis(low) + dash(st) + millis(high) + "]"
		}, true},
		column{"true", func(r Row) string { return millis(int64(r.True)) }, false},
		column{"difference", func(r Row) string { return fmt.Sprintf("%+.3f", ms(int64(r.Difference()))) }, false},
		column{"holds", verdict, true}
}

func verdict(r Row) string {
	switch {
	case r.Missing != "":
		return "-"
	case r.Holds():
		return "yes"
	}
	return "no"
}

// layout takes the first arrangement that fits, from the widest on.
func layout(rows []Row, st report.Style) table {
	phase, added, measured, bounds, real, difference, holds := columns(st)
	arrangements := []table{
		{columns: []column{phase, added, measured, bounds, real, difference, holds}},
		{stepLines: true, columns: []column{phase, added, measured, bounds, real, difference, holds}},
		{stepLines: true, columns: []column{phase, measured, bounds, real, holds}},
		{stepLines: true, columns: []column{phase, bounds, real, holds}},
	}
	var t table
	for _, t = range arrangements {
		t.fit(rows)
		if t.width <= st.Width {
			break
		}
	}
	return t
}

func (t *table) fit(rows []Row) {
	t.widths = make([]int, len(t.columns))
	for i, c := range t.columns {
		t.widths[i] = utf8.RuneCountInString(c.title)
		for _, r := range rows {
			if r.Missing == "" {
				t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.cell(r)))
			}
		}
	}
	t.step = indent
	if !t.stepLines {
		t.step = len("step")
		for _, r := range rows {
			t.step = max(t.step, utf8.RuneCountInString(r.Step))
		}
		t.step += columnGap
	}
	t.width = t.step - columnGap
	for _, w := range t.widths {
		t.width += columnGap + w
	}
}

func (t table) print(out *bytes.Buffer, rows []Row, color bool) {
	head := ""
	if !t.stepLines {
		head = "step"
	}
	titles := make([]string, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
	}
	t.line(out, head, titles, "", false)
	step := ""
	for i, r := range rows {
		head = ""
		if i == 0 || r.Step != step {
			head = r.Step
		}
		step = r.Step
		if t.stepLines && head != "" {
			wrap(out, head, t.width)
			head = ""
		}
		cells := make([]string, len(t.columns))
		for i, c := range t.columns {
			cells[i] = c.cell(r)
		}
		if r.Missing != "" {
			// The phase, then the reason in place of all figures.
			cells = []string{cells[0], r.Missing}
		}
		t.line(out, head, cells, verdict(r), color)
	}
}

// line prints one line; a color is the last cell's.
func (t table) line(out *bytes.Buffer, head string, cells []string, verdict string, color bool) {
	var text strings.Builder
	text.WriteString(pad(head, t.step, true))
	for i, cell := range cells {
		last := i == len(cells)-1
		if i > 0 {
			text.WriteString(strings.Repeat(" ", columnGap))
		}
		padded := pad(cell, t.widths[i], t.columns[i].left)
		if last {
			padded = strings.TrimRight(padded, " ")
			if len(cells) < len(t.columns) {
				padded = cell // a reason, which takes the room it needs
			}
			if color {
				padded = paint(verdict, padded)
			}
		}
		text.WriteString(padded)
	}
	out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
}

// paint colors what a verdict stands for: green, red, yellow.
func paint(verdict, s string) string {
	code := ""
	switch verdict {
	case "yes":
		code = "32"
	case "no":
		code = "31"
	case "-":
		code = "33"
	default:
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func pad(s string, width int, left bool) string {
	space := strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
	if left {
		return s + space
	}
	return space + s
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }

// millis shows microseconds and no more: nothing here is better known.
func millis(ns int64) string { return fmt.Sprintf("%.3f", ms(ns)) }

// wrap prints words in lines of at most width columns.
func wrap(out *bytes.Buffer, text string, width int) {
	at := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case at == 0:
		case at+1+n > width:
			out.WriteByte('\n')
			at = 0
		default:
			out.WriteByte(' ')
			at++
		}
		out.WriteString(word)
		at += n
	}
	out.WriteByte('\n')
}

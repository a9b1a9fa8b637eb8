package report

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/peel-dev/peel/collector/exchange"
)

// From this width on a line has its parts as numbers, below as a small bar.
const numbersWidth = 120

// short are the components' names on a line.
func short(c exchange.Component) string {
	return [exchange.NumComponents]string{"dns", "hs", "net", "srv", "cli"}[c]
}

// Line writes an exchange as one line of the terminal's width, in columns that
// stay where they are from line to line. Parts are in milliseconds and add up
// to the total; handshake (hs) and dns come last and only where paid for.
func Line(w io.Writer, r *exchange.Record, st Style) {
	p := newPage(st)
	p.exchange(r)
	p.send(w)
}

func (p *page) exchange(r *exchange.Record) {
	outcome := ""
	_, color := status(r, p.st)
	switch {
	case r.HTTP == nil:
		outcome, color = "tls", faint
	case r.HTTP.Reset != "":
		outcome = "rst"
	case r.HTTP.Status == 0:
		outcome = "-"
	default:
		outcome = strconv.Itoa(r.HTTP.Status)
	}

	// The right side has a fixed width; what names the request gets the rest.
	right := row{{fmt.Sprintf(" %3s ", truncate(outcome, 3, p.st)), color}}
	if p.width >= 80 {
		conn, color := "new", handshake
		if r.Connection.Reused {
			conn, color = "old", faint
			if r.Connection.Sequence > 0 {
				conn = fmt.Sprintf("#%d", r.Connection.Sequence)
			}
		}
		right.add(faint, fmt.Sprintf("%-3s ", truncate(proto(r, p.st), 3, p.st)))
		right.add(color, fmt.Sprintf("%-5s ", truncate(conn, 5, p.st)))
	}
	right.add(strong, fmt.Sprintf("%8s", duration(r.Total, p.st)))
	switch {
	case p.width >= numbersWidth:
		right = append(right, p.numbers(r)...)
	case p.width >= 60:
		right = append(right, p.minibar(r)...)
	}

	var left row
	rest := p.width - right.width()
	column := func(n int, color ink, text string) {
		left.add(color, truncate(text, n, p.st))
		left.pad(left.width() + n - width(truncate(text, n, p.st)))
		left.add(plain, " ")
		rest -= n + 1
	}
	switch {
	case p.width >= numbersWidth:
		column(12, faint, clock(r, "15:04:05.000"))
		column(min(18, rest/4), plain, process(r, p.st))
	case p.width >= 80:
		column(8, faint, clock(r, "15:04:05"))
		column(10, plain, process(r, p.st))
	}
	request := row{}
	if rest >= 40 {
		column(rest*2/5, plain, quoted(cmp.Or(hostOf(r), "?"), false, p.st))
		if r.HTTP != nil {
			request.add(plain, strings.TrimSpace(quoted(r.HTTP.Method, false, p.st)+" "+quoted(r.HTTP.Path, false, p.st)))
		}
	} else if r.HTTP != nil {
		request.add(plain, quoted(cmp.Or(r.HTTP.Method, "?"), false, p.st)+" "+target(r, p.st))
	} else {
		request.add(plain, target(r, p.st))
	}
	request = request.cut(max(rest, 0), p.st)
	request.pad(rest)
	p.line(append(append(left, request...), right...))
}

func clock(r *exchange.Record, layout string) string {
	if r.Start.IsZero() {
		return ""
	}
	return r.Start.Format(layout)
}

// proto is the protocol as its ALPN name, where HTTP is known.
func proto(r *exchange.Record, st Style) string {
	switch {
	case r.HTTP == nil:
		return ""
	case strings.HasPrefix(r.HTTP.Version, "1"):
		return "h1"
	}
	return quoted("h"+r.HTTP.Version, false, st)
}

// milliseconds is a number without its unit, at most five characters up to
// 100 s.
func milliseconds(ns int64) string {
	u := unit{1_000_000, "ms"}
	if ns > 0 && ns < 10_000 {
		return u.number(ns, 3, 0)
	}
	return u.number(ns, u.digits(ns), 0)
}

// numbers are the parts of the total.
func (p *page) numbers(r *exchange.Record) row {
	out := row{{" =", faint}}
	for _, c := range []exchange.Component{exchange.CompNetwork, exchange.CompServer, exchange.CompClient, exchange.CompHandshake, exchange.CompDNS} {
		v := r.Components[c].Value
		text := fmt.Sprintf(" %s %5s", short(c), milliseconds(v))
		if (c == exchange.CompHandshake || c == exchange.CompDNS) && v == 0 {
			text = strings.Repeat(" ", width(text))
		}
		paint := ofComponent(c)
		if v*100 < r.Total {
			paint = faint
		}
		out.add(paint, text)
	}
	return out
}

// minibar shows the parts in ten columns and names the largest.
func (p *page) minibar(r *exchange.Record) row {
	const cells = 10
	out := row{{" ", plain}}
	parts := make([]int64, exchange.NumComponents)
	for c, b := range r.Components {
		parts[c] = b.Value
	}
	for c, n := range shares(cells, parts) {
		if n > 0 {
			paint := ofComponent(exchange.Component(c))
			out.add(paint, strings.Repeat(paint.fill(p.st), n))
		}
	}
	out.pad(1 + cells)
	if top := ranked(r)[0]; r.Components[top].Value > 0 {
		out.add(ofComponent(top), fmt.Sprintf(" %-3s %3.0f%%", short(top), 100*float64(r.Components[top].Value)/float64(r.Total)))
	}
	out.pad(1 + cells + 9)
	return out
}

// wideColumn is one of Wide's. A left one grows to the right.
type wideColumn struct {
	name  string
	width int
	left  bool
	cell  func(r *exchange.Record, st Style) string
}

func wideColumns() []wideColumn {
	columns := []wideColumn{
		{"TIME", 12, true, func(r *exchange.Record, _ Style) string { return clock(r, "15:04:05.000") }},
		{"PROCESS", 16, true, func(r *exchange.Record, st Style) string {
			return strings.ReplaceAll(process(r, st), " ", "_")
		}},
		{"PEER", 21, true, func(r *exchange.Record, _ Style) string {
			if !r.Connection.Peer.IsValid() {
				return ""
			}
			return r.Connection.Peer.String()
		}},
		{"HTTP", 4, true, proto},
		{"TLS_VERSION", 11, true, func(r *exchange.Record, st Style) string {
			if r.TLS == nil {
				return "none"
			}
			return quoted(r.TLS.Version, false, st)
		}},
		{"CONN", 5, true, func(r *exchange.Record, _ Style) string {
			switch {
			case !r.Connection.Reused:
				return "new"
			case r.Connection.Sequence > 0:
				return fmt.Sprintf("#%d", r.Connection.Sequence)
			}
			return "old"
		}},
		{"STATUS", 6, true, func(r *exchange.Record, st Style) string {
			text, _ := status(r, st)
			return strings.ReplaceAll(text, " ", "_")
		}},
		{"TOTAL", 8, false, func(r *exchange.Record, _ Style) string { return orAbsent(r.Total) }},
		{"TTFB", 8, false, func(r *exchange.Record, _ Style) string { return orAbsent(r.TTFB) }},
	}
	for ph := range exchange.NumPhases {
		columns = append(columns, wideColumn{strings.ToUpper(ph.String()), 8, false, func(r *exchange.Record, _ Style) string {
			if !r.Phases[ph].Seen {
				return ""
			}
			return milliseconds(r.Phases[ph].Total)
		}})
	}
	for _, c := range []exchange.Component{exchange.CompHandshake, exchange.CompNetwork, exchange.CompServer, exchange.CompClient} {
		columns = append(columns, wideColumn{strings.ToUpper(c.String()), 9, false, func(r *exchange.Record, _ Style) string {
			return milliseconds(r.Components[c].Value)
		}})
		if c == exchange.CompNetwork || c == exchange.CompServer {
			columns = append(columns, wideColumn{"BOUNDS", 15, true, func(r *exchange.Record, st Style) string {
				u := unit{1_000_000, "ms"}
				b := r.Components[c]
				return "[" + u.number(b.Low, u.digits(b.Low), -1) + st.dash() + u.number(b.High, u.digits(b.High), 1) + "]"
			}})
		}
	}
	return append(columns,
		wideColumn{"RTT_FROM", 10, true, func(r *exchange.Record, st Style) string {
			return quotedIf(strings.ReplaceAll(r.Quality.RTTSource, " ", "_"), false, st)
		}},
		wideColumn{"RETR", 4, false, func(r *exchange.Record, _ Style) string { return strconv.Itoa(r.Connection.Retransmits) }},
		wideColumn{"LOST", 4, false, func(r *exchange.Record, _ Style) string { return strconv.Itoa(r.Quality.LostEvents) }},
		wideColumn{"SENT", 9, false, func(r *exchange.Record, _ Style) string { return bodySize(r, false) }},
		wideColumn{"RECEIVED", 9, false, func(r *exchange.Record, _ Style) string { return bodySize(r, true) }},
		wideColumn{"COMPLETE", 8, true, func(r *exchange.Record, _ Style) string {
			if r.Quality.Complete {
				return "yes"
			}
			return "no"
		}},
		wideColumn{"METHOD", 6, true, func(r *exchange.Record, st Style) string {
			if r.HTTP == nil {
				return ""
			}
			return quotedIf(r.HTTP.Method, false, st)
		}},
		wideColumn{"URL", 30, true, target},
		wideColumn{"NOTES", 0, true, func(r *exchange.Record, st Style) string {
			return quotedIf(strings.Join(r.Quality.Notes, "; "), true, st)
		}},
	)
}

// quotedIf is quoted, but leaves the empty string empty.
func quotedIf(s string, loose bool, st Style) string {
	if s == "" {
		return ""
	}
	return quoted(s, loose, st)
}

func orAbsent(ns int64) string {
	if ns <= 0 {
		return ""
	}
	return milliseconds(ns)
}

// bodySize is in bytes: a column for scripts.
func bodySize(r *exchange.Record, response bool) string {
	if r.HTTP == nil {
		return ""
	}
	n := r.HTTP.RequestBodyBytes
	if response {
		n = r.HTTP.ResponseBodyBytes
	}
	if n < 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// WideHeader writes the names of Wide's columns.
func WideHeader(w io.Writer, st Style) {
	wideRow(w, st, strong, func(c wideColumn) string { return c.name })
}

// Wide writes an exchange as one line with everything there is, however long:
// columns without spaces (the notes, last, aside), "-" where nothing is known,
// times in milliseconds.
func Wide(w io.Writer, r *exchange.Record, st Style) {
	wideRow(w, st, plain, func(c wideColumn) string { return c.cell(r, st) })
}

func wideRow(w io.Writer, st Style, paint ink, cell func(wideColumn) string) {
	p := newPage(st)
	var line row
	for i, c := range wideColumns() {
		text := cmp.Or(cell(c), "-")
		fill := strings.Repeat(" ", max(c.width-width(text), 0))
		if c.left {
			text += fill
		} else {
			text = fill + text
		}
		if i > 0 {
			line.add(plain, " ")
		}
		line.add(paint, text)
	}
	p.wide(line)
	p.send(w)
}

package report

import (
	"cmp"
	"container/heap"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

// How many different values a Summary keeps apart; more become "other".
const (
	maxStatuses = 32
	maxReasons  = 32
	maxListed   = 6 // shown on one line of text
)

// boundsWidth is that of an interval's column.
const boundsWidth = 14

const other = "other"

// Extra is what a summary says beside its exchanges: things that happened to
// no exchange, so that silence has its reason. All counts are of the run; maps
// are by reason.
type Extra struct {
	Elapsed           time.Duration  // 0: not known
	Connections       int            // watched; -1: not known
	Unmatched         int            // connections that the filter refused
	BytesOut, BytesIn uint64         // of the watched connections
	Unknown           map[string]int // connections on which no exchange was found
	Incomplete        map[string]int // exchanges not seen to both ends
	Lost              map[string]int // events that were lost
	Dropped           map[string]int // state that was evicted or refused
	Hints             []string       // what the user can do about it, a sentence each
}

// Summary collects exchanges. Its memory is bounded: it keeps the slowest
// records, and of the others their times in series.
type Summary struct {
	most    int
	slowest slowest

	n, reused, complete, retransmits int64
	lostEvents                       int64
	codes                            [600]int       // by plain status
	statuses                         map[string]int // the others
	total, ttfb                      series
	phases                           [exchange.NumPhases]series
	components                       [exchange.NumComponents]series
	parties                          [exchange.NumPhases][exchange.NumParties]int64 // sums
	unseen                           [exchange.NumPhases]int64
	notes                            map[string]int
}

// NewSummary returns an empty Summary that shows up to slowest exchanges one
// by one: all of them if there are no more, else the slowest.
func NewSummary(slowest int) *Summary {
	return &Summary{most: slowest, statuses: map[string]int{}, notes: map[string]int{}}
}

// outcomes counts all statuses by what they are called.
func (s *Summary) outcomes() map[string]int {
	all := maps.Clone(s.statuses)
	for code, n := range s.codes {
		if n > 0 {
			all[strconv.Itoa(code)] += n
		}
	}
	return all
}

// Len is the number of exchanges added.
func (s *Summary) Len() int { return int(s.n) }

// Add takes an exchange in. It keeps a copy of r at most.
func (s *Summary) Add(r *exchange.Record) {
	s.n++
	if r.Connection.Reused {
		s.reused++
	}
	if r.Quality.Complete {
		s.complete++
	}
	if r.Connection.Retransmits > 0 {
		s.retransmits++
	}
	s.lostEvents += int64(r.Quality.LostEvents)
	for _, note := range r.Quality.Notes {
		bump(s.notes, note, maxReasons)
	}
	if r.HTTP != nil {
		if h := r.HTTP; h.Reset == "" && h.GRPCStatus == nil && h.Status > 0 && h.Status < len(s.codes) {
			s.codes[h.Status]++
		} else {
			text, _ := status(r, Style{})
			bump(s.statuses, text, maxStatuses)
		}
	}

	s.total.addPaid(r.Total)
	s.ttfb.addPaid(r.TTFB)
	for ph := range exchange.NumPhases {
		split := &r.Phases[ph]
		if !split.Seen {
			s.unseen[ph]++
			continue
		}
		s.phases[ph].addPaid(split.Total)
		for party, b := range split.Parts {
			s.parties[ph][party] += max(b.Value, 0)
		}
	}
	for c, b := range r.Components {
		s.components[c].addPaid(b.Value)
	}

	switch {
	case s.most <= 0:
	case len(s.slowest) < s.most:
		heap.Push(&s.slowest, r.Clone())
	case r.Total > s.slowest[0].Total:
		s.slowest[0] = r.Clone()
		heap.Fix(&s.slowest, 0)
	}
}

func bump(m map[string]int, key string, most int) {
	if _, there := m[key]; !there && len(m) >= most {
		key = other
	}
	m[key]++
}

// slowest is a heap with the fastest of the slowest on top.
type slowest []*exchange.Record

func (h slowest) Len() int           { return len(h) }
func (h slowest) Less(i, j int) bool { return h[i].Total < h[j].Total }
func (h slowest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slowest) Push(x any)        { *h = append(*h, x.(*exchange.Record)) }
func (h *slowest) Pop() any {
	old := *h
	r := old[len(old)-1]
	*h = old[:len(old)-1]
	return r
}

// Write writes the exchanges one by one where they are few, else the slowest
// of them as a list and the very slowest as a waterfall; then the table of
// quantiles, and what was not seen and why.
func (s *Summary) Write(w io.Writer, st Style, extra Extra) {
	p := newPage(st)
	switch {
	case s.n == 0:
		p.line(row{{"No exchange was seen.", alarm}})
	case s.n <= int64(s.most):
		kept := slices.Clone(s.slowest)
		slices.SortStableFunc(kept, func(a, b *exchange.Record) int {
			return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Connection.Sequence, b.Connection.Sequence))
		})
		for _, r := range kept {
			p.waterfall(r)
			p.line(nil)
		}
	case s.most > 0:
		kept := slices.Clone(s.slowest)
		slices.SortStableFunc(kept, func(a, b *exchange.Record) int { return cmp.Compare(b.Total, a.Total) })
		p.line(row{{fmt.Sprintf("The slowest of %s", plural(s.n, "exchange")), strong}})
		for _, r := range kept {
			p.exchange(r)
		}
		p.line(nil)
		p.waterfall(kept[0])
		p.line(nil)
	}
	if s.n > 1 {
		p.summary(s, extra)
	}
	p.extra(s, extra)
	if s.n > 1 {
		p.overall(s)
	}
	p.send(w)
}

// summary is the heading and the table.
func (p *page) summary(s *Summary, extra Extra) {
	var head row
	head.add(strong, plural(s.n, "exchange"))
	if extra.Elapsed > 0 {
		head.add(plain, " in "+duration(int64(extra.Elapsed), p.st))
	}
	fresh := s.n - s.reused
	items := []row{head,
		{{percent(s.reused, s.n) + " on reused connections, " + count(fresh) + " opened one", plain}}}
	if statuses := s.outcomes(); len(statuses) > 0 {
		items = append(items, row{{"status " + p.top(statuses), plain}})
	}
	if s.retransmits > 0 {
		items = append(items, row{{count(s.retransmits) + " with retransmits", alarm}})
	}
	if s.complete < s.n {
		items = append(items, row{{count(s.n-s.complete) + " incomplete", alarm}})
	}
	p.flow(nil, 0, p.st.dot(), items)
	p.line(nil)
	p.table(s)
}

// top lists the most frequent keys: "200: 997, 529: 3".
func (p *page) top(m map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	var out []string
	for i, k := range keys {
		if i == maxListed {
			out = append(out, fmt.Sprintf("%d more", len(keys)-maxListed))
			break
		}
		out = append(out, quoted(k, true, p.st)+": "+count(int64(m[k])))
	}
	return strings.Join(out, ", ")
}

// tableRow is a line of the table: a series, and what of all time it took, by
// the inks that draw it.
type tableRow struct {
	name   string
	paint  ink
	series *series
	parts  []int64
	inks   []ink
	gap    bool // an empty line before it
}

func (p *page) table(s *Summary) {
	rows := []tableRow{
		{name: "total", paint: strong, series: &s.total},
		{name: "first byte", paint: strong, series: &s.ttfb},
	}
	for i, c := range s.ranked() {
		paint := ofComponent(c)
		rows = append(rows, tableRow{name: paint.fill(p.st) + " " + c.String(), paint: paint, series: &s.components[c],
			parts: []int64{s.components[c].sum}, inks: []ink{paint}, gap: i == 0})
	}
	gap := true
	for ph := range exchange.NumPhases {
		if s.phases[ph].n > 0 {
			rows = append(rows, tableRow{name: ph.String(), series: &s.phases[ph],
				parts: s.parties[ph][:], inks: []ink{client, network, server}, gap: gap})
			gap = false
		}
	}

	columns := p.columns()
	used := 0
	for _, c := range columns {
		used += c.width
	}
	bar := p.width - used - 1
	if bar < 8 {
		bar = 0
	}
	head := row{}
	for _, c := range columns {
		head.add(faint, c.pad(c.title))
	}
	p.line(head)
	for _, r := range rows {
		if r.gap {
			p.line(nil)
		}
		var line row
		for _, c := range columns {
			text, paint := c.cell(r, s)
			line.add(paint, c.pad(text))
		}
		if bar > 0 && s.total.sum > 0 {
			var sum int64
			for _, v := range r.parts {
				sum += v
			}
			line.add(plain, " ")
			for i, n := range shares(column(min(sum, s.total.sum), s.total.sum, bar), r.parts) {
				line.add(r.inks[i], strings.Repeat(r.inks[i].fill(p.st), n))
			}
		}
		p.line(line)
	}
	p.line(nil)
	p.flow(row{{" ", plain}}, 1, "; ", p.footnotes(rows, columns))
	p.line(nil)
}

// footnotes explain the table, and give the intervals that it has no room for.
func (p *page) footnotes(rows []tableRow, columns []tableColumn) []row {
	foot := []row{{{"n: exchanges that paid for it", faint}}}
	beside := slices.ContainsFunc(columns, func(c tableColumn) bool { return c.title == "" && c.width == boundsWidth })
	shown := false
	for _, q := range []float64{0.95, 0.99} {
		if v := rows[0].series.quantile(q); v.bounded {
			shown = true
			if !beside {
				foot = append(foot, row{{"total " + percentile(q) + " " + v.interval(p.st) + " " + unitOf(v.value, p.st).name, faint}})
			}
		}
	}
	if shown {
		foot = append(foot, row{{"[ ]: either end holds with 95 % confidence, if exchanges are independent", faint}})
	}
	for _, q := range []float64{0.95, 0.99} {
		need := needs(q)
		if slices.ContainsFunc(rows, func(r tableRow) bool { return r.series.n < need }) {
			foot = append(foot, row{{fmt.Sprintf("n < %d: n too small for the interval of %s (needs %d)", need, percentile(q), need), faint}})
		}
	}
	return foot
}

// ranked are the components that took time, largest sum first.
func (s *Summary) ranked() []exchange.Component {
	var order []exchange.Component
	for c := range exchange.NumComponents {
		if s.components[c].n > 0 {
			order = append(order, c)
		}
	}
	slices.SortStableFunc(order, func(a, b exchange.Component) int {
		return cmp.Compare(s.components[b].sum, s.components[a].sum)
	})
	return order
}

func percentile(q float64) string { return fmt.Sprintf("P%g", 100*q) }

// tableColumn is a column of the table.
type tableColumn struct {
	title string
	width int
	left  bool
	cell  func(r tableRow, s *Summary) (string, ink)
}

func (c tableColumn) pad(text string) string {
	fill := strings.Repeat(" ", max(c.width-width(text), 0))
	if c.left {
		return text + fill
	}
	return fill + text
}

// columns are those that the page has room for.
func (p *page) columns() []tableColumn {
	quantile := func(q float64) tableColumn {
		return tableColumn{percentile(q), 10, false, func(r tableRow, _ *Summary) (string, ink) {
			v := r.series.quantile(q)
			paint := plain
			if !v.bounded {
				paint = faint
			}
			return duration(v.value, p.st), paint
		}}
	}
	bounds := func(q float64) tableColumn {
		return tableColumn{"", boundsWidth, true, func(r tableRow, _ *Summary) (string, ink) {
			v := r.series.quantile(q)
			if !v.bounded {
				return fmt.Sprintf(" n < %d", needs(q)), faint
			}
			return " " + v.interval(p.st), faint
		}}
	}
	name := tableColumn{"", 13, true, func(r tableRow, _ *Summary) (string, ink) { return " " + r.name, r.paint }}
	n := tableColumn{"n", 7, false, func(r tableRow, _ *Summary) (string, ink) { return count(r.series.n), faint }}
	share := tableColumn{"share", 7, false, func(r tableRow, s *Summary) (string, ink) {
		if len(r.parts) == 0 {
			return "", plain
		}
		return percent(r.series.sum, s.total.sum), plain
	}}
	switch {
	case p.width >= 96:
		return []tableColumn{name, n, quantile(0.5), quantile(0.95), bounds(0.95), quantile(0.99), bounds(0.99), share}
	case p.width >= 78:
		return []tableColumn{name, n, quantile(0.5), quantile(0.95), quantile(0.99), bounds(0.99), share}
	case p.width >= 58:
		return []tableColumn{name, n, quantile(0.5), quantile(0.95), quantile(0.99), share}
	}
	return []tableColumn{name, n, quantile(0.5), quantile(0.99)}
}

// extra is what happened beside the exchanges, and what could not be seen.
func (p *page) extra(s *Summary, extra Extra) {
	if extra.Connections >= 0 && (extra.Connections > 0 || s.n == 0) {
		items := []row{{{plural(int64(extra.Connections), "connection") + " watched", plain}}}
		if extra.BytesOut > 0 || extra.BytesIn > 0 {
			items = append(items, row{{size(int64(extra.BytesOut)) + " out", plain}}, row{{size(int64(extra.BytesIn)) + " in", plain}})
		}
		if extra.Unmatched > 0 {
			items = append(items, row{{count(int64(extra.Unmatched)) + " more did not match the filter", plain}})
		}
		p.labelled("", plain, p.st.dot(), items)
	}
	if s.n == 0 && extra.Connections == 0 && extra.Unmatched == 0 {
		p.labelled("", plain, "; ", []row{{{"nothing that is watched opened a connection: is it the right process, host, port?", plain}}})
	}

	var unseen []row
	for ph := range exchange.NumPhases {
		if s.unseen[ph] == 0 {
			continue
		}
		unseen = append(unseen, row{{fmt.Sprintf("%s of %s", ph, plural(s.unseen[ph], "exchange")), plain}})
	}
	if s.n > 1 {
		p.labelled("not seen", alarm, ", ", unseen)
		p.labelled("notes", plain, "; ", p.reasons(s.notes))
	}
	p.labelled("no exchange", alarm, "; ", p.reasons(extra.Unknown))
	p.labelled("incomplete", alarm, "; ", p.reasons(extra.Incomplete))
	p.labelled("events lost", alarm, "; ", p.reasons(extra.Lost))
	if len(extra.Lost) == 0 && s.lostEvents > 0 && s.n > 1 {
		p.labelled("events lost", alarm, "; ", []row{{{count(s.lostEvents), plain}}})
	}
	p.labelled("dropped", alarm, "; ", p.reasons(extra.Dropped))
	for _, hint := range extra.Hints {
		p.labelled("hint", strong, "", []row{{{quoted(hint, true, p.st), plain}}})
	}
}

// labelled writes items after a label, if there are any.
func (p *page) labelled(label string, paint ink, sep string, items []row) {
	const indent = 13
	if len(items) == 0 {
		return
	}
	if label == "" {
		p.flow(row{{" ", plain}}, 1, sep, items)
		return
	}
	first := row{{" " + label, paint}}
	first.pad(indent)
	p.flow(first, indent, sep, items)
}

// reasons are counts with why, the most frequent first.
func (p *page) reasons(m map[string]int) []row {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	var out []row
	for i, k := range keys {
		if i == maxListed {
			out = append(out, row{{fmt.Sprintf("%d more reasons", len(keys)-maxListed), faint}})
			break
		}
		if m[k] != 0 {
			out = append(out, row{{quoted(k, true, p.st) + ": " + count(int64(m[k])), plain}})
		}
	}
	return out
}

// overall is the verdict over all exchanges.
func (p *page) overall(s *Summary) {
	order := s.ranked()
	if len(order) == 0 {
		return
	}
	top := order[0]
	paint := ofComponent(top)
	line := row{{p.st.pick("▶ ", "> "), paint},
		{fmt.Sprintf("%s %s", top, percent(s.components[top].sum, s.total.sum)), paint | heavy},
		{" of all time", plain}}
	for _, c := range order[1:min(3, len(order))] {
		line.add(plain, ", ")
		line.add(ofComponent(c), fmt.Sprintf("%s %s", c, percent(s.components[c].sum, s.total.sum)))
	}
	p.line(nil)
	p.flow(nil, 2, "", []row{line})
}

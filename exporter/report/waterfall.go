package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/peel-dev/peel/collector/exchange"
)

const (
	labelWidth = 10 // "components", and the phases' names
	leftWidth  = labelWidth + 10
	barMin     = 24 // below this a bar says too little: the parties go beneath it
	barRoomy   = 40 // from this on the parties of a phase share its line
)

// Waterfall writes one exchange: what it was, each phase on the time axis of
// the whole with the parties that spent it, and whom to blame. The axis starts
// at the exchange's need. Within a bar the parties' lengths are true, their
// order is not: it is always client, network, server.
func Waterfall(w io.Writer, r *exchange.Record, st Style) {
	p := newPage(st)
	p.waterfall(r)
	p.send(w)
}

func (p *page) waterfall(r *exchange.Record) {
	p.title(r)
	p.facts(r)
	if r.Total <= 0 {
		p.nothing(r)
		return
	}
	rows := phaseRows(r, p.st)
	bar, single := p.fit(rows)
	p.axis(r.Total, bar)
	for _, ph := range rows {
		p.phase(r, ph, bar, single)
	}
	p.components(r, bar)
	p.zeroes(r)
	p.verdict(r)
}

// title is the request, its outcome, and its total at the right.
func (p *page) title(r *exchange.Record) {
	right := duration(r.Total, p.st)
	if r.Total <= 0 {
		right = ""
	}
	var head row
	if h := r.HTTP; h != nil {
		head.add(strong, quoted(cmp.Or(h.Method, "?"), false, p.st)+" ")
		outcome, paint := status(r, p.st)
		tail := row{{p.st.pick(" → ", " -> "), faint}, {outcome, paint}}
		room := p.width - head.width() - tail.width() - width(right) - 2
		head.add(strong, truncate(target(r, p.st), room, p.st))
		head = append(head, tail...)
	} else {
		head.add(strong, target(r, p.st))
		head.add(faint, ", encrypted: no message was seen in the clear")
		head = head.cut(p.width-width(right)-2, p.st)
	}
	head.pad(p.width - width(right))
	head.add(strong, right)
	p.line(head)
}

// target is authority and path; what is not known of it is made up from what
// the connection says.
func target(r *exchange.Record, st Style) string {
	host := hostOf(r)
	if host == "" {
		host = "?"
	}
	out := quoted(host, false, st)
	if r.HTTP != nil {
		out += quoted(r.HTTP.Path, false, st)
	}
	return out
}

func hostOf(r *exchange.Record) string {
	switch {
	case r.HTTP != nil && r.HTTP.Authority != "":
		return r.HTTP.Authority
	case r.TLS != nil && r.TLS.SNI != "":
		return r.TLS.SNI
	case r.Connection.Peer.IsValid():
		return r.Connection.Peer.String()
	}
	return ""
}

// status is the outcome in a word.
func status(r *exchange.Record, st Style) (string, ink) {
	h := r.HTTP
	switch {
	case h == nil:
		return "", plain
	case h.Reset != "":
		return "reset " + quoted(h.Reset, true, st), alarm
	case h.Status == 0:
		return "no answer seen", alarm
	case h.Status >= 400:
		return fmt.Sprint(h.Status), alarm
	case h.GRPCStatus != nil && *h.GRPCStatus != 0:
		return fmt.Sprintf("%d grpc %d", h.Status, *h.GRPCStatus), alarm
	}
	return fmt.Sprint(h.Status), strong
}

// facts are what else is known, most telling first.
func (p *page) facts(r *exchange.Record) {
	var items []row
	add := func(paint ink, format string, args ...any) {
		items = append(items, row{{fmt.Sprintf(format, args...), paint}})
	}
	if !r.Start.IsZero() {
		add(faint, "%s", r.Start.Format("15:04:05.000"))
	}
	if who := process(r, p.st); who != "" {
		add(faint, "%s", who)
	}
	if r.HTTP != nil && r.HTTP.Version != "" {
		add(faint, "HTTP/%s", quoted(r.HTTP.Version, false, p.st))
	}
	if t := r.TLS; t == nil {
		add(faint, "no TLS")
	} else if t.Version != "" {
		resumed := ""
		if t.Resumed != nil && *t.Resumed {
			resumed = " resumed"
		}
		add(faint, "TLS %s%s", quoted(t.Version, false, p.st), resumed)
	}
	c := &r.Connection
	switch {
	case c.Reused && c.Sequence > 0:
		add(faint, "reused connection #%d", c.Sequence)
	case c.Reused:
		add(faint, "reused connection")
	default:
		add(faint, "new connection")
	}
	if r.TTFB > 0 {
		add(faint, "first byte %s", duration(r.TTFB, p.st))
	}
	if h := r.HTTP; h != nil {
		if h.RequestBodyBytes > 0 {
			add(faint, "sent %s", size(h.RequestBodyBytes))
		}
		if h.ResponseBodyBytes > 0 {
			add(faint, "received %s", size(h.ResponseBodyBytes))
		}
	}
	if c.Retransmits > 0 {
		add(alarm, "%s", plural(int64(c.Retransmits), "retransmit"))
	} else {
		add(faint, "no retransmits")
	}
	if n := r.Quality.LostEvents; n > 0 {
		add(alarm, "%s lost", plural(int64(n), "event"))
	}
	if r.Quality.Complete {
		add(faint, "complete")
	} else {
		add(alarm, "incomplete")
	}
	p.flow(nil, 0, p.st.dot(), items)
	p.line(nil)
}

func process(r *exchange.Record, st Style) string {
	comm := quoted(r.Process.Comm, true, st)
	if r.Process.Comm == "" {
		comm = ""
	}
	switch {
	case r.Process.Comm == "" && r.Process.PID == 0:
		return ""
	case r.Process.PID == 0:
		return comm
	}
	return fmt.Sprintf("%s[%d]", comm, r.Process.PID)
}

// nothing stands for the waterfall of an exchange without a length.
func (p *page) nothing(r *exchange.Record) {
	p.line(row{{" no time could be measured", alarm}})
	p.notes(" notes", r.Quality.Notes)
}

// phaseRow is a phase that took time.
type phaseRow struct {
	phase   exchange.Phase
	spans   []stretch
	parties []row
}

func phaseRows(r *exchange.Record, st Style) []phaseRow {
	var rows []phaseRow
	where := stretches(r)
	for p := range exchange.NumPhases {
		if s := &r.Phases[p]; s.Seen && s.Total > 0 {
			rows = append(rows, phaseRow{p, where[p], parties(s, st)})
		}
	}
	return rows
}

// parties names who spent a phase, largest first. The value is left out where
// it is the phase's own.
func parties(s *exchange.Split, st Style) []row {
	order := []exchange.Party{exchange.Client, exchange.Network, exchange.Server}
	slices.SortStableFunc(order, func(a, b exchange.Party) int {
		return cmp.Or(cmp.Compare(s.Parts[b].Value, s.Parts[a].Value), cmp.Compare(s.Parts[b].High, s.Parts[a].High))
	})
	var out []row
	for _, party := range order {
		b := s.Parts[party]
		if b.Value == 0 && b.High == 0 {
			continue
		}
		text := party.String()
		if exact := b.Value == s.Total && b.Low == b.Value && b.High == b.Value; !exact {
			text = fmt.Sprintf("%-7s %s", text, boundedText(b, st))
		}
		out = append(out, row{{text, ofParty(party)}})
	}
	return out
}

// fit chooses the bar's width and whether a phase's parties share its line. A
// bar of the page's whole rest means that the parties stand beneath.
func (p *page) fit(rows []phaseRow) (bar int, single bool) {
	one, all := 0, 0
	for _, ph := range rows {
		sum := 0
		for i, party := range ph.parties {
			one = max(one, party.width())
			if i > 0 {
				sum += 2
			}
			sum += party.width()
		}
		all = max(all, sum)
	}
	rest := p.width - leftWidth - 1
	switch {
	case rest-2-all >= barRoomy:
		return rest - 2 - all, true
	case rest-2-one >= barMin:
		return rest - 2 - one, false
	}
	return rest, false
}

// beneath says that there is no room for the parties beside the bar.
func (p *page) beneath(bar int) bool { return leftWidth+1+bar >= p.width }

// ticks are the round times to mark on an axis of total ns and bar columns.
func ticks(total int64, bar int) (step int64, cols []int) {
	const apart = 9 // columns, room for "100 ms" and a gap
	step = 1
	for i := 0; float64(step)/float64(total)*float64(bar) < apart; i++ {
		step = step / []int64{1, 2, 5}[i%3] * []int64{2, 5, 10}[i%3]
	}
	for i := range total/step + 1 {
		if c := column(i*step, total, bar); c < bar {
			cols = append(cols, c)
		}
	}
	return step, cols
}

// column is where on the bar a time lies, whatever a recording says.
func column(at, total int64, bar int) int {
	share := min(max(float64(at)/float64(total), 0), 1)
	return int(share*float64(bar) + 0.5)
}

// axis is the scale above the bars.
func (p *page) axis(total int64, bar int) {
	step, cols := ticks(total, bar)
	u := unitOf(max(step, 1)*int64(max(len(cols)-1, 1)), p.st)
	line := strings.Repeat(" ", leftWidth+1)
	at := width(line)
	for i, c := range cols {
		label := "0"
		if i > 0 {
			label = strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", float64(step)*float64(i)/float64(u.ns)), "0"), ".")
		}
		if i == len(cols)-1 {
			label += " " + u.name
		}
		to := leftWidth + 1 + c
		if to < at || to+width(label) > p.width {
			continue
		}
		line += strings.Repeat(" ", to-at) + label
		at = to + width(label)
	}
	p.line(row{{line, faint}})
}

// phase writes a row: name, time, bar, parties.
func (p *page) phase(r *exchange.Record, ph phaseRow, bar int, single bool) {
	s := &r.Phases[ph.phase]
	small := s.Total*100 < r.Total
	left := p.left(ph.phase.String(), s.Total, small)
	left = append(left, p.bar(ph, s, r.Total, bar)...)
	switch {
	case p.beneath(bar):
		p.line(left)
		if len(ph.parties) > 1 || len(ph.parties) == 1 && ph.parties[0].width() > 7 { // else the bar says it
			p.flow(indentation(labelWidth+1), labelWidth+1, "  ", ph.parties)
		}
	case single:
		left.add(plain, "  ")
		for i, party := range ph.parties {
			if i > 0 {
				left.add(plain, "  ")
			}
			left = append(left, party...)
		}
		p.line(left)
	default:
		for i, party := range ph.parties {
			if i > 0 {
				left = nil
				left.pad(leftWidth + 1 + bar)
			}
			left.add(plain, "  ")
			p.line(append(left, party...))
		}
		if len(ph.parties) == 0 {
			p.line(left)
		}
	}
}

// left is the name and the time before a bar.
func (p *page) left(name string, ns int64, small bool) row {
	paint := plain
	if small {
		paint = faint
	}
	time := duration(ns, p.st)
	if strings.HasSuffix(time, " s") {
		time += " " // numbers end in one column
	}
	r := row{{" " + name, paint}}
	r.pad(leftWidth - width(time))
	r.add(paint, time)
	r.add(plain, " ")
	return r
}

// bar draws a phase where it lies on the axis.
func (p *page) bar(ph phaseRow, s *exchange.Split, total int64, bar int) row {
	cells := make([]ink, bar)
	var mine []int
	for _, st := range ph.spans {
		from, to := column(st.from, total, bar), column(st.to, total, bar)
		for c := from; c < min(to, bar); c++ {
			mine = append(mine, c)
		}
	}
	if len(mine) == 0 { // less than half a column: one all the same
		longest := stretch{}
		for _, st := range ph.spans {
			if st.to-st.from >= longest.to-longest.from {
				longest = st
			}
		}
		mine = []int{min(column(longest.from, total, bar), bar-1)}
	}
	parts := make([]int64, exchange.NumParties)
	for i, b := range s.Parts {
		parts[i] = b.Value
	}
	n := 0
	for party, share := range shares(len(mine), parts) {
		for range share {
			cells[mine[n]] = ofParty(exchange.Party(party))
			n++
		}
	}
	for _, c := range mine[n:] { // no party is known
		cells[c] = strong
	}

	_, grid := ticks(total, bar)
	var out row
	for c, paint := range cells {
		text := paint.fill(p.st)
		switch {
		case paint == plain && slices.Contains(grid, c):
			text, paint = p.st.pick("┊", ":"), faint
		case paint == plain:
			text = " "
		case paint == strong:
			text = "?"
		}
		if n := len(out); n > 0 && out[n-1].paint == paint {
			out[n-1].text += text
		} else {
			out.add(paint, text)
		}
	}
	return out
}

// components is the sum of it all, by who spent it.
func (p *page) components(r *exchange.Record, bar int) {
	parts := make([]int64, exchange.NumComponents)
	for i, b := range r.Components {
		parts[i] = b.Value
	}
	line := p.left("total", r.Total, false)
	for i := range line {
		if line[i].paint == plain {
			line[i].paint = strong
		}
	}
	for c, n := range shares(bar, parts) {
		if n > 0 {
			paint := ofComponent(exchange.Component(c))
			line.add(paint, strings.Repeat(paint.fill(p.st), n))
		}
	}
	p.line(nil)
	p.line(line)

	var items []row
	for _, c := range ranked(r) {
		b := r.Components[c]
		if b.Value == 0 && b.High == 0 {
			continue
		}
		paint := ofComponent(c)
		items = append(items, row{{paint.fill(p.st) + " " + c.String() + " ", paint},
			{percent(b.Value, r.Total), paint}, {" " + boundedText(b, p.st), plain}})
	}
	p.flow(row{{" ", plain}}, 1, "  ", items)
}

// ranked are the components, largest first.
func ranked(r *exchange.Record) []exchange.Component {
	order := make([]exchange.Component, 0, exchange.NumComponents)
	for c := range exchange.NumComponents {
		order = append(order, c)
	}
	slices.SortStableFunc(order, func(a, b exchange.Component) int {
		return cmp.Compare(r.Components[b].Value, r.Components[a].Value)
	})
	return order
}

// zeroes tells the phases that took no time from those that were not seen.
func (p *page) zeroes(r *exchange.Record) {
	var reasons []string
	names := map[string][]string{}
	for ph := range exchange.NumPhases {
		s := &r.Phases[ph]
		if !s.Seen || s.Total > 0 {
			continue
		}
		reason := free(r, ph)
		if names[reason] == nil {
			reasons = append(reasons, reason)
		}
		names[reason] = append(names[reason], ph.String())
	}
	var items []row
	for _, reason := range reasons {
		items = append(items, row{{strings.Join(names[reason], ", ") + ": " + reason, faint}})
	}
	var unseen []row
	for ph := range exchange.NumPhases {
		if !r.Phases[ph].Seen {
			unseen = append(unseen, row{{ph.String(), plain}})
		}
	}
	notes := r.Quality.Notes
	if len(unseen) > 0 && len(notes) == 0 {
		notes = []string{"no reason is recorded"}
	}
	if len(items)+len(unseen)+len(notes) > 0 {
		p.line(nil)
	}
	if len(items) > 0 {
		p.flow(row{{" took none  ", faint}}, 12, "; ", items)
	}
	if len(unseen) > 0 {
		p.flow(row{{" not seen   ", strong}}, 12, ", ", unseen)
	}
	p.notes(" notes", notes)
}

// notes are the record's own words for what was not seen or looks odd.
func (p *page) notes(label string, notes []string) {
	var items []row
	for i, n := range notes {
		if i == maxListed {
			items = append(items, row{{fmt.Sprintf("%d more", len(notes)-maxListed), faint}})
			break
		}
		items = append(items, row{{quoted(n, true, p.st), faint}})
	}
	if len(items) > 0 {
		p.flow(row{{fmt.Sprintf("%-12s", label), faint}}, 12, "; ", items)
	}
}

// free says why a phase took no time.
func free(r *exchange.Record, ph exchange.Phase) string {
	t := &r.Timeline
	switch ph {
	case exchange.DNS, exchange.Connect, exchange.TLS:
		switch {
		case r.Connection.Reused:
			return "reused connection"
		case ph == exchange.TLS && r.TLS == nil:
			return "plain HTTP"
		case ph == exchange.DNS:
			return "no look-up"
		}
	case exchange.Wait:
		if t.FirstIn != 0 && (t.LastOut == 0 || t.FirstIn < t.LastOut) {
			return "the answer began before the request ended"
		}
	case exchange.Send:
		return "one packet"
	case exchange.Receive:
		return "one packet"
	}
	return "no time"
}

// verdict is the one line to take home.
func (p *page) verdict(r *exchange.Record) {
	order := ranked(r)
	top := order[0]
	b := r.Components[top]
	if b.Value <= 0 {
		return
	}
	paint := ofComponent(top)
	line := row{{p.st.pick("▶ ", "> "), paint}}
	if !r.Quality.Complete {
		line.add(alarm, "so far: ")
	}
	// A rival is a component that the bounds do not tell from the largest.
	for _, c := range order[1:] {
		o := r.Components[c]
		if o.High <= b.Low || o.Value <= 0 {
			continue
		}
		line.add(paint|heavy, fmt.Sprintf("%s %s", top, percent(b.Value, r.Total)))
		line.add(plain, " or ")
		line.add(ofComponent(c)|heavy, fmt.Sprintf("%s %s", c, percent(o.Value, r.Total)))
		line.add(plain, fmt.Sprintf(": %s and %s overlap, the data do not decide", extent(b, p.st), extent(o, p.st)))
		p.line(nil)
		p.flow(nil, 2, "", []row{line})
		return
	}
	line.add(paint|heavy, fmt.Sprintf("%s %s", top, percent(b.Value, r.Total)))
	line.add(plain, ": "+boundedText(b, p.st)+" "+blame(r, top, p.st))
	p.line(nil)
	p.flow(nil, 2, "", []row{line})
}

// blame says what the largest component did with its time.
func blame(r *exchange.Record, c exchange.Component, st Style) string {
	party := exchange.Client
	switch c {
	case exchange.CompDNS:
		return "to look the name up"
	case exchange.CompHandshake:
		parts := []string{}
		for _, ph := range []exchange.Phase{exchange.Connect, exchange.TLS} {
			if s := r.Phases[ph]; s.Seen && s.Total > 0 {
				parts = append(parts, ph.String()+" "+duration(s.Total, st))
			}
		}
		return "to open the connection (" + strings.Join(parts, ", ") + "); reuse saves it"
	case exchange.CompNetwork:
		party = exchange.Network
	case exchange.CompServer:
		party = exchange.Server
	}
	most := exchange.Blocked
	for ph := exchange.Blocked; ph < exchange.NumPhases; ph++ {
		if r.Phases[ph].Parts[party].Value > r.Phases[most].Parts[party].Value {
			most = ph
		}
	}
	mostly := ""
	if r.Phases[most].Parts[party].Value < r.Components[c].Value/20*19 {
		mostly = "mostly "
	}
	return mostly + did(party, most)
}

// did says what a party does in a phase.
func did(party exchange.Party, ph exchange.Phase) string {
	switch party {
	case exchange.Client:
		return map[exchange.Phase]string{
			exchange.Blocked: "before the request left this host",
			exchange.Send:    "to write the request",
			exchange.Wait:    "while waiting",
			exchange.Receive: "reading the answer too slowly: its receive window was closed",
			exchange.Read:    "until the application read the answer",
		}[ph]
	case exchange.Network:
		return map[exchange.Phase]string{
			exchange.Blocked: "with the congestion window closed",
			exchange.Send:    "to carry the request",
			exchange.Wait:    "for the round trip",
			exchange.Receive: "to carry the answer, loss recovery included",
			exchange.Read:    "at the end",
		}[ph]
	}
	return map[exchange.Phase]string{
		exchange.Blocked: "with its flow-control window closed",
		exchange.Send:    "to take the request",
		exchange.Wait:    "before its first byte",
		exchange.Receive: "to produce the answer after its first byte",
		exchange.Read:    "at the end",
	}[ph]
}

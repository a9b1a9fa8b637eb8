// Package conn follows connections: it turns the events of the kernel side
// into exchange records with their marks and evidence filled. Splitting the
// time is package latency's.
//
// Everything it keeps is bounded; what it gives up is counted and noted on the
// exchanges that it touches.
package conn

import (
	"cmp"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/header"
)

// Bounds and times.
const (
	defaultConns   = 16384
	defaultStreams = 1000

	// A first request that comes later than this after the set-up did not
	// wait for it: the connection was opened in advance.
	setupCharged = 200 * time.Millisecond
	// An answer off the wire that nobody has read by then comes out unread.
	readWithin = 2 * time.Second
	// An exchange whose framing was lost may have ended unseen.
	spoiltFor = time.Minute
	// A connection without any event for this long has lost its close.
	idleFor = time.Hour
	// Segments after which a connection without plaintext gets none any more.
	plainWithin = 4096
	// How many connections are looked at to find an old one to evict.
	evictSample = 8
)

// Config is what a Tracker needs. Zero values take defaults.
type Config struct {
	Logger *slog.Logger
	Policy *header.Policy // nil: no header fields are kept
	Node   string
	// Epoch turns CLOCK_MONOTONIC nanoseconds into wall-clock time.
	Epoch      func(mono int64) time.Time
	MaxConns   int // 16384
	MaxStreams int // open exchanges a connection, 1000
	// Match decides, once the server's name (SNI, else authority without
	// port) is known, whether a connection is wanted. Nil: all are.
	Match func(host string, peer netip.AddrPort) bool
	// LocalAddr says whether an address is this host's. Nil: loopback is.
	LocalAddr func(netip.Addr) bool
}

// Stats are counts since the start, but for the two Open ones.
type Stats struct {
	Connections   int // seen
	OpenConns     int
	OpenExchanges int
	Unmatched     int // connections that Config.Match refused
	Exchanges     int // emitted, complete or not
	Reused        int // of these, on a connection that was there before
	BytesIn       uint64
	BytesOut      uint64
	Lost          uint64 // events that found the ring full
	Gaps          int    // times that message framing was lost
	Evicted       int    // connections and exchanges given up to bound memory
	Unrequested   int    // answers without a request: pushed, or the request was lost
	Unannounced   int    // events of connections that were not announced, or had ended
	// Incomplete counts exchanges whose end was not seen, by reason.
	Incomplete map[string]int
	// Unknown counts ended connections on which no exchange was found, by reason.
	Unknown map[string]int
}

// maxBundles bounds the free list of records: about 2 MB.
const maxBundles = 1024

// Tracker turns events into records. It is for one goroutine.
type Tracker struct {
	cfg     Config
	emit    func(*exchange.Record)
	conns   map[uint64]*conn
	hosts   map[string]*host
	paths   paths
	stats   Stats
	head    head
	spare   *active   // free list
	bundles []*bundle // free list
}

// New returns a Tracker that passes every exchange to emit once it has ended.
// The record holds until emit returns; Record.Clone keeps it. The TLS
// description, the header maps and the round trip samples it points to are
// shared between records: they never change and must not be changed.
func New(cfg Config, emit func(*exchange.Record)) *Tracker {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = defaultConns
	}
	if cfg.MaxStreams <= 0 {
		cfg.MaxStreams = defaultStreams
	}
	t := &Tracker{
		cfg:   cfg,
		emit:  emit,
		conns: make(map[uint64]*conn),
		hosts: make(map[string]*host),
		paths: make(paths),
	}
	t.stats.Incomplete = make(map[string]int)
	t.stats.Unknown = make(map[string]int)
	t.head.policy = cfg.Policy
	t.head.field = t.head.add
	return t
}

// host counts what is open to one server name, over all connections.
type host struct {
	open  int
	conns int
}

// conn is a watched connection.
type conn struct {
	cookie      uint64
	id          string
	local       bool // the peer is this host
	from, to    netip.AddrPort
	role        event.Role
	pid         uint32
	comm        string
	at          int64 // connect()
	fromStart   bool
	ignored     bool // not matched, or not a client's
	named       bool // Match has been asked
	hostName    string
	host        *host
	path        *path
	pathSeen    int // path.n when pathCopy was made
	pathCopy    []exchange.RTTSample
	seen        int64 // last event
	lost        uint32
	lostBase    uint32 // lost when the last write had been taken in
	segments    int
	tcp         tcp
	setup       setup
	tls         *exchange.TLSInfo
	plaintext   bool
	opaque      bool // carries another protocol from here on
	writtenTo   int64
	readFrom    int64 // first TCP byte of the last read's record
	received    int64 // plain HTTP: the application has all before
	receivedAt  int64
	h1          *h1
	h2          *h2
	first, last *active
	open        int
	sequence    int
	reqFields   fieldsCache
	resFields   fieldsCache
}

// Handle takes in one event. It keeps nothing of it.
func (t *Tracker) Handle(ev event.Event) {
	h := ev.Head()
	switch h.Kind {
	case event.KindProcess:
		return
	case event.KindConn:
		if ev, ok := ev.(*event.Conn); ok {
			t.opened(ev)
		}
		return
	}
	c := t.conns[h.Conn]
	if c == nil {
		t.stats.Unannounced++
		return
	}
	c.seen = max(c.seen, h.At)
	if h.Lost > c.lost {
		t.stats.Lost += uint64(h.Lost - c.lost)
		c.lost = h.Lost
	}
	if c.ignored && h.Kind != event.KindClose {
		return
	}
	switch ev := ev.(type) {
	case *event.Segment:
		t.segment(c, ev)
	case *event.Record:
		if c.record(ev) {
			t.name(c, c.tls.SNI)
		}
	case *event.Plain:
		t.plain(c, ev)
	case *event.Recv:
		t.recv(c, ev)
	case *event.Close:
		t.closed(c, ev)
	}
}

func (t *Tracker) opened(ev *event.Conn) {
	if old := t.conns[ev.Conn]; old != nil {
		t.abandon(old, NoteClosed, reasonClosed)
	}
	if len(t.conns) >= t.cfg.MaxConns {
		t.evict()
	}
	t.stats.Connections++
	c := &conn{
		cookie:    ev.Conn,
		id:        strconv.FormatUint(ev.Conn, 16),
		from:      ev.Local,
		to:        ev.Peer,
		role:      ev.Role,
		pid:       ev.PID,
		comm:      ev.Comm,
		at:        ev.At,
		seen:      ev.At,
		fromStart: ev.Has(event.FlagFromStart),
		lost:      ev.Lost,
		lostBase:  ev.Lost,
		ignored:   ev.Role == event.RoleServer,
	}
	peer := ev.Peer.Addr().Unmap()
	if t.cfg.LocalAddr != nil {
		c.local = t.cfg.LocalAddr(peer)
	} else {
		c.local = peer.IsLoopback()
	}
	c.path = t.paths.get(peer, ev.At)
	t.conns[c.cookie] = c
}

// evict gives up the connection that was silent longest among a few.
func (t *Tracker) evict() {
	var oldest *conn
	n := 0
	for _, c := range t.conns {
		if oldest == nil || c.seen < oldest.seen {
			oldest = c
		}
		if n++; n == evictSample {
			break
		}
	}
	t.stats.Evicted++
	t.abandon(oldest, NoteEvicted, reasonEvicted)
}

// name tells a connection's server. A connection that is not wanted is let go
// of at once.
func (t *Tracker) name(c *conn, name string) {
	if c.named {
		return
	}
	c.named = true
	if t.cfg.Match != nil && !t.cfg.Match(name, c.to) {
		t.stats.Unmatched++
		c.ignored = true
		c.tcp, c.h1, c.h2 = tcp{}, nil, nil
		return
	}
	c.hostName = name
	if c.hostName == "" {
		c.hostName = c.to.Addr().String()
	}
	c.host = t.hosts[c.hostName]
	if c.host == nil {
		c.host = &host{}
		t.hosts[c.hostName] = c.host
	}
	c.host.conns++
}

// keepOut returns the first outgoing byte that may still be asked for.
func (c *conn) keepOut() int64 {
	keep := c.writtenTo
	for a := c.first; a != nil; a = a.next {
		if a.pending > 0 {
			keep = min(keep, a.writes[0].lo)
		}
	}
	return keep
}

// keepIn returns the first incoming byte that may still be asked for.
func (c *conn) keepIn() int64 {
	keep := c.readFrom
	if c.h2 != nil {
		keep = c.h2.dir[event.In].keep(keep)
	}
	if c.h1 != nil {
		keep = c.h1.dir[event.In].keep(keep)
	}
	return keep
}

func (t *Tracker) segment(c *conn, ev *event.Segment) {
	c.tcp.counters(ev.MinRTT, ev.SRTT, ev.Retrans)
	if ev.TCPFlags&event.RST != 0 && !c.tcp.finIn {
		c.tcp.rst = true // after a FIN all of the answer is there
	}
	most := maxSegments
	if c.segments++; !c.plaintext && c.segments >= plainWithin {
		most = maxIdle
		if c.segments == plainWithin {
			c.tcp.out.forget()
			c.tcp.in.forget()
		}
	}
	var keep int64
	if ev.Dir == event.Out {
		t.stats.BytesOut += uint64(ev.Len)
		if c.tcp.out.n == len(c.tcp.out.buf) {
			keep = c.keepOut()
		}
		c.tcp.sent(ev, keep, most)
		return
	}
	t.stats.BytesIn += uint64(ev.Len)
	if ev.TCPFlags&event.FIN != 0 {
		c.tcp.finIn = true
	}
	if c.tcp.in.n == len(c.tcp.in.buf) {
		keep = c.keepIn()
	}
	una := c.tcp.una
	if rtt := c.tcp.received(ev, keep, most); rtt > 0 {
		c.path.add(c.cookie, ev.At, rtt)
	}
	if c.setup.serverFlight == 0 && c.tcp.una > una && ev.Len == 0 && c.tcp.resent.n == 0 {
		c.setup.helloAcked(c.tcp.una, ev.At)
	}
}

// pathACKs returns the clean round trips of other connections to the same
// address. The slice is shared and never changes.
func (c *conn) pathACKs() []exchange.RTTSample {
	if c.pathSeen != c.path.n {
		c.pathCopy = c.path.others(c.cookie)
		c.pathSeen = c.path.n
	}
	return c.pathCopy
}

func (t *Tracker) plain(c *conn, ev *event.Plain) {
	c.plaintext = true
	if c.pid == 0 {
		c.pid = ev.PID
	}
	if ev.Has(event.FlagTLS) && (c.tls == nil || c.tls.Library == "") {
		c.changeTLS(func(info *exchange.TLSInfo) { info.Library = "openssl" })
	}
	if ev.Protocol == event.ProtoOther {
		c.opaque = true
	}
	k := c.call(ev)
	if ev.Dir == event.In {
		c.readFrom = k.lo
		c.tcp.in.recordAt(k.lo)
	}
	if !c.opaque {
		switch ev.Protocol {
		case event.ProtoHTTP2:
			if c.h2 == nil {
				c.startHTTP2()
			}
			t.frames(c, &k)
		case event.ProtoHTTP1:
			if c.h1 == nil {
				c.startHTTP1()
			}
			t.messages(c, &k)
		}
	}
	if ev.Dir == event.Out {
		c.writtenTo = k.hi
		c.lostBase = c.lost
	}
}

// recv is plain HTTP's read.
func (t *Tracker) recv(c *conn, ev *event.Recv) {
	pos := c.tcp.in.pos(ev.Seq)
	if pos <= c.received {
		return
	}
	c.received, c.receivedAt = pos, ev.At
	var next *active
	for a := c.first; a != nil; a = next {
		next = a.next
		tl := &a.record.Timeline
		if a.inHi == 0 || pos <= a.inLo {
			continue
		}
		if tl.FirstRead == 0 {
			tl.FirstRead = ev.At
		}
		if pos >= a.inHi {
			tl.LastRead = ev.At
			if a.resDone {
				t.finish(a, true)
			}
		}
	}
}

func (t *Tracker) closed(c *conn, ev *event.Close) {
	c.tcp.counters(ev.MinRTT, ev.SRTT, ev.Retrans)
	note, reason := NoteClosed, reasonClosed
	if c.tcp.rst {
		note, reason = NoteResetByPeer, reasonRST
	}
	if c.h1 != nil && c.tcp.finIn {
		c.h1.untilClose(t, c)
	}
	t.abandon(c, note, reason)
}

// abandon ends a connection and all that is open on it.
func (t *Tracker) abandon(c *conn, note, reason string) {
	for a := c.first; a != nil; a = c.first {
		if reason == reasonRST && !a.resDone {
			a.http().Reset = "connection"
		}
		t.giveUp(a, note, reason)
	}
	if c.sequence == 0 && !c.unmatched() {
		t.stats.Unknown[c.why()]++
	}
	if c.host != nil {
		if c.host.conns--; c.host.conns == 0 {
			delete(t.hosts, c.hostName)
		}
	}
	delete(t.conns, c.cookie)
}

func (c *conn) unmatched() bool { return c.ignored && c.role != event.RoleServer }

// why tells why no exchange was found on the connection.
func (c *conn) why() string {
	switch {
	case c.role == event.RoleServer:
		return unknownServer
	case c.fromStart && c.tcp.synACK == 0 && c.tcp.in.next == 0:
		return unknownConnect
	case c.plaintext && c.opaque:
		return unknownProtocol
	case c.plaintext:
		return unknownIdle
	case c.setup.begun && c.setup.secured == 0:
		return unknownHandshake
	case c.setup.begun:
		return unknownPlaintext
	case c.tcp.out.n+c.tcp.in.n == 0:
		return unknownIdle
	}
	return unknownProtocol
}

// Expire drops what is too old. now is CLOCK_MONOTONIC in nanoseconds; call it
// about every second.
func (t *Tracker) Expire(now int64) {
	for _, c := range t.conns {
		if now-c.seen > int64(idleFor) {
			t.abandon(c, NoteExpired, reasonExpired)
			continue
		}
		var next *active
		for a := c.first; a != nil; a = next {
			next = a.next
			switch {
			case a.resDone && now-a.seen > int64(readWithin):
				t.giveUp(a, "", "")
			case a.taint > 0 && now-a.seen > int64(spoiltFor):
				t.giveUp(a, NoteExpired, reasonExpired)
			}
		}
	}
}

// Flush ends all that is open, at the time now: it comes out incomplete, and
// is counted under reason. The Tracker can go on afterwards with new
// connections only.
func (t *Tracker) Flush(now int64, reason string) {
	all := make([]*conn, 0, len(t.conns))
	for _, c := range t.conns {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conn) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cookie, b.cookie))
	})
	for _, c := range all {
		c.seen = max(c.seen, now)
		t.abandon(c, NoteFlushed, reason)
	}
}

// Stats returns the counts so far. The maps are copies.
func (t *Tracker) Stats() Stats {
	s := t.stats
	s.OpenConns = len(t.conns)
	s.Incomplete = maps.Clone(t.stats.Incomplete)
	s.Unknown = maps.Clone(t.stats.Unknown)
	return s
}

// begin opens the exchange of a request that begins at start.
func (t *Tracker) begin(c *conn, h *head, start mark) *active {
	if !c.named {
		t.name(c, hostOnly(h.authority))
		if c.ignored {
			return nil
		}
	}
	if c.open >= t.cfg.MaxStreams {
		t.stats.Evicted++
		t.giveUp(c.first, NoteEvicted, reasonEvicted)
	}
	a := t.spare
	if a == nil {
		a = new(active)
	} else {
		t.spare = a.next
		*a = active{}
	}
	var b *bundle
	if n := len(t.bundles); n > 0 {
		b, t.bundles = t.bundles[n-1], t.bundles[:n-1]
	} else {
		b = new(bundle)
	}
	b.record.HTTP = &b.http
	a.bundle, a.record, a.conn = b, &b.record, c
	a.lost = c.lostBase
	a.seen = c.seen
	if c.last == nil {
		c.first = a
	} else {
		c.last.next, a.prev = a, c.last
	}
	c.last = a
	c.open++
	c.sequence++
	c.host.open++
	t.stats.OpenExchanges++

	r := a.record
	r.Connection.Sequence = c.sequence
	r.Connection.Inflight = c.host.open
	r.Connection.Reused = c.sequence > 1 || !c.fromStart
	if c.isTLS() {
		r.Timeline.Written = start.enter
	}
	if c.sequence == 1 {
		switch {
		case !c.fromStart:
			a.note(NoteLateSetup)
		case start.enter-c.ready() <= int64(setupCharged):
			a.paid = true
		default:
			a.note(NoteIdleSetup)
		}
	}
	r.HTTP.Method = h.method
	r.HTTP.Authority = h.authority
	r.HTTP.Path = h.path
	r.HTTP.RequestHeaders = c.reqFields.get(h.fields)
	if h.unknown {
		a.note(NoteFields)
	}
	return a
}

// answer fills the final answer's head in and adds its bytes, from start to
// hi, to the answer.
func (t *Tracker) answer(a *active, h *head, start mark, hi int64, k *call) {
	a.resHead = true
	r := a.record.HTTP
	r.Status = h.status
	r.ResponseHeaders = a.conn.resFields.get(h.fields)
	r.ContentType = h.contentType
	a.length = h.length
	t.trailer(a, h)
	t.arrived(a, start.lo, hi, k)
	if k.Has(event.FlagTLS) {
		a.record.Timeline.FirstRead = start.at
	}
}

func (t *Tracker) trailer(a *active, h *head) {
	if h.hasGRPC {
		status := h.grpc
		a.record.HTTP.GRPCStatus = &status
	}
	if h.unknown {
		a.note(NoteFields)
	}
}

// arrived adds the TCP bytes [lo, hi) of the call k to the answer.
func (t *Tracker) arrived(a *active, lo, hi int64, k *call) {
	a.arrived(lo, hi)
	a.seen = k.At
	if a.reqDone {
		a.seal()
	}
	if k.Has(event.FlagTLS) {
		a.record.Timeline.LastRead = k.At
	}
}

// answered ends the answer. Off the wire, the exchange lasts until the
// application has read it.
func (t *Tracker) answered(a *active, k *call) {
	if !a.reqDone {
		a.note(NoteEarlyAnswer)
	}
	a.resDone = true
	if k != nil && k.Has(event.FlagTLS) {
		t.finish(a, true)
		return
	}
	if c := a.conn; a.inHi != 0 && c.received >= a.inHi {
		tl := &a.record.Timeline
		tl.LastRead = c.receivedAt
		if tl.FirstRead == 0 {
			tl.FirstRead = c.receivedAt
		}
		t.finish(a, true)
	}
}

// giveUp ends an exchange before its time. One that only waits to be read is
// complete.
func (t *Tracker) giveUp(a *active, note, reason string) {
	if a.resDone {
		a.note(NoteUnread)
		t.finish(a, true)
		return
	}
	if a.resHead && a.length > 0 && a.record.HTTP.ResponseBodyBytes == a.length {
		// All that was announced has come. An HTTP/2 client need not wait
		// for the empty frame that ends the stream.
		a.record.HTTP.Reset = ""
		t.finish(a, true)
		return
	}
	a.note(note)
	if !a.reqDone {
		a.note(NoteTruncatedSend)
	}
	t.stats.Incomplete[reason]++
	t.finish(a, false)
}

// finish completes the record and passes it on.
func (t *Tracker) finish(a *active, complete bool) {
	a.seal()
	a.setUp()
	c, r := a.conn, a.record
	if !c.isTLS() {
		a.filled()
	}
	r.Node = t.cfg.Node
	r.Role = "client"
	r.Process = exchange.Process{PID: c.pid, Comm: c.comm}
	if t.cfg.Epoch != nil {
		r.Start = t.cfg.Epoch(r.Timeline.Need)
	}
	k := &r.Connection
	k.ID = c.id
	k.Local, k.Peer, k.Transport = c.from, c.to, "tcp"
	k.SeenFromStart = c.fromStart
	k.MinRTT, k.SRTT, k.Retransmits = c.tcp.minRTT, c.tcp.srtt, int(c.tcp.retrans)
	r.TLS = c.tls
	q := &r.Quality
	q.Plaintext = true
	q.Complete = complete
	if ns, ok := a.wait(); ok && complete {
		c.path.waits.push(ns)
	}
	q.LostEvents = int(c.lost-a.lost) + a.taint
	if c.lost != a.lost {
		a.note(NoteLost)
	}
	t.stats.Exchanges++
	if k.Reused {
		t.stats.Reused++
	}
	t.release(a)
	t.emit(r)
	// emit has kept what it wanted: the next exchange uses it anew.
	b := a.bundle
	a.bundle = nil
	*b = bundle{}
	if len(t.bundles) < maxBundles {
		t.bundles = append(t.bundles, b)
	}
}

// release takes an exchange out of its connection.
func (t *Tracker) release(a *active) {
	c := a.conn
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		c.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		c.last = a.prev
	}
	if c.h2 != nil && c.h2.streams[a.id] == a {
		delete(c.h2.streams, a.id)
	}
	if c.h1 != nil {
		c.h1.forget(a)
	}
	c.open--
	c.host.open--
	t.stats.OpenExchanges--
	a.conn, a.record, a.prev = nil, nil, nil
	a.next = t.spare
	t.spare = a
}

// gap notes that framing was lost on a connection.
func (t *Tracker) gap(c *conn) {
	t.stats.Gaps++
	for a := c.first; a != nil; a = a.next {
		if !a.resDone {
			a.spoil(NoteFraming)
		}
	}
}

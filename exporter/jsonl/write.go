package jsonl

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/peel-dev/peel/collector/exchange"
)

// bufferSize is how many bytes of whole records wait for one write: some
// forty records, so that the system call does not count.
const bufferSize = 64 << 10

// timeLayout is RFC 3339 with all nine digits, so that lines sort by time.
const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

// Stats counts what became of the records given to a Writer.
type Stats struct {
	Records uint64 // written out whole
	Lost    uint64 // could not be written
	Bytes   uint64 // written out
}

// Writer writes records as lines. It buffers: Flush writes out what waits.
// Only whole lines are handed to the underlying writer. The first write error
// ends the recording: that and every later call returns it, and the records
// it cost are counted. A Writer may be used by several goroutines.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	enc     encoder
	pending uint64 // records in enc
	stats   Stats
	err     error
}

// NewWriter returns a Writer to w, which stays the caller's to close.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, enc: encoder{b: make([]byte, 0, bufferSize+bufferSize/4)}}
}

// Write adds a record. It does not keep r.
func (w *Writer) Write(r *exchange.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		w.stats.Lost++
		return w.err
	}
	w.enc.record(r)
	w.enc.b = append(w.enc.b, '\n')
	w.pending++
	if len(w.enc.b) >= bufferSize {
		return w.flush()
	}
	return nil
}

// Flush writes out the records that wait.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}

// Stats returns the counts so far. Records that still wait are in none of
// them.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Writer) flush() error {
	if w.err != nil || len(w.enc.b) == 0 {
		return w.err
	}
	n, err := w.w.Write(w.enc.b)
	if err == nil && n < len(w.enc.b) {
		err = io.ErrShortWrite
	}
	whole := w.pending
	if err != nil {
		whole = uint64(bytes.Count(w.enc.b[:n], []byte{'\n'}))
		w.err = fmt.Errorf("writing records: %w", err)
	}
	w.stats.Records += whole
	w.stats.Lost += w.pending - whole
	w.stats.Bytes += uint64(n)
	w.enc.b, w.pending = w.enc.b[:0], 0
	return w.err
}

// encoder appends JSON. A comma is due unless the last byte opens an object
// or a list; no value ends in such a byte.
type encoder struct{ b []byte }

func (e *encoder) comma() {
	if n := len(e.b); n > 0 {
		if c := e.b[n-1]; c != '{' && c != '[' && c != '\n' {
			e.b = append(e.b, ',')
		}
	}
}

func (e *encoder) key(name string) {
	e.comma()
	e.b = append(e.b, '"')
	e.b = append(e.b, name...)
	e.b = append(e.b, '"', ':')
}

// open begins an object; close ends it, or removes it when nothing is in it.
func (e *encoder) open(name string) (start int) {
	start = len(e.b)
	e.key(name)
	e.b = append(e.b, '{')
	return start
}

func (e *encoder) close(start int) {
	if e.b[len(e.b)-1] == '{' {
		e.b = e.b[:start]
		return
	}
	e.b = append(e.b, '}')
}

func (e *encoder) integer(name string, v int64) {
	e.key(name)
	e.b = strconv.AppendInt(e.b, v, 10)
}

// known writes v unless it is 0, which means that it was not seen.
func (e *encoder) known(name string, v int64) {
	if v != 0 {
		e.integer(name, v)
	}
}

// size writes v unless it is negative: not known.
func (e *encoder) size(name string, v int64) {
	if v >= 0 {
		e.integer(name, v)
	}
}

func (e *encoder) boolean(name string, v bool) {
	e.key(name)
	e.b = strconv.AppendBool(e.b, v)
}

// text writes s unless it is empty.
func (e *encoder) text(name, s string) {
	if s != "" {
		e.key(name)
		e.quote(s)
	}
}

func (e *encoder) list(name string, list []string) {
	e.key(name)
	e.b = append(e.b, '[')
	for _, s := range list {
		e.comma()
		e.quote(s)
	}
	e.b = append(e.b, ']')
}

// fields writes a header map, sorted.
func (e *encoder) fields(name string, m map[string]string) {
	var few [16]string
	names := few[:0]
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	start := e.open(name)
	for _, n := range names {
		e.comma()
		e.quote(n)
		e.b = append(e.b, ':')
		e.quote(m[n])
	}
	e.close(start)
}

func (e *encoder) bounded(name string, b exchange.Bounded) {
	start := e.open(name)
	e.integer("value", b.Value)
	e.integer("low", b.Low)
	e.integer("high", b.High)
	e.close(start)
}

// quote appends s as a JSON string. Whatever does not print is escaped, so
// that a recording can be shown on a terminal whatever a peer put into it.
func (e *encoder) quote(s string) {
	const hex = "0123456789abcdef"
	escape := func(u uint16) {
		e.b = append(e.b, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	e.b = append(e.b, '"')
	clean := 0 // s[clean:i] can be copied as it is
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			e.b = append(e.b, s[clean:i]...)
			if c == '"' || c == '\\' {
				e.b = append(e.b, '\\', c)
			} else {
				escape(uint16(c))
			}
			i++
			clean = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) {
			e.b = append(e.b, s[clean:i]...)
			if hi, lo := utf16.EncodeRune(r); hi != unicode.ReplacementChar {
				escape(uint16(hi))
				escape(uint16(lo))
			} else {
				escape(uint16(r))
			}
			clean = i + size
		}
		i += size
	}
	e.b = append(e.b, s[clean:]...)
	e.b = append(e.b, '"')
}

func (e *encoder) record(r *exchange.Record) {
	e.b = append(e.b, '{')
	e.text("schema", exchange.Schema)
	if !r.Start.IsZero() {
		e.key("start")
		e.b = append(e.b, '"')
		e.b = r.Start.UTC().AppendFormat(e.b, timeLayout)
		e.b = append(e.b, '"')
	}
	e.text("node", r.Node)
	e.text("role", r.Role)

	p := &r.Process
	start := e.open("process")
	e.known("pid", int64(p.PID))
	e.text("comm", p.Comm)
	e.text("exe", p.Exe)
	e.text("container", p.Container)
	e.text("pod", p.Pod)
	e.text("namespace", p.Namespace)
	e.close(start)

	e.connection(&r.Connection)
	if r.TLS != nil {
		e.tls(r.TLS)
	}
	if r.HTTP != nil {
		e.http(r.HTTP)
	}
	e.times(r)

	q := &r.Quality
	start = e.open("quality")
	e.boolean("plaintext", q.Plaintext)
	e.boolean("complete", q.Complete)
	e.integer("lost_events", int64(q.LostEvents))
	e.text("rtt_source", q.RTTSource)
	e.list("notes", q.Notes)
	e.close(start)
	e.b = append(e.b, '}')
}

func (e *encoder) connection(c *exchange.Connection) {
	start := e.open("connection")
	e.text("id", c.ID)
	if c.Local.IsValid() {
		e.key("local")
		e.b = append(e.b, '"')
		e.b = c.Local.AppendTo(e.b)
		e.b = append(e.b, '"')
	}
	if c.Peer.IsValid() {
		e.key("peer")
		e.b = append(e.b, '"')
		e.b = c.Peer.AppendTo(e.b)
		e.b = append(e.b, '"')
	}
	e.text("transport", c.Transport)
	e.boolean("reused", c.Reused)
	e.known("sequence", int64(c.Sequence))
	e.known("inflight", int64(c.Inflight))
	e.boolean("seen_from_start", c.SeenFromStart)
	e.known("min_rtt_ns", c.MinRTT)
	e.known("srtt_ns", c.SRTT)
	e.integer("retransmits", int64(c.Retransmits))
	e.close(start)
}

func (e *encoder) tls(t *exchange.TLSInfo) {
	e.key("tls") // written even when empty: there is TLS, and no more is known
	e.b = append(e.b, '{')
	e.text("library", t.Library)
	e.text("version", t.Version)
	e.text("sni", t.SNI)
	e.text("alpn", t.ALPN)
	if len(t.ALPNOffered) > 0 {
		e.list("alpn_offered", t.ALPNOffered)
	}
	e.text("cipher", t.Cipher)
	e.text("group", t.Group)
	if t.Resumed != nil {
		e.boolean("resumed", *t.Resumed)
	}
	e.text("ja4", t.JA4)
	e.b = append(e.b, '}')
}

func (e *encoder) http(h *exchange.HTTP) {
	e.key("http")
	e.b = append(e.b, '{')
	e.text("version", h.Version)
	e.known("stream_id", int64(h.StreamID))
	e.text("method", h.Method)
	e.text("authority", h.Authority)
	e.text("path", h.Path)
	e.known("status", int64(h.Status))
	e.size("request_header_bytes", h.RequestHeaderBytes)
	e.size("response_header_bytes", h.ResponseHeaderBytes)
	e.size("request_body_bytes", h.RequestBodyBytes)
	e.size("response_body_bytes", h.ResponseBodyBytes)
	e.fields("request_headers", h.RequestHeaders)
	e.fields("response_headers", h.ResponseHeaders)
	e.text("content_type", h.ContentType)
	if h.GRPCStatus != nil {
		e.integer("grpc_status", int64(*h.GRPCStatus))
	}
	e.text("reset", h.Reset)
	e.text("retry_of", h.RetryOf)
	e.b = append(e.b, '}')
}

// times writes everything that package latency fills, and the timeline.
func (e *encoder) times(r *exchange.Record) {
	start := e.open("phases_ns")
	for p := range exchange.NumPhases {
		if r.Phases[p].Seen {
			e.integer(p.String(), r.Phases[p].Total)
		}
	}
	e.close(start)

	start = e.open("breakdown_ns")
	for p := range exchange.NumPhases {
		if !r.Phases[p].Seen {
			continue
		}
		phase := e.open(p.String())
		for party, b := range r.Phases[p].Parts {
			if b != (exchange.Bounded{}) {
				e.bounded(exchange.Party(party).String(), b)
			}
		}
		e.close(phase)
	}
	e.close(start)

	start = e.open("components_ns")
	for c := range exchange.NumComponents {
		b := r.Components[c]
		seen := slices.ContainsFunc(phasesOf(c), func(p exchange.Phase) bool { return r.Phases[p].Seen })
		if seen || b != (exchange.Bounded{}) {
			e.bounded(c.String(), b)
		}
	}
	e.close(start)

	e.known("ttfb_ns", r.TTFB)
	e.known("total_ns", r.Total)

	if need := r.Timeline.Need; need != 0 {
		start = e.open("timeline_ns")
		e.integer("need", 0)
		for _, m := range marks(&r.Timeline) {
			if *m.at != 0 {
				e.integer(m.name, *m.at-need)
			}
		}
		e.close(start)
	}
}

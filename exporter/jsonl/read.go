package jsonl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

// MaxLine is the longest line that Read takes, in bytes. A record's strings
// and header maps are bounded far below it.
const MaxLine = 4 << 20

// ErrCutOff says that the input ends within a record, as it does when the
// recorder was killed or its disk was full.
var ErrCutOff = errors.New("input ends within a record")

// Read calls each with every record of r, in order; the record is each's to
// keep. Fields it does not know are ignored and empty lines are skipped. Its
// errors name the line, counted from 1, and records before that line have
// been delivered; an error from each ends it and is returned as it is.
//
// Marks come back as Unix nanoseconds (need is Record.Start), so that those of
// different records can be compared. Evidence is not in the format.
func Read(r io.Reader, each func(*exchange.Record) error) error {
	lines := bufio.NewReaderSize(r, bufferSize)
	var line []byte
	for n := 1; ; n++ {
		var err error
		line, err = readLine(lines, line[:0])
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 {
			rec, err := decode(trimmed)
			if err != nil {
				var syntax *json.SyntaxError
				if end && errors.As(err, &syntax) {
					err = ErrCutOff
				}
				return fmt.Errorf("line %d: %w", n, err)
			}
			if err := each(rec); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

// readLine appends a line to buf; its error is io.EOF on the last one.
func readLine(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		part, err := r.ReadSlice('\n')
		buf = append(buf, part...)
		if len(buf) > MaxLine {
			return buf, fmt.Errorf("longer than %d bytes", MaxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return buf, err
		}
	}
}

// line is a record as the format has it. Pointers and maps tell what is
// absent from what is zero.
type line struct {
	Schema  string    `json:"schema"`
	Start   time.Time `json:"start"`
	Node    string    `json:"node"`
	Role    string    `json:"role"`
	Process struct {
		PID       uint32 `json:"pid"`
		Comm      string `json:"comm"`
		Exe       string `json:"exe"`
		Container string `json:"container"`
		Pod       string `json:"pod"`
		Namespace string `json:"namespace"`
	} `json:"process"`
	Connection struct {
		ID            string         `json:"id"`
		Local         netip.AddrPort `json:"local"`
		Peer          netip.AddrPort `json:"peer"`
		Transport     string         `json:"transport"`
		Reused        bool           `json:"reused"`
		Sequence      int            `json:"sequence"`
		Inflight      int            `json:"inflight"`
		SeenFromStart bool           `json:"seen_from_start"`
		MinRTT        int64          `json:"min_rtt_ns"`
		SRTT          int64          `json:"srtt_ns"`
		Retransmits   int            `json:"retransmits"`
	} `json:"connection"`
	TLS *struct {
		Library     string   `json:"library"`
		Version     string   `json:"version"`
		SNI         string   `json:"sni"`
		ALPN        string   `json:"alpn"`
		ALPNOffered []string `json:"alpn_offered"`
		Cipher      string   `json:"cipher"`
		Group       string   `json:"group"`
		Resumed     *bool    `json:"resumed"`
		JA4         string   `json:"ja4"`
	} `json:"tls"`
	HTTP *struct {
		Version             string            `json:"version"`
		StreamID            uint32            `json:"stream_id"`
		Method              string            `json:"method"`
		Authority           string            `json:"authority"`
		Path                string            `json:"path"`
		Status              int               `json:"status"`
		RequestHeaderBytes  *int64            `json:"request_header_bytes"`
		ResponseHeaderBytes *int64            `json:"response_header_bytes"`
		RequestBodyBytes    *int64            `json:"request_body_bytes"`
		ResponseBodyBytes   *int64            `json:"response_body_bytes"`
		RequestHeaders      map[string]string `json:"request_headers"`
		ResponseHeaders     map[string]string `json:"response_headers"`
		ContentType         string            `json:"content_type"`
		GRPCStatus          *int              `json:"grpc_status"`
		Reset               string            `json:"reset"`
		RetryOf             string            `json:"retry_of"`
	} `json:"http"`
	Phases     map[string]int64              `json:"phases_ns"`
	Breakdown  map[string]map[string]bounded `json:"breakdown_ns"`
	Components map[string]bounded            `json:"components_ns"`
	TTFB       int64                         `json:"ttfb_ns"`
	Total      int64                         `json:"total_ns"`
	Timeline   map[string]int64              `json:"timeline_ns"`
	Quality    struct {
		Plaintext  bool     `json:"plaintext"`
		Complete   bool     `json:"complete"`
		LostEvents int      `json:"lost_events"`
		RTTSource  string   `json:"rtt_source"`
		Notes      []string `json:"notes"`
	} `json:"quality"`
}

type bounded struct {
	Value int64 `json:"value"`
	Low   int64 `json:"low"`
	High  int64 `json:"high"`
}

func decode(b []byte) (*exchange.Record, error) {
	var l line
	err := json.Unmarshal(b, &l)
	// A field of another type does not stop the decoder; a record of another
	// schema may well have one, and its schema is then the better reason.
	var mismatch *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &mismatch) {
		return nil, fmt.Errorf("parsing record: %w", err)
	}
	switch {
	case l.Schema == "" && err == nil:
		return nil, fmt.Errorf("no schema field: not a record of %s", exchange.Schema)
	case l.Schema != exchange.Schema && l.Schema != "":
		return nil, fmt.Errorf("schema is %q: only %s can be read", l.Schema, exchange.Schema)
	case err != nil && mismatch.Field == "":
		return nil, fmt.Errorf("parsing record: %s instead of an object", mismatch.Value)
	case err != nil:
		return nil, fmt.Errorf("parsing record: field %s cannot be a %s", mismatch.Field, mismatch.Value)
	}
	start := l.Start.UTC()
	if start.Year() < 0 || start.Year() > 9999 {
		return nil, fmt.Errorf("parsing record: start is out of range")
	}

	r := &exchange.Record{
		Start:      start,
		Node:       l.Node,
		Role:       l.Role,
		Process:    exchange.Process(l.Process),
		Connection: exchange.Connection(l.Connection),
		TTFB:       l.TTFB,
		Total:      l.Total,
		Quality:    exchange.Quality(l.Quality),
	}
	if l.TLS != nil {
		t := exchange.TLSInfo(*l.TLS)
		r.TLS = &t
	}
	if h := l.HTTP; h != nil {
		r.HTTP = &exchange.HTTP{
			Version:             h.Version,
			StreamID:            h.StreamID,
			Method:              h.Method,
			Authority:           h.Authority,
			Path:                h.Path,
			Status:              h.Status,
			RequestHeaderBytes:  size(h.RequestHeaderBytes),
			ResponseHeaderBytes: size(h.ResponseHeaderBytes),
			RequestBodyBytes:    size(h.RequestBodyBytes),
			ResponseBodyBytes:   size(h.ResponseBodyBytes),
			RequestHeaders:      h.RequestHeaders,
			ResponseHeaders:     h.ResponseHeaders,
			ContentType:         h.ContentType,
			GRPCStatus:          h.GRPCStatus,
			Reset:               h.Reset,
			RetryOf:             h.RetryOf,
		}
	}
	l.times(r)
	return r, nil
}

// times fills what package latency had filled, and the timeline.
func (l *line) times(r *exchange.Record) {
	for p := range exchange.NumPhases {
		s := &r.Phases[p]
		if s.Total, s.Seen = l.Phases[p.String()]; !s.Seen {
			continue
		}
		for party := range exchange.NumParties {
			s.Parts[party] = exchange.Bounded(l.Breakdown[p.String()][party.String()])
		}
	}
	for c := range exchange.NumComponents {
		r.Components[c] = exchange.Bounded(l.Components[c.String()])
	}
	if _, seen := l.Timeline["need"]; !seen {
		return
	}
	need := r.Start.UnixNano()
	if r.Start.IsZero() || need == 0 {
		need = 1 // 0 would say that it was not seen
	}
	r.Timeline.Need = need
	for _, m := range marks(&r.Timeline) {
		if d, seen := l.Timeline[m.name]; seen {
			*m.at = need + d
		}
	}
}

// size is -1 where v is absent or makes no sense.
func size(v *int64) int64 {
	if v == nil {
		return -1
	}
	return max(*v, -1)
}

package report

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector/exchange"
)

func summaryOf(most int, records []*exchange.Record) *Summary {
	s := NewSummary(most)
	for _, r := range records {
		s.Add(r)
	}
	return s
}

func TestSummaryGolden(t *testing.T) {
	extra := Extra{Elapsed: 40 * time.Second, Connections: 12, BytesOut: 1_234_567, BytesIn: 45_678_901,
		Unknown: map[string]int{"encrypted, and no probe fits its TLS library": 2}, Lost: map[string]int{"ring full": 3}}
	var few []*exchange.Record
	for _, k := range kinds() {
		few = append(few, k.r)
	}
	for name, st := range styles() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			summaryOf(10, load(1000)).Write(&out, st, extra)
			out.WriteString("\n")
			summaryOf(0, few).Write(&out, st, Extra{Connections: -1})
			golden(t, "summary-"+name+".txt", out.String())
			fits(t, st, out.String())
		})
	}
}

// TestSummaryShows holds when what is shown: one exchange needs no table, a
// few are all shown, of many the slowest.
func TestSummaryShows(t *testing.T) {
	tests := []struct {
		n, most              int
		waterfalls           int
		list, table, verdict bool
	}{
		{0, 10, 0, false, false, false},
		{1, 10, 1, false, false, false},
		{3, 10, 3, false, true, true},
		{10, 10, 10, false, true, true},
		{11, 10, 1, true, true, true},
		{11, 0, 0, false, true, true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.n, tt.most), func(t *testing.T) {
			var out bytes.Buffer
			summaryOf(tt.most, load(tt.n)).Write(&out, Style{Width: 100}, Extra{Connections: -1})
			text := out.String()
			if got := strings.Count(text, "took none"); got != tt.waterfalls {
				t.Errorf("%d waterfalls, want %d", got, tt.waterfalls)
			}
			if got := strings.Contains(text, "The slowest of"); got != tt.list {
				t.Errorf("list is %v, want %v", got, tt.list)
			}
			if got := strings.Contains(text, "P99"); got != tt.table {
				t.Errorf("table is %v, want %v", got, tt.table)
			}
			if got := strings.Contains(text, "of all time"); got != tt.verdict {
				t.Errorf("verdict is %v, want %v", got, tt.verdict)
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}

// TestSilenceHasAReason: an empty summary is the case that users hate most.
func TestSilenceHasAReason(t *testing.T) {
	tests := []struct {
		name  string
		extra Extra
		want  []string
	}{
		{"nothing at all", Extra{}, []string{"No exchange was seen.", "0 connections watched", "right process, host, port"}},
		{"connections that say nothing", Extra{Connections: 2, Unknown: map[string]int{"no request was sent": 2}},
			[]string{"No exchange was seen.", "2 connections watched", "no request was sent: 2"}},
		{"loss", Extra{Connections: 1, Lost: map[string]int{"ring full": 7}}, []string{"events lost", "ring full: 7"}},
		{"another host", Extra{Unmatched: 3}, []string{"0 connections watched", "3 more did not match the filter"}},
		{"hint", Extra{Connections: -1, Hints: []string{"run it as root"}}, []string{"run it as root"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			NewSummary(10).Write(&out, Style{Width: 160}, tt.extra)
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in\n%s", want, out.String())
				}
			}
		})
	}
}

// TestSummaryIsBounded: what peers send must not grow it.
func TestSummaryIsBounded(t *testing.T) {
	s := NewSummary(3)
	for i, r := range load(2000) {
		r.HTTP.Status = i
		r.Phases[exchange.Read].Seen = false
		r.Quality.Notes = []string{fmt.Sprintf("read: reason %d", i)}
		s.Add(r)
	}
	if len(s.slowest) != 3 || len(s.statuses) > maxStatuses+1 || len(s.notes) > maxReasons+1 {
		t.Errorf("%d records, %d statuses, %d notes are kept", len(s.slowest), len(s.statuses), len(s.notes))
	}
	if s.notes[other] != 2000-maxReasons {
		t.Errorf("%d other notes are counted, want %d", s.notes[other], 2000-maxReasons)
	}
}

func TestSlowest(t *testing.T) {
	records := load(500)
	s := summaryOf(10, records)
	slices.SortFunc(records, func(a, b *exchange.Record) int { return int(b.Total - a.Total) })
	for _, r := range records[:10] {
		if !slices.ContainsFunc(s.slowest, func(kept *exchange.Record) bool { return kept.Total == r.Total }) {
			t.Errorf("one of %d ns is not among the slowest", r.Total)
		}
	}
}

// TestPaid: a phase's quantiles are those of the exchanges that paid for it.
func TestPaid(t *testing.T) {
	s := summaryOf(0, load(1000))
	if n := s.phases[exchange.TLS].n; n != 10 {
		t.Errorf("tls has n %d, want the 10 exchanges that opened a connection", n)
	}
	if v := s.phases[exchange.Connect].quantile(0.5).value; v < 10*ms {
		t.Errorf("connect's median is %d ns, below what any of them took", v)
	}
}

func TestSeries(t *testing.T) {
	for _, n := range []int{1, 2, 100, exactMost, exactMost + 1, 5 * exactMost} {
		var s series
		var all []int64
		seed := uint64(7)
		for range n {
			seed = seed*6364136223846793005 + 1442695040888963407
			v := int64(math.Exp(float64(seed>>40)/(1<<24)*25)) + 1 // 1 ns to 72 s
			all = append(all, v)
			s.addPaid(v)
		}
		slices.Sort(all)
		for _, q := range []float64{0.001, 0.5, 0.95, 0.99, 1} {
			want := all[max(int(math.Ceil(q*float64(n))), 1)-1]
			got := s.quantile(q).value
			if off := math.Abs(float64(got-want)) / float64(want); off > 1.0/(1<<bucketBits) {
				t.Errorf("n %d, q %g: %d, want %d", n, q, got, want)
			}
		}
		if n <= exactMost && s.buckets != nil || n > exactMost && s.exact != nil {
			t.Errorf("n %d: %d exact, %d buckets", n, len(s.exact), len(s.buckets))
		}
	}
}

func TestBuckets(t *testing.T) {
	last := -1
	for _, v := range []int64{1, 2, 1023, 1024, 2047, 2048, 2049, 2050, 4095, 4096, 1e6, 1e9, 1e12, math.MaxInt64} {
		b := bucket(v)
		if b < last || b >= numBuckets {
			t.Errorf("%d is in bucket %d of %d, the one before in %d", v, b, numBuckets, last)
		}
		if off := math.Abs(float64(middle(b)-v)) / float64(v); off > 1.0/(1<<bucketBits) {
			t.Errorf("%d comes back as %d", v, middle(b))
		}
		last = b
	}
}

// TestRanks: n ≥ 299 and n ≥ 59 are where q^n falls to 5 %.
func TestRanks(t *testing.T) {
	for _, tt := range []struct {
		n  int64
		q  float64
		ok bool
	}{{298, 0.99, false}, {299, 0.99, true}, {58, 0.95, false}, {59, 0.95, true}, {1000, 0.99, true}, {1000000, 0.99, true}} {
		low, high, ok := ranks(tt.n, tt.q)
		if ok != tt.ok || ok != (tt.n >= needs(tt.q)) {
			t.Errorf("n %d, q %g: ok is %v", tt.n, tt.q, ok)
		}
		if at := int64(tt.q * float64(tt.n)); ok && (low < 1 || low > at || high < at || high > tt.n) {
			t.Errorf("n %d, q %g: ranks %d, %d", tt.n, tt.q, low, high)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	s := NewSummary(10)
	records := load(1000)
	for i := 0; b.Loop(); i++ {
		s.Add(records[i%len(records)])
	}
}

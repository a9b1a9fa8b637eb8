package conn

import (
	"fmt"
	"testing"

	"github.com/peel-dev/peel/collector/event"
	"github.com/peel-dev/peel/collector/exchange"
	"github.com/peel-dev/peel/collector/wire/http2"
)

// BenchmarkExchange is the cost of one exchange as h2load makes them, with so
// many streams in each call.
func BenchmarkExchange(b *testing.B) {
	for _, streams := range []int{1, 10} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) { benchmarkHTTP2(b, streams) })
	}
	b.Run("http1", benchmarkHTTP1)
}

func benchmarkHTTP2(b *testing.B, streams int) {
	s := h2conn(b)
	n := 0
	s.tr.emit = func(r *exchange.Record) {
		n++
		if len(r.Quality.Notes) > 0 || !r.Quality.Complete {
			b.Fatalf("%+v", r.Quality)
		}
	}
	at := start
	b.ReportAllocs()
	b.ResetTimer()
	id := uint32(1)
	var request, answer text
	batch := func() {
		request, answer = text{}, text{}
		for range streams {
			request = request.and(s.out.headers(id, http2.EndStream, ":method", "GET", ":scheme", "https",
				":authority", "127.0.0.1:9500", ":path", "/index.html", "user-agent", "h2load nghttp2/1.52.0"))
			answer = answer.and(s.in.headers(id, 0, ":status", "200", "server", "nghttpd nghttp2/1.52.0",
				"content-length", "100", "cache-control", "max-age=3600", "date", "Mon, 01 Jan 2024 00:00:00 GMT",
				"last-modified", "Mon, 01 Jan 2024 00:00:00 GMT"), data(id, 100, http2.EndStream))
			id += 2
		}
	}
	batch() // fills the header tables
	play := func() {
		at += 100 * us
		s.write(at, request)
		s.read(at+50*us, answer)
	}
	play()
	batch()
	requests, answers := pieceEvents(s, request, answer)
	for b.Loop() {
		// The same bytes with the next ids.
		for _, p := range requests.Pieces {
			renumber(p.Data, &id, streams, false)
		}
		id -= uint32(2 * streams)
		for _, p := range answers.Pieces {
			renumber(p.Data, &id, streams, true)
		}
		at += 100 * us
		lo := s.sndSeq
		s.send(at, requests.Bytes+overhead, push)
		turn(s, requests, at, lo, s.sndSeq)
		s.ackSeq = s.sndSeq
		lo = s.rcvSeq
		s.receive(at+50*us, answers.Bytes+overhead, push)
		turn(s, answers, at+60*us, lo, s.rcvSeq)
	}
	b.StopTimer()
	if n < b.N*streams {
		b.Fatalf("%d exchanges of %d", n, b.N*streams)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/exchange")
}

func pieceEvents(s *script, request, answer text) (*event.Plain, *event.Plain) {
	make := func(dir event.Dir, x text) *event.Plain {
		return &event.Plain{Header: s.head(event.KindPlain, 0, dir, event.FlagTLS), Offset: s.off[dir], Bytes: len(x.b),
			Protocol: s.proto, Pieces: x.pieces(s.off[dir])}
	}
	return make(event.Out, request), make(event.In, answer)
}

// renumber gives the frames in data the ids from id on; the frames of an
// answer come in twos.
func renumber(data []byte, id *uint32, streams int, twos bool) {
	for at := 0; at+9 <= len(data); {
		n := int(data[at])<<16 | int(data[at+1])<<8 | int(data[at+2])
		data[at+5], data[at+6], data[at+7], data[at+8] = byte(*id>>24), byte(*id>>16), byte(*id>>8), byte(*id)
		isData := data[at+3] == byte(http2.Data)
		if isData || !twos {
			*id += 2
		}
		at += 9 + n
		if isData {
			break
		}
	}
}

func turn(s *script, ev *event.Plain, at int64, lo, hi uint32) {
	ev.At, ev.Enter, ev.SeqLo, ev.SeqHi = zero+at, zero+at, lo, hi
	shift := s.off[ev.Dir] - ev.Offset
	for i := range ev.Pieces {
		ev.Pieces[i].At += shift
	}
	ev.Offset += shift
	s.off[ev.Dir] += uint64(ev.Bytes)
	s.tr.Handle(ev)
}

func benchmarkHTTP1(b *testing.B) {
	s := h1conn(b, true)
	n := 0
	s.tr.emit = func(*exchange.Record) { n++ }
	requests, answers := pieceEvents(s, message("GET /index.html HTTP/1.1", "Host: 127.0.0.1", "User-Agent: bench", "Accept: */*"),
		message("HTTP/1.1 200 OK", "Server: nginx", "Date: Mon, 01 Jan 2024 00:00:00 GMT", "Content-Type: text/html",
			"Content-Length: 100", "Connection: keep-alive").and(counted(100)))
	at := start
	b.ReportAllocs()
	for b.Loop() {
		at += 100 * us
		lo := s.sndSeq
		s.send(at, requests.Bytes+overhead, push)
		turn(s, requests, at, lo, s.sndSeq)
		s.ackSeq = s.sndSeq
		lo = s.rcvSeq
		s.receive(at+50*us, answers.Bytes+overhead, push)
		turn(s, answers, at+60*us, lo, s.rcvSeq)
	}
	if n != b.N {
		b.Fatalf("%d exchanges of %d", n, b.N)
	}
}

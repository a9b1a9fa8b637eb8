package collector

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/latency"
	"github.com/peel-dev/peel/collector/testbed"
)

// frame is an HTTP/2 frame with any header.
func frame(length, kind, flags int, stream uint32, payload ...byte) []byte {
	b := []byte{byte(length >> 16), byte(length >> 8), byte(length), byte(kind), byte(flags)}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// tlsThen makes a handshake and sends garbage where records should be.
func tlsThen(c net.Conn, cert tls.Certificate, garbage string) {
	server := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
	if server.Handshake() == nil {
		server.Read(make([]byte, 4096))
		c.Write([]byte(garbage))
	}
}

// TestHostileBytes has servers and clients send what no protocol allows. Nothing
// may break, every connection must be accounted for, and an honest exchange
// after it all must be seen as ever.
func TestHostileBytes(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 200_000)
	random.Read(noise)
	settings := frame(0, 4, 0, 0)
	head := "HTTP/1.1 200 OK\r\n"
	answers := []struct {
		name, alpn string
		bytes      []byte
	}{
		{"h2: noise", "h2", noise},
		{"h2: noise after settings", "h2", append(bytes.Clone(settings), noise...)},
		{"h2: zeros", "h2", make([]byte, 100_000)},
		{"h2: half a frame header", "h2", append(bytes.Clone(settings), 0, 0, 5, 1)},
		{"h2: half a head", "h2", append(bytes.Clone(settings), frame(100, 1, 4, 1, 0x88)...)},
		{"h2: huge length", "h2", append(bytes.Clone(settings), frame(0xffffff, 1, 4, 1, noise[:70_000]...)...)},
		{"h2: huge DATA", "h2", append(bytes.Clone(settings), frame(0xffffff, 0, 8, 1, noise[:70_000]...)...)},
		{"h2: invalid HPACK", "h2", append(bytes.Clone(settings), frame(12, 1, 4, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)...)},
		{"h2: HPACK string beyond its block", "h2", append(bytes.Clone(settings), frame(4, 1, 4, 1, 0x40, 0x7f, 0xff, 0x03)...)},
		{"h2: padding beyond the frame", "h2", append(bytes.Clone(settings), frame(3, 1, 0xc, 1, 200, 0x88, 0)...)},
		{"h2: CONTINUATION without HEADERS", "h2", append(bytes.Clone(settings), frame(1, 9, 4, 1, 0x88)...)},
		{"h2: endless CONTINUATION", "h2", append(append(bytes.Clone(settings), frame(1, 1, 0, 1, 0x88)...),
			bytes.Repeat(frame(1000, 9, 0, 1, bytes.Repeat([]byte{0x40, 1, 'a', 1, 'b'}, 200)...), 500)...)},
		{"h2: empty frames", "h2", append(bytes.Clone(settings), bytes.Repeat(frame(0, 0, 0, 1), 20_000)...)},
		{"h2: reset flood", "h2", append(bytes.Clone(settings), bytes.Repeat(frame(4, 3, 0, 1, 0, 0, 0, 2), 5000)...)},
		{"h2: short payloads", "h2", append(append(append(bytes.Clone(settings), frame(1, 3, 0, 1, 0)...), frame(3, 7, 0, 0, 0, 0, 0)...), frame(5, 4, 0, 0, 0, 0, 0, 0, 0)...)},
		{"h2: pushed streams", "h2", append(bytes.Clone(settings), bytes.Repeat(frame(5, 5, 4, 1, 0, 0, 0, 2, 0x82), 3000)...)},
		{"h2: answers HTTP/1.1", "h2", []byte(head + "Content-Length: 1\r\n\r\na")},
		{"h1: noise", "http/1.1", noise},
		{"h1: endless head", "http/1.1", []byte(head + strings.Repeat("x-endless: "+strings.Repeat("e", 200)+"\r\n", 1000))},
		{"h1: endless line", "http/1.1", []byte(head + "x: " + strings.Repeat("e", 300_000))},
		{"h1: invalid chunk sizes", "http/1.1", []byte(head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nabc\r\n-1\r\n\r\nzz\r\n")},
		{"h1: invalid lengths", "http/1.1", []byte(head + "Content-Length: 99999999999999999999999999\r\nContent-Length: -1\r\nContent-Length: a\r\n\r\nabc")},
		{"h1: no status", "http/1.1", []byte("HTTP/1.1 \r\n\r\n")},
		{"h1: status beyond all", "http/1.1", []byte("HTTP/1.1 99999999999 OK\r\n\r\n")},
		{"h1: nothing but lines", "http/1.1", []byte(strings.Repeat("\r\n", 5000))},
		{"h1: a hundred answers", "http/1.1", bytes.Repeat([]byte(head+"Content-Length: 0\r\n\r\n"), 100)},
		{"h1: endless interim answers", "http/1.1", bytes.Repeat([]byte("HTTP/1.1 103 Early Hints\r\n\r\n"), 2000)},
		{"h1: zero bytes", "http/1.1", []byte(head + "x: \x00\x00\x00\r\n\r\n\x00")},
		{"h1: nothing", "http/1.1", nil},
	}
	honest := serve(t, api())
	argv := make([][]string, 0, 100)
	curl := func(args ...string) {
		argv = append(argv, append([]string{"curl", "-sk", "-m", "3", "-o", "/dev/null"}, args...))
	}
	python := func(addr, how string, parts ...string) {
		argv = append(argv, append([]string{testbed.Python, "-c", rawPython, addr, how}, parts...))
	}
	for _, a := range answers {
		reply := func(c net.Conn) {
			c.Read(make([]byte, 4096))
			c.Write(a.bytes)
		}
		curl("https://" + testbed.Serve(t, testbed.Listen(t, a.alpn), reply) + "/")
		plain := testbed.Serve(t, testbed.Listen(t), reply)
		if a.alpn == "h2" {
			curl("--http2-prior-knowledge", "http://"+plain+"/")
		} else {
			curl("http://" + plain + "/")
		}
		// The same bytes where a TLS handshake should be.
		curl("https://" + plain + "/")
	}
	// A TLS record of the wrong kind, and one of impossible length, after the handshake.
	for _, garbage := range []string{"\x17\x03\x03\x00\x20" + strings.Repeat("g", 32), "\x17\x03\x03\xff\xff" + strings.Repeat("g", 70_000), "\x99garbage"} {
		l := testbed.Listen(t)
		cert, _, _ := testbed.Certificate(t)
		curl("https://" + testbed.Serve(t, l, func(c net.Conn) { tlsThen(c, cert, garbage) }) + "/")
	}
	sink := testbed.Serve(t, testbed.Listen(t), testbed.Drain)
	tlsSink := testbed.Serve(t, testbed.Listen(t, "http/1.1"), testbed.Drain)
	for how, addr := range map[string]string{"plain": sink, "tls": tlsSink} {
		python(addr, how, `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`, strings.Repeat(`\xff`, 5000))
		python(addr, how, `PRI * HT`, `garbage`)
		python(addr, how, `GET / HTTP/9.9\r\n`, strings.Repeat("x", 100_000))
		python(addr, how, `GET\r\n\r\n\r\n\r\n\r\n\r\n\r\n`)
		python(addr, how, strings.Repeat(`GET / HTTP/1.1\r\n\r\n`, 2000))
		python(addr, how, strings.Repeat(`\x00`, 2000))
		python(addr, how)
	}
	python(sink, "plain", `\x16\x03\x01\x02\x00`+strings.Repeat(`\x01`, 600))
	python(sink, "plain", `\x16\x03\x01\xff\xff\x01\xff\xff\xff`)

	ob := observe(t)
	for _, a := range argv {
		ob.run("", a...)
	}
	last := ob.must("curl", "-sSk", "-o", "/dev/null", "https://"+honest.tls+"/ok", "https://"+honest.tls+"/ok")
	ob.end()

	with := make(map[string]bool)
	for _, r := range ob.records {
		with[r.Connection.ID] = true
		if err := latency.Check(r); err != nil {
			t.Error(err)
		}
	}
	without := 0
	for _, n := range ob.report.Unknown {
		without += n
	}
	if len(with)+without != ob.report.Connections || ob.report.Connections < len(argv)+1 {
		t.Errorf("%d connections, %d with exchanges, %d without: %v; want at least %d", ob.report.Connections, len(with), without, ob.report.Unknown, len(argv)+1)
	}
	if ob.report.OpenConns+ob.report.OpenExchanges > 0 {
		t.Errorf("%d connections, %d exchanges are still open", ob.report.OpenConns, ob.report.OpenExchanges)
	}
	if records := ob.of(last); len(records) != 2 || !records[1].Quality.Complete || records[1].HTTP.Status != 200 {
		t.Errorf("after all that, an honest client's exchanges are %+v", records)
	}
	t.Logf("%d exchanges, %v incomplete, without: %v, gaps: %d, reasons: %v", len(ob.records), ob.report.Incomplete, ob.report.Unknown, ob.report.Gaps, ob.report.Reasons)
}

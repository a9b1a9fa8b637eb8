package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/wire/header"
)

func TestParseHead(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     Head // Len: 0 stands for all of in
	}{
		{"request", "POST /v1/messages?beta=true HTTP/1.1\r\nHost: api.test\r\nContent-Length: 12\r\n\r\n", Head{
			Request: true, Method: "POST", Target: "/v1/messages?beta=true", Version: "1.1", ContentLength: 12,
			Fields: []header.Field{{Name: "host", Value: "api.test"}, {Name: "content-length", Value: "12"}},
		}},
		{"body follows", "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1", Head{Version: "1.1", Status: 200, ContentLength: -1, Len: 19}},
		{"no reason", "HTTP/1.1 204\r\n\r\n", Head{Version: "1.1", Status: 204, ContentLength: -1}},
		{"empty reason", "HTTP/1.1 204 \r\n\r\n", Head{Version: "1.1", Status: 204, ContentLength: -1}},
		{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", Head{
			Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1,
			Fields: []header.Field{{Name: "host", Value: "a"}},
		}},
		{"empty lines first", "\r\n\nGET / HTTP/1.1\r\n\r\n", Head{Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1}},
		{"own method", "PROPFIND * HTTP/1.1\r\n\r\n", Head{Request: true, Method: "PROPFIND", Target: "*", Version: "1.1", ContentLength: -1}},
		{"secrets", "GET / HTTP/1.1\r\nAUTHORIZATION: Bearer abc\r\nX-Api-Key:sk-1\r\nCookie: a=b;\r\n c=d\r\nAccept: */*\r\n\r\n", Head{
			Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1,
			Fields: []header.Field{{Name: "authorization", Value: "present"}, {Name: "x-api-key", Value: "present"},
				{Name: "cookie", Value: "present"}, {Name: "accept", Value: "*/*"}},
		}},
		{"space around values", "GET / HTTP/1.1\r\nA:\t b c \t\r\nB:\r\nC:d\r\n\r\n", Head{
			Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1,
			Fields: []header.Field{{Name: "a", Value: "b c"}, {Name: "b"}, {Name: "c", Value: "d"}},
		}},
		{"folded", "GET / HTTP/1.1\r\nA: b\r\n  c\r\n\td \r\n \r\nB:\r\n e\r\n\r\n", Head{
			Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1,
			Fields: []header.Field{{Name: "a", Value: "b c d"}, {Name: "b", Value: "e"}},
		}},
		{"same content-lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\ncontent-length: 5\r\n\r\n", Head{
			Version: "1.1", Status: 200, ContentLength: 5,
			Fields: []header.Field{{Name: "content-length", Value: "5, 5"}, {Name: "content-length", Value: "5"}},
		}},
		{"chunked overrides length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n", Head{
			Version: "1.1", Status: 200, ContentLength: -1, Chunked: true,
			Fields: []header.Field{{Name: "content-length", Value: "5"}, {Name: "transfer-encoding", Value: "gzip, Chunked"}},
		}},
		{"chunked not last", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n", Head{
			Version: "1.1", Status: 200, ContentLength: -1,
			Fields: []header.Field{{Name: "transfer-encoding", Value: "chunked"}, {Name: "transfer-encoding", Value: "gzip"}},
		}},
		{"close", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n", Head{
			Version: "1.1", Status: 200, ContentLength: -1, Close: true,
			Fields: []header.Field{{Name: "connection", Value: "x, Close"}},
		}},
		{"1.0 closes", "HTTP/1.0 200 OK\r\n\r\n", Head{Version: "1.0", Status: 200, ContentLength: -1, Close: true}},
		{"1.0 keeps alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", Head{
			Version: "1.0", Status: 200, ContentLength: -1,
			Fields: []header.Field{{Name: "connection", Value: "keep-alive"}},
		}},
		{"upgrade asked", "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", Head{
			Request: true, Method: "GET", Target: "/", Version: "1.1", ContentLength: -1, Upgrade: true,
			Fields: []header.Field{{Name: "connection", Value: "Upgrade"}, {Name: "upgrade", Value: "websocket"}},
		}},
		{"upgrade granted", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", Head{
			Version: "1.1", Status: 101, ContentLength: -1, Upgrade: true,
			Fields: []header.Field{{Name: "connection", Value: "upgrade"}, {Name: "upgrade", Value: "h2c"}},
		}},
		{"upgrade wanted by server", "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: h2c, grpc-exp\r\n\r\n", Head{
			Version: "1.1", Status: 426, ContentLength: -1,
			Fields: []header.Field{{Name: "connection", Value: "upgrade"}, {Name: "upgrade", Value: "h2c, grpc-exp"}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.want
			if want.Len == 0 {
				want.Len = len(tt.in)
			}
			in := []byte(tt.in)
			got, err := ParseHead(in)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if string(in) != tt.in {
				t.Error("the input was changed")
			}
			for n := range want.Len {
				if _, err := ParseHead(in[:n]); !errors.Is(err, ErrIncomplete) {
					t.Fatalf("first %d bytes: %v", n, err)
				}
			}
		})
	}
}

func TestParseHeadErrors(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     error
	}{
		{"empty", "", ErrIncomplete},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\n", ErrMalformed},
		{"TLS record", "\x16\x03\x01\x02\x00\x01", ErrMalformed},
		{"no version", "GET /\r\n\r\n", ErrMalformed},
		{"no target", "GET  HTTP/1.1\r\n\r\n", ErrMalformed},
		{"space in target", "GET /a b HTTP/1.1\r\n\r\n", ErrMalformed},
		{"bad method", "G@T / HTTP/1.1\r\n\r\n", ErrMalformed},
		{"version 3", "GET / HTTP/3.0\r\n\r\n", ErrMalformed},
		{"status of two digits", "HTTP/1.1 20 OK\r\n\r\n", ErrMalformed},
		{"status with sign", "HTTP/1.1 +20 OK\r\n\r\n", ErrMalformed},
		{"status 099", "HTTP/1.1 099 OK\r\n\r\n", ErrMalformed},
		{"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", ErrMalformed},
		{"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", ErrMalformed},
		{"no name", "GET / HTTP/1.1\r\n: a\r\n\r\n", ErrMalformed},
		{"fold without field", "GET / HTTP/1.1\r\n a\r\n\r\n", ErrMalformed},
		{"different lengths", "GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", ErrMalformed},
		{"different lengths in one", "GET / HTTP/1.1\r\nContent-Length: 5, 6\r\n\r\n", ErrMalformed},
		{"negative length", "GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", ErrMalformed},
		{"signed length", "GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", ErrMalformed},
		{"huge length", "GET / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\n", ErrMalformed},
		{"201 fields", "GET / HTTP/1.1\r\n" + strings.Repeat("a: b\r\n", 201) + "\r\n", ErrTooLarge},
		{"64 KiB without an end", "GET / HTTP/1.1\r\na: " + strings.Repeat("b", MaxHead), ErrTooLarge},
		{"64 KiB without a line", strings.Repeat("b", MaxHead), ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if h, err := ParseHead([]byte(tt.in)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, %+v", err, h)
			}
		})
	}
}

func TestParseHeadLimits(t *testing.T) {
	in := "GET / HTTP/1.1\r\n" + strings.Repeat("a: b\r\n", MaxFields) + "\r\n"
	if h, err := ParseHead([]byte(in)); err != nil || len(h.Fields) != MaxFields {
		t.Errorf("%d fields: %v", len(h.Fields), err)
	}
	in = "GET / HTTP/1.1\r\na: "
	in += strings.Repeat("b", MaxHead-len(in)-4) + "\r\n\r\n"
	if h, err := ParseHead([]byte(in + "more")); err != nil || h.Len != MaxHead {
		t.Errorf("%d bytes: %v", h.Len, err)
	}
}

func TestPathAndAuthority(t *testing.T) {
	for _, tt := range []struct{ line, path, authority string }{
		{"GET /a?b=c HTTP/1.1", "/a", "host.test"},
		{"GET http://u:p@Other.test:81/a?b=c HTTP/1.1", "/a", "other.test:81"},
		{"CONNECT other.test:443 HTTP/1.1", "", "other.test:443"},
		{"OPTIONS * HTTP/1.1", "*", "host.test"},
		{"HTTP/1.1 200 OK", "", ""},
	} {
		h, err := ParseHead([]byte(tt.line + "\r\nHost: Host.test\r\n\r\n"))
		if err != nil || h.Path() != tt.path || h.Authority() != tt.authority {
			t.Errorf("%s: path %q, authority %q, %v", tt.line, h.Path(), h.Authority(), err)
		}
	}
}

// Heads that net/http writes are read as it reads them.
func TestAgainstNetHTTP(t *testing.T) {
	for i := range 100 {
		req, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("http://api.test/v%d?q=%d", i, i), bytes.NewReader(make([]byte, i)))
		req.Header.Set("X-Request-Id", strings.Repeat("ab", i))
		req.Header.Set("X-Api-Key", "sk-1")
		if i%3 == 0 {
			req.ContentLength = -1 // chunked
		}
		req.Close = i%2 == 0
		var wire bytes.Buffer
		if err := req.Write(&wire); err != nil {
			t.Fatal(err)
		}
		b := wire.Bytes()
		h, err := ParseHead(b)
		if err != nil {
			t.Fatal(err)
		}
		body := bufio.NewReader(bytes.NewReader(b))
		want, err := http.ReadRequest(body)
		if err != nil {
			t.Fatal(err)
		}
		if h.Method != want.Method || h.Target != want.RequestURI || h.ContentLength != want.ContentLength ||
			h.Chunked != (len(want.TransferEncoding) > 0) || h.Close != want.Close || h.Authority() != want.Host ||
			h.Len != bytes.Index(b, []byte("\r\n\r\n"))+4 {
			t.Errorf("got %+v, want %+v", h, want)
		}
		for _, f := range h.Fields {
			value := want.Header.Get(f.Name)
			switch f.Name {
			case "x-api-key":
				value = header.Present
			case "host":
				value = want.Host
			case "transfer-encoding":
				value = "chunked"
			case "connection":
				value = "close"
			}
			if f.Value != value {
				t.Errorf("%s: %q, want %q", f.Name, f.Value, value)
			}
		}
	}
}

func FuzzParseHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST http://a/b?c HTTP/1.0\nA: b\n c\nCookie: d\n e\n\n",
		"HTTP/1.1 101 \r\nConnection: upgrade, close\r\nUpgrade: x\r\n\r\n",
		"\r\n\r\nGET", "\x16\x03\x01",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHead(b)
		if err != nil {
			if !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
				t.Errorf("unexpected error %v", err)
			}
			if h.Len != 0 {
				t.Error("a head with an error")
			}
			return
		}
		if h.Len <= 0 || h.Len > len(b) || h.Len > MaxHead || len(h.Fields) > MaxFields || h.ContentLength < -1 ||
			h.Request == (h.Status != 0) || h.Request == (h.Method == "") {
			t.Errorf("%+v", h)
		}
		for _, field := range h.Fields {
			if header.Secret(field.Name) && field.Value != header.Present {
				t.Errorf("secret %q came out", field.Name)
			}
			if field.Name != strings.ToLower(field.Name) || strings.Contains(field.Value, "\n") {
				t.Errorf("field %q", field)
			}
		}
		// What the head said does not change with what follows it.
		if again, err := ParseHead(b[:h.Len]); err != nil || !reflect.DeepEqual(again, h) {
			t.Errorf("cut after the head: %+v, %v", again, err)
		}
	})
}

func BenchmarkParseHead(b *testing.B) {
	in := []byte("POST /v1/messages HTTP/1.1\r\nHost: api.test\r\nAccept: application/json\r\nContent-Type: application/json\r\n" +
		"User-Agent: client/1.0\r\nX-Api-Key: sk-1\r\nAnthropic-Version: 2023-06-01\r\nContent-Length: 512\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHead(in); err != nil {
			b.Fatal(err)
		}
	}
}

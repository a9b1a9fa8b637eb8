package tls

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
)

// capture returns a handshake message of testdata: captured from real
// clients against OpenSSL's server on loopback.
func capture(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func captures(t testing.TB, kind string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", kind+"-*.hex"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no captures of %s: %v", kind, err)
	}
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), ".hex")
	}
	return paths
}

// bytesConn is a connection on which a client has sent b.
type bytesConn struct {
	net.Conn
	r io.Reader
}

func (c bytesConn) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c bytesConn) Write(p []byte) (int, error) { return len(p), nil }
func (c bytesConn) Close() error                { return nil }

// serverView returns what crypto/tls reads from a hello.
func serverView(t *testing.T, msg []byte) *tls.ClientHelloInfo {
	t.Helper()
	record := append([]byte{22, 3, 1, byte(len(msg) >> 8), byte(len(msg))}, msg...)
	var info *tls.ClientHelloInfo
	stop := errors.New("seen")
	err := tls.Server(bytesConn{r: bytes.NewReader(record)}, &tls.Config{
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			info = i
			return nil, stop
		},
	}).Handshake()
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	return info
}

func convert[T ~uint16](vs []T) []uint16 {
	var out []uint16
	for _, v := range vs {
		out = append(out, uint16(v))
	}
	return out
}

func TestClientHelloAgainstCryptoTLS(t *testing.T) {
	for _, name := range captures(t, "client") {
		t.Run(name, func(t *testing.T) {
			msg := capture(t, name)
			h, err := ParseClientHello(msg)
			if err != nil {
				t.Fatal(err)
			}
			want := serverView(t, msg)
			for _, tt := range []struct {
				what      string
				got, want any
			}{
				{"SNI", h.SNI, want.ServerName},
				{"ALPN", h.ALPN, want.SupportedProtos},
				{"version", h.Version, slices.Max(want.SupportedVersions)},
				{"cipher suites", h.CipherSuites, want.CipherSuites},
				{"groups", h.Groups, convert(want.SupportedCurves)},
				{"signature algorithms", h.SignatureAlgorithms, convert(want.SignatureSchemes)},
				{"extensions", h.Extensions, want.Extensions},
			} {
				if !reflect.DeepEqual(tt.got, tt.want) {
					t.Errorf("%s: got %v, want %v", tt.what, tt.got, tt.want)
				}
			}
		})
	}
}

func TestClientHello(t *testing.T) {
	for _, tt := range []struct {
		name      string
		version   uint16
		sni       string
		alpn      []string
		shares    []uint16
		sessionID int
		psk       bool
	}{
		{name: "client-curl", version: 0x0304, sni: "api.example.test", alpn: []string{"h2", "http/1.1"}, shares: []uint16{29}, sessionID: 32},
		{name: "client-curl-tls12", version: 0x0303, sni: "api.example.test", alpn: []string{"http/1.1"}},
		{name: "client-go", version: 0x0304, sni: "api.example.test", alpn: []string{"h2", "http/1.1"}, shares: []uint16{4588, 29}, sessionID: 32},
		{name: "client-node", version: 0x0304, sni: "api.example.test", shares: []uint16{29}, sessionID: 32},
		{name: "client-python", version: 0x0304, sni: "api.example.test", shares: []uint16{29}, sessionID: 32},
		{name: "client-wget-gnutls", version: 0x0304, shares: []uint16{23, 29}, sessionID: 32},
		{name: "client-resume12", version: 0x0303, sessionID: 32},
		{name: "client-resume13", version: 0x0304, shares: []uint16{29}, sessionID: 32, psk: true},
	} {
		h, err := ParseClientHello(capture(t, tt.name))
		if err != nil {
			t.Fatal(err)
		}
		if h.Version != tt.version || h.SNI != tt.sni || !slices.Equal(h.ALPN, tt.alpn) || !slices.Equal(h.KeyShares, tt.shares) ||
			h.SessionIDLen != tt.sessionID || h.PSK != tt.psk {
			t.Errorf("%s: %+v", tt.name, h)
		}
	}
}

func TestServerHello(t *testing.T) {
	for _, tt := range []struct {
		name string
		want ServerHello
	}{
		{"server-tls13", ServerHello{Version: 0x0304, CipherSuite: 0x1302, Group: 29, SessionIDLen: 32}},
		{"server-tls12-dhe", ServerHello{Version: 0x0303, CipherSuite: 0x009f, ALPN: "http/1.1", SessionIDLen: 32}},
		{"server-hrr", ServerHello{Version: 0x0304, CipherSuite: 0x1302, Group: 25, HelloRetryRequest: true, SessionIDLen: 32}},
		{"server-after-hrr", ServerHello{Version: 0x0304, CipherSuite: 0x1302, Group: 25, SessionIDLen: 32}},
		{"server-resume13", ServerHello{Version: 0x0304, CipherSuite: 0x1302, Group: 29, PSK: true, SessionIDLen: 32}},
		{"server-resume12", ServerHello{Version: 0x0303, CipherSuite: 0xc030, SessionIDLen: 32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// In TLS 1.2 the server's certificate may share the record.
			got, err := ParseServerHello(append(capture(t, tt.name), 11, 0, 0, 9, 1, 2))
			if err != nil {
				t.Fatal(err)
			}
			got.sessionID, got.whole, got.versionSure = nil, false, false
			if !reflect.DeepEqual(*got, tt.want) {
				t.Errorf("got %+v, want %+v", *got, tt.want)
			}
		})
	}
}

func TestResumed(t *testing.T) {
	hello := func(session, ticket []byte) []byte {
		return clientHello(t, fields{version: 0x0303, session: session, suites: []uint16{0xc02f}, extensions: []ext{{extSessionTicket, ticket}}})
	}
	for _, tt := range []struct {
		name           string
		client, server []byte
		resumed, known bool
	}{
		{"1.3 by key", capture(t, "client-resume13"), capture(t, "server-resume13"), true, true},
		{"1.3 afresh", capture(t, "client-curl"), capture(t, "server-tls13"), false, true},
		{"1.3 refused", capture(t, "client-resume13"), capture(t, "server-tls13"), false, true},
		{"1.3 retry", capture(t, "client-curl"), capture(t, "server-hrr"), false, false},
		{"1.2 by session id", capture(t, "client-resume12"), capture(t, "server-resume12"), true, true},
		{"1.2 afresh", capture(t, "client-curl-tls12"), capture(t, "server-tls12-dhe"), false, true},
		{"1.2 other session id", capture(t, "client-resume12"), capture(t, "server-tls12-dhe"), false, true},
		{"1.2 ticket without session id", hello(nil, []byte{1}), capture(t, "server-tls12-dhe"), false, false},
		{"1.2 neither", hello(nil, nil), capture(t, "server-tls12-dhe"), false, true},
		{"client hello cut", capture(t, "client-curl-tls12")[:60], capture(t, "server-tls12-dhe"), false, false},
		{"server hello cut", capture(t, "client-resume13"), capture(t, "server-resume13")[:80], false, false},
	} {
		c, _ := ParseClientHello(tt.client)
		s, _ := ParseServerHello(tt.server)
		if resumed, known := Resumed(c, s); resumed != tt.resumed || known != tt.known {
			t.Errorf("%s: %v, %v", tt.name, resumed, known)
		}
	}
}

// A cut hello gives a part of what the whole one does, and nothing else.
func TestClientHelloCut(t *testing.T) {
	for _, name := range captures(t, "client") {
		msg := capture(t, name)
		whole, err := ParseClientHello(msg)
		if err != nil {
			t.Fatal(err)
		}
		for n := range msg {
			h, err := ParseClientHello(msg[:n])
			if !errors.Is(err, ErrTruncated) || errors.Is(err, ErrMalformed) || h == nil {
				t.Fatalf("%s, first %d bytes: %v", name, n, err)
			}
			if h.Version != 0 && h.Version != whole.Version || h.SNI != "" && h.SNI != whole.SNI || !prefix(h.ALPN, whole.ALPN) || !prefix(h.CipherSuites, whole.CipherSuites) ||
				!prefix(h.Groups, whole.Groups) || !prefix(h.KeyShares, whole.KeyShares) || !prefix(h.Extensions, whole.Extensions) ||
				!prefix(h.SignatureAlgorithms, whole.SignatureAlgorithms) || h.JA4('t') != "" {
				t.Fatalf("%s, first %d bytes: %+v", name, n, h)
			}
		}
		if more, err := ParseClientHello(append(msg, 1, 2, 3)); err != nil || !reflect.DeepEqual(more, whole) {
			t.Errorf("%s with bytes behind it: %+v, %v", name, more, err)
		}
	}
	// The name comes first in curl's hello, so a quarter of it will do.
	if h, _ := ParseClientHello(capture(t, "client-curl")[:180]); h.SNI != "api.example.test" {
		t.Errorf("no name in a cut hello: %+v", h)
	}
}

func TestServerHelloCut(t *testing.T) {
	for _, name := range captures(t, "server") {
		msg := capture(t, name)
		whole, err := ParseServerHello(msg)
		if err != nil {
			t.Fatal(err)
		}
		for n := range msg {
			h, err := ParseServerHello(msg[:n])
			if !errors.Is(err, ErrTruncated) {
				t.Fatalf("%s, first %d bytes: %v", name, n, err)
			}
			if h.Version != 0 && h.Version != whole.Version || h.CipherSuite != 0 && h.CipherSuite != whole.CipherSuite ||
				h.Group != 0 && h.Group != whole.Group || h.ALPN != "" && h.ALPN != whole.ALPN {
				t.Fatalf("%s, first %d bytes: %+v", name, n, h)
			}
		}
	}
}

func prefix[T comparable](part, whole []T) bool {
	return len(part) <= len(whole) && slices.Equal(part, whole[:len(part)])
}

func TestMalformed(t *testing.T) {
	whole := fields{version: 0x0303, suites: []uint16{0x1301}}
	with := func(id uint16, body ...byte) []byte {
		f := whole
		f.extensions = []ext{{id, body}}
		return clientHello(t, f)
	}
	cut := with(extServerName, 0, 9, 0, 0, 3, 'a', 0x1b, 'b', 0, 0, 9)
	for name, msg := range map[string][]byte{
		"not printable, and cut":    cut[:len(cut)-1],
		"other message":             {2, 0, 0, 0},
		"no body":                   {1, 0, 0, 0},
		"suites beyond the end":     append([]byte{1, 0, 0, 38, 3, 3}, append(make([]byte, 33), 0xff, 0xff, 0)...),
		"server name too long":      with(extServerName, 0, 4, 0, 0, 9, 'a'),
		"server name not printable": with(extServerName, 0, 6, 0, 0, 3, 'a', 0x1b, 'b'),
		"protocol too long":         with(extALPN, 0, 3, 9, 'h', '2'),
		"odd group list":            with(extSupportedGroups, 0, 3, 0, 29, 0),
		"key share cut":             with(extKeyShare, 0, 6, 0, 29, 0, 32, 1, 2),
	} {
		if h, err := ParseClientHello(msg); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, %+v", name, err, h)
		} else if h != nil && (h.SNI != "" || len(h.ALPN) > 0 || h.JA4('t') != "") {
			t.Errorf("%s: a guess: %+v", name, h)
		}
	}
	if _, err := ParseServerHello([]byte{1, 0, 0, 0}); !errors.Is(err, ErrMalformed) {
		t.Errorf("client hello as server hello: %v", err)
	}
}

// fields is what clientHello makes a hello of.
type fields struct {
	version    uint16
	session    []byte
	suites     []uint16
	extensions []ext
}

type ext struct {
	id   uint16
	body []byte
}

func clientHello(t testing.TB, f fields) []byte {
	t.Helper()
	var b cryptobyte.Builder
	b.AddUint8(typeClientHello)
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint16(f.version)
		b.AddBytes(make([]byte, 32))
		b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(f.session) })
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, s := range f.suites {
				b.AddUint16(s)
			}
		})
		b.AddBytes([]byte{1, 0})
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, e := range f.extensions {
				b.AddUint16(e.id)
				b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(e.body) })
			}
		})
	})
	msg, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func FuzzParseClientHello(f *testing.F) {
	for _, name := range captures(f, "client") {
		f.Add(capture(f, name))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, err := ParseClientHello(msg)
		if h == nil {
			if len(msg) == 0 || msg[0] == typeClientHello {
				t.Errorf("nothing read: %v", err)
			}
			return
		}
		if err != nil && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) {
			t.Errorf("unexpected error %v", err)
		}
		if (err == nil) != (len(h.JA4('t')) == len("t13d1516h2_8daaf6152771_e5627efa2ab1")) {
			t.Errorf("JA4 %q with error %v", h.JA4('t'), err)
		}
		if len(h.CipherSuites)+len(h.Groups)+len(h.KeyShares)+len(h.Extensions)+len(h.ALPN) > len(msg) {
			t.Error("more than there is")
		}
	})
}

func FuzzParseServerHello(f *testing.F) {
	for _, name := range captures(f, "server") {
		f.Add(capture(f, name))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, err := ParseServerHello(msg)
		if err != nil && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) {
			t.Errorf("unexpected error %v", err)
		}
		if h != nil && len(h.ALPN) > 255 {
			t.Errorf("protocol of %d bytes", len(h.ALPN))
		}
	})
}

func BenchmarkParseClientHello(b *testing.B) {
	msg := capture(b, "client-curl")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseClientHello(msg); err != nil {
			b.Fatal(err)
		}
	}
}

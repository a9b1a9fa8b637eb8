package tls

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
)

// parseList turns "002f,0035" into numbers.
func parseList(t *testing.T, list string) []uint16 {
	t.Helper()
	var vs []uint16
	for s := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseUint(s, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		vs = append(vs, uint16(v))
	}
	return vs
}

// The fingerprints are published ones: the specification's own example, and
// browsers' and tools' with the lists behind them.
func TestJA4Published(t *testing.T) {
	for _, tt := range []struct{ name, suites, extensions, algorithms, versions, alpn, want string }{
		{
			name:       "the specification's example, in its original order",
			suites:     "1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035",
			extensions: "001b,0000,0033,0010,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015",
			algorithms: "0403,0804,0401,0503,0805,0501,0806,0601",
			versions:   "0303,0304", alpn: "h2",
			want: "t13d1516h2_8daaf6152771_e5627efa2ab1",
		}, {
			name:       "the same with GREASE",
			suites:     "3a3a,1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035",
			extensions: "8a8a,001b,0000,0033,0010,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015,fafa",
			algorithms: "0403,0804,0401,0503,0805,0501,0806,0601",
			versions:   "eaea,0304,0303", alpn: "h2",
			want: "t13d1516h2_8daaf6152771_e5627efa2ab1",
		}, {
			name:       "Chrome with encrypted client hello",
			suites:     "002f,0035,009c,009d,1301,1302,1303,c013,c014,c02b,c02c,c02f,c030,cca8,cca9",
			extensions: "0000,0010,0005,000a,000b,000d,0012,0017,001b,0023,002b,002d,0033,44cd,fe0d,ff01",
			algorithms: "0403,0804,0401,0503,0805,0501,0806,0601",
			versions:   "0304,0303", alpn: "h2",
			want: "t13d1516h2_8daaf6152771_d8a2da3f94cd",
		}, {
			name:       "a client with a signalling suite",
			suites:     "00ff,1301,1302,1303,c02b,c02c,c02f,c030,cca8,cca9",
			extensions: "0000,0010,0005,000a,000b,000d,0017,0023,002b,002d,0033",
			algorithms: "0503,0403,0807,0806,0805,0804,0601,0501,0401",
			versions:   "0304,0303", alpn: "h2",
			want: "t13d1011h2_61a7ad8aa9b6_3fcd1a44f3e3",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fields{version: 0x0303, suites: parseList(t, tt.suites)}
			for _, id := range parseList(t, tt.extensions) {
				var b cryptobyte.Builder
				list := func(vs []uint16) func(*cryptobyte.Builder) {
					return func(b *cryptobyte.Builder) {
						for _, v := range vs {
							b.AddUint16(v)
						}
					}
				}
				switch id {
				case extSignatureAlgorithms:
					b.AddUint16LengthPrefixed(list(parseList(t, tt.algorithms)))
				case extSupportedVersions:
					b.AddUint8LengthPrefixed(list(parseList(t, tt.versions)))
				case extALPN:
					b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
						b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(tt.alpn)) })
					})
				case extSupportedGroups, extKeyShare, extServerName:
					b.AddUint16(0)
				}
				f.extensions = append(f.extensions, ext{id, b.BytesOrPanic()})
			}
			h, err := ParseClientHello(clientHello(t, f))
			if err != nil {
				t.Fatal(err)
			}
			if got := h.JA4('t'); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// The captured clients have the fingerprints that others publish for them.
func TestJA4Captured(t *testing.T) {
	for name, want := range map[string]string{
		"client-curl": "t13d3112h2_e8f1e7e78f70_b26ce05bbdd6",
		"client-go":   "t13d1312h2_f57a46bbacb6_ab7e3b40a677",
		"client-node": "t13d591000_a33745022dd6_1f22a2ca17c4",
	} {
		h, err := ParseClientHello(capture(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := h.JA4('t'); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestJA4(t *testing.T) {
	algorithms := []uint16{0x0403}
	for _, tt := range []struct {
		name      string
		hello     ClientHello
		transport byte
		want      string
	}{
		{"nothing", ClientHello{}, 't', "t00i000000_000000000000_000000000000"},
		{"QUIC", ClientHello{Version: 0x0304}, 'q', "q13i000000_000000000000_000000000000"},
		{"only SNI and ALPN", ClientHello{Version: 0x0303, Extensions: []uint16{0, 16}, SignatureAlgorithms: algorithms}, 't', "t12d000200_000000000000_000000000000"},
		{"no signature algorithms", ClientHello{Version: 0x0302,
			Extensions: []uint16{0x001b, 0, 0x33, 0x10, 0x4469, 0x17, 0x2d, 0xd, 5, 0x23, 0x12, 0x2b, 0xff01, 0xb, 0xa, 0x15}},
			't', "t11d001600_000000000000_6d807ffa2a79"},
		{"more than 99", ClientHello{Version: 0x0301, CipherSuites: make([]uint16, 100)}, 't', "t10i990000_" + ja4Hash(strings.Repeat("0000,", 99)+"0000") + "_000000000000"},
	} {
		tt.hello.whole = true
		if got := tt.hello.JA4(tt.transport); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestJA4ALPN(t *testing.T) {
	for _, tt := range []struct {
		protocols []string
		want      string
	}{
		{nil, "00"},
		{[]string{""}, "00"},
		{[]string{"h2", "http/1.1"}, "h2"},
		{[]string{"http/1.1"}, "h1"},
		{[]string{"x"}, "xx"},
		{[]string{"\xab"}, "ab"},
		{[]string{"\xab\xcd"}, "ad"},
		{[]string{"0\xab"}, "3b"},
		{[]string{"01\xab\xcd"}, "3d"},
		{[]string{"0\xab\xcd1"}, "01"},
		{[]string{"\x1a\x1a", "h2"}, "h2"},
	} {
		if got := ja4ALPN(tt.protocols); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.protocols, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{VersionName(0x0304), "1.3"},
		{VersionName(0x0303), "1.2"},
		{VersionName(0x7f1c), "0x7f1c"},
		{CipherName(0x1302), "TLS_AES_256_GCM_SHA384"},
		{CipherName(0xcca8), "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"},
		{CipherName(0x009f), "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"},
		{CipherName(0xc0ad), "TLS_ECDHE_ECDSA_WITH_AES_256_CCM"},
		{CipherName(0xccaa), "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256"},
		{CipherName(0x1234), "0x1234"},
		{VersionName(0) + CipherName(0) + GroupName(0), ""},
		{GroupName(29), "x25519"},
		{GroupName(23), "secp256r1"},
		{GroupName(4588), "X25519MLKEM768"},
		{GroupName(256), "ffdhe2048"},
		{GroupName(0x1a1a), "0x1a1a"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
}

package truth

import (
	"crypto/tls"
	"encoding/binary"
	"slices"
	"testing"
)

func tlsRecord(kind byte, length int) []byte {
	b := make([]byte, recordHeader+length)
	b[0] = kind
	binary.BigEndian.PutUint16(b[3:], uint16(length))
	return b
}

func TestRecordWalk(t *testing.T) {
	stream := slices.Concat(tlsRecord(22, 512), tlsRecord(20, 1), tlsRecord(23, 0), tlsRecord(23, 53), tlsRecord(23, 17+100))
	want := []record{{0, 517, 22}, {517, 523, 20}, {523, 528, 23}, {528, 586, 23}, {586, 708, 23}}
	for _, step := range []int{1, 3, 5, 100, len(stream)} {
		var w recordWalk
		for part := range slices.Chunk(stream, step) {
			w.feed(part)
		}
		if !slices.Equal(w.records, want) || w.pos != int64(len(stream)) {
			t.Errorf("in steps of %d: %v at %d, want %v", step, w.records, w.pos, want)
		}
	}
}

func TestMapping(t *testing.T) {
	const more = 17
	// Handshake, the Finished, then 100 and 50 bytes of plaintext.
	records := []record{{0, 500, 22}, {500, 558, 23}, {558, 558 + 5 + more + 100, 23}, {680, 680 + 5 + more + 50, 23}}
	m := newMapping(records, 0, 1, more)
	if m.sum() != 150 {
		t.Fatalf("plaintext %d, want 150", m.sum())
	}
	for _, tt := range []struct {
		lo, hi, wireLo, wireHi int64
		ok                     bool
	}{
		{0, 1, 558, 680, true}, {0, 100, 558, 680, true}, {0, 101, 558, 752, true}, {99, 100, 558, 680, true},
		{100, 150, 680, 752, true}, {149, 151, 0, 0, false}, {150, 151, 0, 0, false},
	} {
		lo, hi, ok := m.span(tt.lo, tt.hi)
		if lo != tt.wireLo || hi != tt.wireHi || ok != tt.ok {
			t.Errorf("span(%d, %d) = %d, %d, %v; want %d, %d, %v", tt.lo, tt.hi, lo, hi, ok, tt.wireLo, tt.wireHi, tt.ok)
		}
	}
	if got := newMapping(records, 600, 0, more).sum(); got != 50 {
		t.Errorf("plaintext from 600 on: %d, want 50", got)
	}
	if lo, hi, ok := (mapping{direct: true}).span(3, 9); lo != 3 || hi != 9 || !ok {
		t.Errorf("without TLS: %d, %d, %v", lo, hi, ok)
	}
}

func TestOverhead(t *testing.T) {
	for _, tt := range []struct {
		version, cipher uint16
		want            int64
	}{
		{tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256, 17},
		{tls.VersionTLS13, tls.TLS_CHACHA20_POLY1305_SHA256, 17},
		{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, 24},
		{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, 16},
	} {
		if got := overhead(tt.version, tt.cipher); got != tt.want {
			t.Errorf("%s, %s: %d, want %d", tls.VersionName(tt.version), tls.CipherSuiteName(tt.cipher), got, tt.want)
		}
	}
}

package tls

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// JA4 returns the hello's JA4 fingerprint as FoxIO specifies it, transport
// being 't' for TCP and 'q' for QUIC; "" for a hello that was not read whole,
// since a part of one has another fingerprint.
// https://github.com/FoxIO-LLC/ja4/blob/main/technical_details/JA4.md
func (h *ClientHello) JA4(transport byte) string {
	if !h.whole {
		return ""
	}
	suites, extensions := withoutGrease(h.CipherSuites), withoutGrease(h.Extensions)
	target := byte('i')
	if slices.Contains(extensions, extServerName) {
		target = 'd'
	}
	head := fmt.Sprintf("%c%s%c%02d%02d%s", transport, ja4Version(h.Version), target,
		min(len(suites), 99), min(len(extensions), 99), ja4ALPN(h.ALPN))

	slices.Sort(suites)
	slices.Sort(extensions)
	// SNI and ALPN depend on the target, not on the client.
	extensions = slices.DeleteFunc(extensions, func(e uint16) bool { return e == extServerName || e == extALPN })
	list := hexList(extensions)
	if algorithms := withoutGrease(h.SignatureAlgorithms); list != "" && len(algorithms) > 0 {
		list += "_" + hexList(algorithms)
	}
	return head + "_" + ja4Hash(hexList(suites)) + "_" + ja4Hash(list)
}

func ja4Version(v uint16) string {
	switch v {
	case 0x0304:
		return "13"
	case 0x0303:
		return "12"
	case 0x0302:
		return "11"
	case 0x0301:
		return "10"
	case 0x0300:
		return "s3"
	case 0x0002:
		return "s2"
	}
	return "00"
}

// ja4ALPN returns the first and the last character of the first protocol, of
// its hex form if one of them is neither letter nor digit.
func ja4ALPN(protocols []string) string {
	protocols = slices.DeleteFunc(slices.Clone(protocols), func(p string) bool {
		return len(p) == 2 && grease(uint16(p[0])<<8|uint16(p[1]))
	})
	if len(protocols) == 0 || protocols[0] == "" {
		return "00"
	}
	p := protocols[0]
	if !alphanumeric(p[0]) || !alphanumeric(p[len(p)-1]) {
		p = hex.EncodeToString([]byte(p))
	}
	return p[:1] + p[len(p)-1:]
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

func ja4Hash(list string) string {
	if list == "" {
		return "000000000000"
	}
	sum := sha256.Sum256([]byte(list))
	return hex.EncodeToString(sum[:6])
}

func hexList(vs []uint16) string {
	var b strings.Builder
	for i, v := range vs {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%04x", v)
	}
	return b.String()
}

func withoutGrease(vs []uint16) []uint16 {
	return slices.DeleteFunc(slices.Clone(vs), grease)
}

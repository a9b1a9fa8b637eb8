package tls

import (
	"crypto/tls"
	"fmt"
)

// VersionName returns a protocol version's number, "1.2" or "SSL 3.0", or
// its code in hex where it is not known; "" for 0.
func VersionName(v uint16) string {
	switch v {
	case 0:
		return ""
	case 0x0304:
		return "1.3"
	case 0x0303:
		return "1.2"
	case 0x0302:
		return "1.1"
	case 0x0301:
		return "1.0"
	case 0x0300:
		return "SSL 3.0"
	}
	return fmt.Sprintf("0x%04x", v)
}

// CipherName returns a cipher suite's name in IANA's registry, or its code in
// hex where it is not known; "" for 0. It knows those that Go does, and those
// of other libraries that authenticate by certificate.
func CipherName(c uint16) string {
	switch c {
	case 0:
		return ""
	case 0x0004:
		return "TLS_RSA_WITH_RC4_128_MD5"
	case 0x0016:
		return "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA"
	case 0x0033:
		return "TLS_DHE_RSA_WITH_AES_128_CBC_SHA"
	case 0x0039:
		return "TLS_DHE_RSA_WITH_AES_256_CBC_SHA"
	case 0x003d:
		return "TLS_RSA_WITH_AES_256_CBC_SHA256"
	case 0x0041:
		return "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA"
	case 0x0045:
		return "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA"
	case 0x0067:
		return "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256"
	case 0x006b:
		return "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256"
	case 0x0084:
		return "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA"
	case 0x0088:
		return "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA"
	case 0x009e:
		return "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256"
	case 0x009f:
		return "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"
	case 0x00ba:
		return "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA256"
	case 0x00be:
		return "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA256"
	case 0x00c0:
		return "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA256"
	case 0x00c4:
		return "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA256"
	case 0x00c6:
		return "TLS_SM4_GCM_SM3"
	case 0x00c7:
		return "TLS_SM4_CCM_SM3"
	case 0x1304:
		return "TLS_AES_128_CCM_SHA256"
	case 0x1305:
		return "TLS_AES_128_CCM_8_SHA256"
	case 0xc024:
		return "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"
	case 0xc028:
		return "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"
	case 0xc050:
		return "TLS_RSA_WITH_ARIA_128_GCM_SHA256"
	case 0xc051:
		return "TLS_RSA_WITH_ARIA_256_GCM_SHA384"
	case 0xc052:
		return "TLS_DHE_RSA_WITH_ARIA_128_GCM_SHA256"
	case 0xc053:
		return "TLS_DHE_RSA_WITH_ARIA_256_GCM_SHA384"
	case 0xc05c:
		return "TLS_ECDHE_ECDSA_WITH_ARIA_128_GCM_SHA256"
	case 0xc05d:
		return "TLS_ECDHE_ECDSA_WITH_ARIA_256_GCM_SHA384"
	case 0xc060:
		return "TLS_ECDHE_RSA_WITH_ARIA_128_GCM_SHA256"
	case 0xc061:
		return "TLS_ECDHE_RSA_WITH_ARIA_256_GCM_SHA384"
	case 0xc072:
		return "TLS_ECDHE_ECDSA_WITH_CAMELLIA_128_CBC_SHA256"
	case 0xc073:
		return "TLS_ECDHE_ECDSA_WITH_CAMELLIA_256_CBC_SHA384"
	case 0xc076:
		return "TLS_ECDHE_RSA_WITH_CAMELLIA_128_CBC_SHA256"
	case 0xc077:
		return "TLS_ECDHE_RSA_WITH_CAMELLIA_256_CBC_SHA384"
	case 0xc09c:
		return "TLS_RSA_WITH_AES_128_CCM"
	case 0xc09d:
		return "TLS_RSA_WITH_AES_256_CCM"
	case 0xc09e:
		return "TLS_DHE_RSA_WITH_AES_128_CCM"
	case 0xc09f:
		return "TLS_DHE_RSA_WITH_AES_256_CCM"
	case 0xc0a0:
		return "TLS_RSA_WITH_AES_128_CCM_8"
	case 0xc0a1:
		return "TLS_RSA_WITH_AES_256_CCM_8"
	case 0xc0a2:
		return "TLS_DHE_RSA_WITH_AES_128_CCM_8"
	case 0xc0a3:
		return "TLS_DHE_RSA_WITH_AES_256_CCM_8"
	case 0xc0ac:
		return "TLS_ECDHE_ECDSA_WITH_AES_128_CCM"
	case 0xc0ad:
		return "TLS_ECDHE_ECDSA_WITH_AES_256_CCM"
	case 0xc0ae:
		return "TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8"
	case 0xc0af:
		return "TLS_ECDHE_ECDSA_WITH_AES_256_CCM_8"
	case 0xccaa:
		return "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
	}
	return tls.CipherSuiteName(c)
}

// GroupName returns a key exchange group's name in IANA's registry, or its
// code in hex where it is not known; "" for 0.
func GroupName(g uint16) string {
	switch g {
	case 0:
		return ""
	case 19:
		return "secp192r1"
	case 21:
		return "secp224r1"
	case 22:
		return "secp256k1"
	case 23:
		return "secp256r1"
	case 24:
		return "secp384r1"
	case 25:
		return "secp521r1"
	case 26:
		return "brainpoolP256r1"
	case 27:
		return "brainpoolP384r1"
	case 28:
		return "brainpoolP512r1"
	case 29:
		return "x25519"
	case 30:
		return "x448"
	case 31:
		return "brainpoolP256r1tls13"
	case 32:
		return "brainpoolP384r1tls13"
	case 33:
		return "brainpoolP512r1tls13"
	case 41:
		return "curveSM2"
	case 256:
		return "ffdhe2048"
	case 257:
		return "ffdhe3072"
	case 258:
		return "ffdhe4096"
	case 259:
		return "ffdhe6144"
	case 260:
		return "ffdhe8192"
	case 512:
		return "MLKEM512"
	case 513:
		return "MLKEM768"
	case 514:
		return "MLKEM1024"
	case 4587:
		return "SecP256r1MLKEM768"
	case 4588:
		return "X25519MLKEM768"
	case 4589:
		return "SecP384r1MLKEM1024"
	case 4590:
		return "curveSM2MLKEM768"
	case 25497:
		return "X25519Kyber768Draft00"
	case 25498:
		return "SecP256r1Kyber768Draft00"
	}
	return fmt.Sprintf("0x%04x", g)
}

// Package header is the one place that knows the names of HTTP header fields:
// which hold secrets, which are kept, and how a target becomes a path.
package header

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Present stands for a secret's value wherever a field is stored or sent.
const Present = "present"

// Field is a header field. Name is in lower case; Value is Present where the
// name is a secret's.
type Field struct{ Name, Value string }

// Secret reports whether the values of fields called name may be credentials.
// Case does not matter. It errs on the side of yes: a name that ends as names
// of credentials do counts as one.
func Secret(name string) bool {
	if hasUpper(name) {
		name = strings.ToLower(name)
	}
	switch name {
	case "authorization", "proxy-authorization", "authentication-info", "proxy-authentication-info",
		"www-authenticate", "proxy-authenticate", "cookie", "cookie2", "set-cookie", "set-cookie2",
		"auth", "token", "apikey", "x-apikey", "password", "secret", "jwt", "session",
		"x-forwarded-client-cert":
		return true
	}
	// The last word decides: "x-api-key", "x-goog-iap-jwt-assertion".
	// Counts of tokens, as in "ratelimit-remaining-tokens", are not meant.
	switch name[strings.LastIndexByte(name, '-')+1:] {
	case "key", "token", "secret", "password", "passwd", "auth", "authorization", "jwt", "assertion",
		"credential", "credentials", "signature", "cookie", "session", "sessionid":
		return strings.Contains(name, "-")
	}
	return strings.HasSuffix(name, "-session-id") || strings.Contains(name, "-key-")
}

// Name returns the field name b in lower case, without an allocation where
// the name is a common one.
func Name(b []byte) string {
	var scratch [64]byte
	b = append(scratch[:0], b...)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	// The compiler looks b up without making a string of it.
	switch string(b) {
	case "accept":
		return "accept"
	case "accept-encoding":
		return "accept-encoding"
	case "authorization":
		return "authorization"
	case "cache-control":
		return "cache-control"
	case "cf-ray":
		return "cf-ray"
	case "connection":
		return "connection"
	case "content-encoding":
		return "content-encoding"
	case "content-length":
		return "content-length"
	case "content-type":
		return "content-type"
	case "cookie":
		return "cookie"
	case "date":
		return "date"
	case "grpc-message":
		return "grpc-message"
	case "grpc-status":
		return "grpc-status"
	case "host":
		return "host"
	case "keep-alive":
		return "keep-alive"
	case "request-id":
		return "request-id"
	case "retry-after":
		return "retry-after"
	case "server":
		return "server"
	case "server-timing":
		return "server-timing"
	case "set-cookie":
		return "set-cookie"
	case "te":
		return "te"
	case "traceparent":
		return "traceparent"
	case "transfer-encoding":
		return "transfer-encoding"
	case "user-agent":
		return "user-agent"
	case "vary":
		return "vary"
	case "via":
		return "via"
	case "x-api-key":
		return "x-api-key"
	case "x-request-id":
		return "x-request-id"
	}
	return string(b)
}

// Path returns the path of a request target in any of the forms of RFC 9112
// section 3.2, and of HTTP/2's :path: without query and fragment, and of an
// absolute-form target without scheme and authority, which may hold
// credentials. "*" stays; the authority-form of CONNECT has no path: "".
func Path(target string) string {
	if target == "*" {
		return target
	}
	if !strings.HasPrefix(target, "/") {
		after, ok := cutScheme(target)
		if !ok {
			return ""
		}
		slash := strings.IndexAny(after, "/?#")
		if slash < 0 || after[slash] != '/' {
			return "/"
		}
		target = after[slash:]
	}
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	return Clean(target)
}

// Authority returns host and port of an absolute-form target, or of CONNECT's
// authority-form, in lower case and without user information; "" for the
// other forms of RFC 9112 section 3.2. It takes HTTP/2's :authority and the
// Host field too.
func Authority(target string) string {
	if target == "*" || strings.HasPrefix(target, "/") {
		return ""
	}
	if after, ok := cutScheme(target); ok {
		target = after
	}
	if i := strings.IndexAny(target, "/?#"); i >= 0 {
		target = target[:i]
	}
	target = target[strings.LastIndexByte(target, '@')+1:]
	return Clean(strings.ToLower(target))
}

// cutScheme returns what follows "scheme://" (RFC 3986 section 3.1).
func cutScheme(target string) (rest string, ok bool) {
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok || scheme == "" {
		return "", false
	}
	for _, c := range []byte(scheme) {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z', '0' <= c && c <= '9', c == '+', c == '-', c == '.':
		default:
			return "", false
		}
	}
	return rest, true
}

// Clean returns s as it is safe to print: control characters, which could
// command a terminal, and bytes that are not UTF-8 become U+FFFD.
func Clean(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return strings.Map(func(r rune) rune {
				if unicode.IsControl(r) {
					return utf8.RuneError
				}
				return r
			}, s)
		}
	}
	return s
}

func hasUpper(s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return true
		}
	}
	return false
}

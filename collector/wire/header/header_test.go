package header

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSecret(t *testing.T) {
	for name, want := range map[string]bool{
		"authorization":             true,
		"Authorization":             true,
		"proxy-authorization":       true,
		"x-forwarded-authorization": true,
		"cookie":                    true,
		"Set-Cookie":                true,
		"x-api-key":                 true,
		"X-API-KEY":                 true,
		"api-key":                   true,
		"x-goog-api-key":            true,
		"x-amz-security-token":      true,
		"x-csrf-token":              true,
		"x-vault-secret":            true,
		"x-goog-iap-jwt-assertion":  true,
		"mcp-session-id":            true,
		"anthropic-key-hash":        true,
		"idempotency-key":           true,
		"www-authenticate":          true,

		"":                                       false,
		":authority":                             false,
		":path":                                  false,
		"x-anthropic-ratelimit-remaining-tokens": false,
		"x-request-id":                           false,
		"content-type":                           false,
		"monkey":                                 false,
		"traceparent":                            false,
		"x-claude-scope-hash":                    false,
		"x-anthropic-layer":                      false,
	} {
		if got := Secret(name); got != want {
			t.Errorf("Secret(%q) = %v", name, got)
		}
	}
}

func TestPolicy(t *testing.T) {
	p := NewPolicy([]string{"X-Debug", " x-mine-* ", "x-my-token", ""})
	for _, tt := range []struct {
		name, value, want string
		kept              bool
	}{
		{"x-anthropic-layer", "zero-latency-v2", "zero-latency-v2", true},
		{"x-claude-layer", "v2.1.0-alpha", "v2.1.0-alpha", true},
		{"x-claude-scope-hash", "0123456789abcdef", "0123456789abcdef", true},
		{"x-anthropic-ratelimit-remaining-tokens", "999999", "999999", true},
		{"anthropic-ratelimit-requests-reset", "0", "0", true},
		{"x-ratelimit-remaining", "7", "7", true},
		{"retry-after", "1", "1", true},
		{"server-timing", "edge; dur=3", "edge; dur=3", true},
		{"cf-ray", "8f0-FRA", "8f0-FRA", true},
		{"authorization", "Bearer abc", Present, true},
		{"x-api-key", "sk-ant-1", Present, true},
		{"set-cookie", "a=b", Present, true},
		{"x-other-token", "abc", "", false},
		{"x-secret-plans", "abc", "", false},
		{"accept-language", "de", "", false},
		{"", "x", "", false},
		{"x-debug", "legacy", "legacy", true},
		{"x-mine-own", "1", "1", true},
		{"x-mine", "1", "", false},
		{"x-my-token", "abc", Present, true},
		{"via", "1.1 \x1b[2Jproxy", "1.1 \ufffd[2Jproxy", true},
		{"server", strings.Repeat("a", MaxValue+1), strings.Repeat("a", MaxValue), true},
	} {
		if got, kept := p.Keep(tt.name, tt.value); got != tt.want || kept != tt.kept {
			t.Errorf("Keep(%q, %.40q) = %q, %v", tt.name, tt.value, got, kept)
		}
	}
}

// Every name on the default list can be looked up as it is written there.
func TestPolicyDefaults(t *testing.T) {
	p := NewPolicy(nil)
	for name := range strings.FieldsSeq(kept) {
		if _, ok := p.Keep(strings.TrimSuffix(name, "*"), "x"); !ok || name != strings.ToLower(name) {
			t.Errorf("%q is not kept", name)
		}
	}
}

func TestPathAndAuthority(t *testing.T) {
	for _, tt := range []struct{ target, path, authority string }{
		{"/v1/messages", "/v1/messages", ""},
		{"/v1/messages?key=sk-1", "/v1/messages", ""},
		{"/a#b?c", "/a", ""},
		{"/a?b#c", "/a", ""},
		{"/?x", "/", ""},
		{"/redirect?to=https://user:pw@host/x", "/redirect", ""},
		{"//host/x", "//host/x", ""},
		{"*", "*", ""},
		{"", "", ""},
		{"http://Example.test", "/", "example.test"},
		{"http://example.test?key=1", "/", "example.test"},
		{"http://example.test?a=/b", "/", "example.test"},
		{"http://user:pw@example.test:8080/a/b?c=d", "/a/b", "example.test:8080"},
		{"HTTPS://[2001:db8::1]:443/a", "/a", "[2001:db8::1]:443"},
		{"example.test:443", "", "example.test:443"},
		{"user@example.test", "", "example.test"},
		{"example.test/secret?x", "", "example.test"},
		{"/a\x1b[31m", "/a\ufffd[31m", ""},
		{"/\xff", "/\ufffd", ""},
	} {
		if got := Path(tt.target); got != tt.path {
			t.Errorf("Path(%q) = %q, want %q", tt.target, got, tt.path)
		}
		if got := Authority(tt.target); got != tt.authority {
			t.Errorf("Authority(%q) = %q, want %q", tt.target, got, tt.authority)
		}
	}
}

func TestName(t *testing.T) {
	for _, name := range []string{"Content-Type", "X-API-KEY", "x-request-id", "X-Own_name.1", "", strings.Repeat("Ab", 100)} {
		b := []byte(name)
		if got := Name(b); got != strings.ToLower(name) || string(b) != name {
			t.Errorf("Name(%q) = %q and leaves %q", name, got, b)
		}
	}
	common := []byte("Content-Type")
	if n := testing.AllocsPerRun(100, func() { Name(common) }); n != 0 {
		t.Errorf("a common name allocates %v times", n)
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/a?b", "http://u:p@h:1/a?b", "*", "h:443", "://", "http://", "a://b?c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		path, authority := Path(target), Authority(target)
		if strings.ContainsAny(path, "?#\x1b\n") || strings.ContainsAny(authority, "?#@/\x1b\n") {
			t.Errorf("%q: path %q, authority %q", target, path, authority)
		}
		if !utf8.ValidString(path) || !utf8.ValidString(authority) {
			t.Errorf("%q: not UTF-8", target)
		}
		if again := Path(path); path != "" && again != path {
			t.Errorf("Path(%q) = %q, then %q", target, path, again)
		}
	})
}

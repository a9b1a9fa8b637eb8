package header

import (
	"maps"
	"slices"
	"strings"
)

// MaxValue is the most bytes of a value that a Policy keeps.
const MaxValue = 1024

// kept lists the fields that are kept by default: what published claims speak
// of, what tells where a message went and where its time did, and what framing
// and retries rest on. Secrets are on it so that their presence shows. A name
// that ends in * stands for all that begin so.
const kept = `
x-anthropic-layer x-claude-layer x-claude-scope-hash x-system-prompt-length
anthropic-version anthropic-beta
anthropic-ratelimit-* x-anthropic-ratelimit-* x-ratelimit-* ratelimit ratelimit-*
retry-after retry-after-ms x-should-retry x-stainless-retry-count grpc-retry-pushback-ms grpc-previous-rpc-attempts

server-timing via server age x-cache x-served-by x-envoy-upstream-service-time openai-processing-ms
x-kong-upstream-latency x-kong-proxy-latency x-runtime x-response-time
cf-ray cf-cache-status x-amz-cf-id x-amz-cf-pop alt-svc

request-id x-request-id x-correlation-id x-amzn-requestid x-amzn-trace-id x-ms-request-id apim-request-id
x-cloud-trace-context traceparent

content-type content-length content-encoding transfer-encoding accept-encoding
connection keep-alive upgrade expect priority te user-agent x-accel-buffering cache-control
grpc-status grpc-timeout grpc-encoding

authorization proxy-authorization x-api-key api-key x-goog-api-key cookie set-cookie idempotency-key
`

// Policy says which fields are kept. It is for many goroutines at once.
type Policy struct {
	names    map[string]bool
	prefixes []string
}

// NewPolicy returns the policy that keeps the default fields and those named
// in extra, in any case; a trailing * stands for all that begin so.
func NewPolicy(extra []string) *Policy {
	p := &Policy{names: make(map[string]bool)}
	prefixes := make(map[string]bool)
	for _, name := range slices.Concat(strings.Fields(kept), extra) {
		name = strings.ToLower(strings.TrimSpace(name))
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			prefixes[prefix] = true
		} else if name != "" {
			p.names[name] = true
		}
	}
	p.prefixes = slices.Sorted(maps.Keys(prefixes))
	return p
}

// Keep returns what is kept of a field's value: Present for a secret, else
// the value, cut after MaxValue bytes and cleaned. It is false when the field
// is not kept. The name is in lower case.
func (p *Policy) Keep(name, value string) (string, bool) {
	if !p.names[name] && !slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return "", false
	}
	if Secret(name) {
		return Present, true
	}
	if len(value) > MaxValue {
		value = strings.Clone(value[:MaxValue]) // lets go of the rest
	}
	return Clean(value), true
}

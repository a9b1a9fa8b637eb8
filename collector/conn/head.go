package conn

import (
	"slices"
	"strconv"
	"strings"

	"github.com/peel-dev/peel/collector/wire/header"
	"github.com/peel-dev/peel/collector/wire/http1"
	"github.com/peel-dev/peel/collector/wire/http2"
)

// head is what a record keeps of a message's head. The tracker has one, which
// every message uses anew.
type head struct {
	policy *header.Policy
	field  func(http2.Field)

	method, authority, path string
	contentType             string
	status                  int
	length                  int64 // Content-Length; 0: none
	grpc                    int
	hasGRPC                 bool
	unknown                 bool // a field was not known
	fields                  []header.Field
}

func (h *head) reset() {
	*h = head{policy: h.policy, field: h.field, fields: h.fields[:0]}
}

// take makes h what from is, with fields of its own.
func (h *head) take(from *head) {
	fields := append(h.fields[:0], from.fields...)
	policy, field := h.policy, h.field
	*h = *from
	h.policy, h.field, h.fields = policy, field, fields
}

// add takes in a field of an HTTP/2 header block.
func (h *head) add(f http2.Field) {
	if f.Unknown {
		h.unknown = true
		return
	}
	if len(f.Name) > 0 && f.Name[0] == ':' {
		switch f.Name {
		case ":method":
			h.method = f.Value
		case ":authority":
			h.authority = header.Authority(f.Value)
		case ":path":
			h.path = header.Path(f.Value)
		case ":status":
			h.status, _ = strconv.Atoi(f.Value)
		}
		return
	}
	h.keep(f.Name, f.Value)
}

func (h *head) keep(name, value string) {
	switch name {
	case "host":
		if h.authority == "" {
			h.authority = header.Authority(value)
		}
	case "content-type":
		h.contentType = value
	case "content-length":
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n > 0 {
			h.length = n
		}
	case "grpc-status":
		if n, err := strconv.Atoi(value); err == nil {
			h.grpc, h.hasGRPC = n, true
		}
	}
	if h.policy == nil {
		return
	}
	if value, ok := h.policy.Keep(name, value); ok {
		h.fields = append(h.fields, header.Field{Name: name, Value: value})
	}
}

// message takes in an HTTP/1 head.
func (h *head) message(m *http1.Head) {
	h.reset()
	h.method, h.status = m.Method, m.Status
	for _, f := range m.Fields {
		h.keep(f.Name, f.Value)
	}
	h.authority, h.path = m.Authority(), m.Path()
}

// hostOnly takes the port off an authority and the brackets off an IPv6
// address.
func hostOnly(authority string) string {
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && strings.IndexByte(authority[i:], ']') < 0 {
		if strings.IndexByte(authority[:i], ':') < 0 || strings.HasPrefix(authority, "[") {
			authority = authority[:i]
		}
	}
	return strings.Trim(authority, "[]")
}

// fieldsCache shares one map between messages that carry the same fields.
type fieldsCache struct {
	fields []header.Field
	m      map[string]string
}

func (c *fieldsCache) get(fields []header.Field) map[string]string {
	if len(fields) == 0 {
		return nil
	}
	if slices.Equal(fields, c.fields) {
		return c.m
	}
	c.fields = append(c.fields[:0], fields...)
	c.m = make(map[string]string, len(fields))
	for _, f := range fields {
		if v, ok := c.m[f.Name]; ok {
			c.m[f.Name] = v + ", " + f.Value
		} else {
			c.m[f.Name] = f.Value
		}
	}
	return c.m
}

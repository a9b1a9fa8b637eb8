package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/peel-dev/peel/collector/testbed"
)

// TestNothingPrivateGetsOut marks everything private of a request and looks
// for the marks in all that peel says and writes.
func TestNothingPrivateGetsOut(t *testing.T) {
	t.Parallel()
	const mark = "Pr1vate"
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Set-Cookie", "session="+mark+"SetCookie")
		w.Header().Set("X-Session-Token", mark+"Token")
		w.Header().Set("Location", "/elsewhere?key="+mark+"Location")
		w.Header().Set("X-Request-Id", "public-id")
		for range 3 {
			io.WriteString(w, mark+"ResponseBody")
			w.(http.Flusher).Flush()
		}
	})
	secure, plain := serve(t, handler)
	headers := []string{
		"-H", "authorization: Bearer " + mark + "Authorization", "-H", "X-API-Key: " + mark + "Key", "-H", "api-key: " + mark + "AzureKey",
		"-H", "proxy-authorization: Basic " + mark, "-H", "X-Goog-Api-Key: " + mark, "-H", "x-amz-security-token: " + mark,
		"-H", "cookie: session=" + mark + "Cookie", "-H", "x-private: " + mark, "-H", "referer: https://x.test/?q=" + mark, "-H", "x-request-id: public-id",
	}
	path := "/v1/messages?key=" + mark + "Query#" + mark + "Fragment"
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"h2", []string{"https://" + secure + path}},
		{"h1 TLS", []string{"--http1.1", "https://" + secure + path}},
		{"plain", []string{"http://" + plain + path}},
		{"password in the URL", []string{"http://" + mark + "User:" + mark + "Password@" + plain + path}},
		{"through a proxy", []string{"--proxy", "http://" + mark + ":" + mark + "@" + plain, "http://x.test" + path}},
		{"chunked", []string{"-H", "Transfer-Encoding: chunked", "--http1.1", "https://" + secure + path}},
		{"long body", []string{"-H", "Expect:", "-d", strings.Repeat(mark+"RequestBody", 5000), "https://" + secure + path}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "exchanges.jsonl")
			args := []string{"run", "--debug", "--write", file, "--header", "authorization,cookie,set-cookie,x-api-key,x-session-token", "--",
				"curl", "-sSk", "-m", "10", "-o", "/dev/null", "-d", mark + "RequestBody"}
			r := peel(t, append(append(args, headers...), tt.args...)...)
			written, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			records := readRecords(t, file)
			if r.code != 0 || len(records) != 1 || !records[0].Quality.Complete {
				t.Fatalf("status %d, %d exchanges\n%s", r.code, len(records), r.stderr)
			}
			for what, text := range map[string]string{"the file": string(written), "standard error": r.stderr, "standard output": r.stdout} {
				// The command line is not peel's to tell either.
				if i := strings.Index(text, mark); i >= 0 {
					t.Errorf("%s has %q", what, text[max(0, i-80):min(len(text), i+60)])
				}
			}
			h := records[0].HTTP
			if !strings.HasSuffix(h.Path, "/v1/messages") || h.RequestHeaders["x-request-id"] != "public-id" || h.ResponseHeaders["x-request-id"] != "public-id" {
				t.Errorf("what is public is not there: %+v", *h)
			}
			for _, name := range []string{"authorization", "x-api-key", "cookie"} {
				if h.RequestHeaders[name] != "present" {
					t.Errorf("%s is %q, want present", name, h.RequestHeaders[name])
				}
			}
			if h.ResponseHeaders["set-cookie"] != "present" {
				t.Errorf("set-cookie is %q, want present", h.ResponseHeaders["set-cookie"])
			}
		})
	}
}

// serve serves handler over TLS, HTTP/2 and 1.1, and without.
func serve(t testing.TB, handler http.Handler) (secure, plain string) {
	t.Helper()
	_, cert, key := testbed.Certificate(t)
	s := &http.Server{Handler: handler}
	l, p := testbed.Listen(t), testbed.Listen(t)
	go s.ServeTLS(l, cert, key)
	go s.Serve(p)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String(), p.Addr().String()
}

// Package testbed starts the real programs and servers that peel's privileged
// tests observe. Only tests use it.
package testbed

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Python is Debian's, whose ssl module uses the system's libssl.
const Python = "/usr/bin/python3"

// Check says what the tests lack on this host: root, or programs.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("these tests load BPF programs: run go test as root, for example with sudo -E env PATH=\"$PATH\"")
	}
	packages := map[string]string{
		"curl": "curl", "nghttp": "nghttp2-client", "h2load": "nghttp2-client", "nghttpd": "nghttp2-server",
		"nginx": "nginx", Python: "python3", "setpriv": "util-linux", "unshare": "util-linux",
	}
	var lacks, install []string
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program)
			install = append(install, pkg)
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("these tests need %s:\n  apt-get install -y %s", strings.Join(lacks, ", "), strings.Join(install, " "))
	}
	return nil
}

// Main runs a package's tests, or says what they lack.
func Main(m *testing.M) int {
	if err := Check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Certificate makes a self-signed one for localhost, and its two files.
func Certificate(t testing.TB) (cert tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	WriteFile(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	WriteFile(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, certFile, keyFile
}

// WriteFile writes a file of a test.
func WriteFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Port returns a TCP port of loopback that was free a moment ago.
func Port(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Start starts a program that ends with the test.
func Start(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // nobody else holds its output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed, as a rule
		if t.Failed() && output.Len() > 0 {
			t.Logf("%s:\n%s", program, output.Bytes())
		}
	})
	return cmd
}

// Wait returns when something accepts connections at addr.
func Wait(t testing.TB, addr string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return
		}
	}
	t.Fatalf("nothing listens at %s", addr)
}

// SmallSize is the size of the file that Nghttpd and Nginx serve as /small.
const SmallSize = 1000

// Folder makes a folder of files to serve: small, and big of 200 kB.
func Folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	WriteFile(t, filepath.Join(dir, "small"), bytes.Repeat([]byte("s"), SmallSize))
	WriteFile(t, filepath.Join(dir, "big"), bytes.Repeat([]byte("b"), 200_000))
	return dir
}

// Nghttpd serves Folder over HTTP/2 and TLS (without it when args has
// --no-tls) and returns the address.
func Nghttpd(t testing.TB, args ...string) string {
	t.Helper()
	_, cert, key := Certificate(t)
	port := Port(t)
	args = append(args, "-a", "127.0.0.1", "-d", Folder(t), strconv.Itoa(port), key, cert)
	Start(t, "nghttpd", args...)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	Wait(t, addr)
	return addr
}

// Nginx is a running nginx: HTTP/1.1 and 2 over TLS, on IPv4 and IPv6, and
// HTTP/1.1 without. /small and /big are files, /upload takes a whole body before
// it answers "ok", all else is 404.
type Nginx struct {
	TLS, TLS6, Plain string
	log              string
}

// LogLine is what nginx knows of a request.
type LogLine struct {
	Status       int
	Method, Path string
	BodyBytes    int64  // of the answer
	Protocol     string // "HTTP/2.0"
	Connection   int
	Sequence     int // on that connection, from 1
}

// StartNginx starts an nginx.
func StartNginx(t testing.TB) *Nginx {
	t.Helper()
	_, cert, key := Certificate(t)
	dir, secure, plain, backend := t.TempDir(), Port(t), Port(t), Port(t)
	n := &Nginx{
		TLS:   fmt.Sprintf("127.0.0.1:%d", secure),
		TLS6:  fmt.Sprintf("[::1]:%d", secure),
		Plain: fmt.Sprintf("127.0.0.1:%d", plain),
		log:   filepath.Join(dir, "access.log"),
	}
	conf := fmt.Sprintf(`
daemon off;
master_process off;
pid %[1]s/pid;
error_log stderr;
events {}
http {
	log_format facts '$status $request_method $uri $body_bytes_sent $server_protocol $connection $connection_requests';
	access_log %[1]s/access.log facts;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	client_max_body_size 10m;
	server {
		listen 127.0.0.1:%[2]d ssl http2;
		listen [::1]:%[2]d ssl http2;
		listen 127.0.0.1:%[3]d;
		ssl_protocols TLSv1.2 TLSv1.3;
		ssl_certificate %[5]s;
		ssl_certificate_key %[6]s;
		root %[7]s;
		location /upload { proxy_pass http://127.0.0.1:%[4]d; }
	}
	server {
		listen 127.0.0.1:%[4]d;
		access_log off;
		return 200 ok;
	}
}
`, dir, secure, plain, backend, cert, key, Folder(t))
	file := filepath.Join(dir, "nginx.conf")
	WriteFile(t, file, []byte(conf))
	Start(t, "nginx", "-p", dir, "-c", file)
	Wait(t, n.TLS)
	Wait(t, n.TLS6)
	Wait(t, n.Plain)
	return n
}

// Log waits until nginx has logged n requests and returns them all.
func (n *Nginx) Log(t testing.TB, requests int) []LogLine {
	t.Helper()
	var lines []LogLine
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(n.log)
		if err != nil {
			t.Fatal(err)
		}
		lines = lines[:0]
		for line := range strings.Lines(string(text)) {
			var l LogLine
			if _, err := fmt.Sscan(line, &l.Status, &l.Method, &l.Path, &l.BodyBytes, &l.Protocol, &l.Connection, &l.Sequence); err != nil {
				t.Fatalf("nginx logged %q: %v", line, err)
			}
			lines = append(lines, l)
		}
		if len(lines) >= requests {
			break
		}
	}
	return lines
}

// Serve hands each connection that l accepts to handle, on its own goroutine,
// and closes it after; it ends with the test.
func Serve(t testing.TB, l net.Listener, handle func(net.Conn)) string {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				handle(c)
			}()
		}
	}()
	return l.Addr().String()
}

// Listen listens on loopback; with protos it speaks TLS and offers them.
func Listen(t testing.TB, protos ...string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if len(protos) == 0 {
		return l
	}
	cert, _, _ := Certificate(t)
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: protos})
}

// Drain reads what comes until the connection ends.
func Drain(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

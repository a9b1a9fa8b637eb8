package vmtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/peel-dev/peel/collector"
)

// TestBothEnds observes curl and nghttpd, which share a connection.
func TestBothEnds(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), bytes.Repeat([]byte("x"), answerBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	key, cert := certificate(t)
	peer := freePort(t)
	o := observe(t, collector.Config{Choice: collector.Choice{Role: "both"}})
	server := exec.CommandContext(t.Context(), "nghttpd", "--htdocs", dir, "--address", peer.Addr().String(),
		strconv.Itoa(int(peer.Port())), key, cert)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Wait() })
	awaitListening(t, peer)
	client := exec.Command("curl", "--silent", "--show-error", "--fail", "--insecure", "--http2",
		"--output", "/dev/null", fmt.Sprintf("https://%s/file", peer))
	if out, err := client.CombinedOutput(); err != nil {
		t.Fatalf("curl: %v: %s", err, out)
	}
	records, report := o.end(t)
	checkReport(t, report)

	pids := map[string]int{"client": client.Process.Pid, "server": server.Process.Pid}
	for _, r := range records {
		pid, ok := pids[r.Role]
		delete(pids, r.Role)
		if !ok || r.HTTP == nil || r.HTTP.Path != "/file" || r.HTTP.Status != http.StatusOK ||
			r.HTTP.ResponseBodyBytes != answerBytes || int(r.Process.PID) != pid ||
			!r.Quality.Plaintext || !r.Quality.Complete || r.Quality.LostEvents != 0 {
			t.Errorf("%s (pid %d): %+v %+v %+v %+v", r.Role, pid, r.Process, r.Connection, r.HTTP, r.Quality)
		}
	}
	if len(pids) > 0 {
		t.Errorf("no record of %v", pids)
	}
}

// certificate makes a self-signed one and returns its files.
func certificate(t *testing.T) (key, cert string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, cert = filepath.Join(dir, "key"), filepath.Join(dir, "cert")
	for file, block := range map[string]*pem.Block{
		key:  {Type: "PRIVATE KEY", Bytes: pkcs8},
		cert: {Type: "CERTIFICATE", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, cert
}

// freePort is an address that nobody listens at.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// awaitListening waits until somebody listens, without a connection that would
// be observed.
func awaitListening(t *testing.T, at netip.AddrPort) {
	t.Helper()
	listening := fmt.Sprintf("0100007F:%04X 00000000:0000 0A", at.Port())
	for range 1000 {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(table), listening) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nobody listens at %v", at)
}

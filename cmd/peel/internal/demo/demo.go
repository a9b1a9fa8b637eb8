// Package demo is a stand-in of an LLM API that knows its own true times,
// the requests that exercise it, and the comparison of what was measured with
// what was true. It listens on loopback only.
package demo

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Domain ends every name the certificate covers; .test is reserved for such
// use (RFC 6761, section 6.2).
const Domain = "demo.test"

// The longest delays a client may ask for.
const (
	maxHandshakeDelay = 5 * time.Second
	maxDelay          = 60 * time.Second
)

// Config says what the steps ask the server to add. Zero values give the
// defaults.
type Config struct {
	Logger *slog.Logger
	// Client is the command that runs the function Client with the
	// arguments that follow it. It serves where no other client does.
	Client []string

	Handshake time.Duration // added to the handshake of one step; default 30 ms
	FirstByte time.Duration // added before the first byte of one step; default 50 ms
	Chunks    int           // of the streamed answer; default 12
	Gap       time.Duration // before each chunk; default 20 ms
}

func (c *Config) defaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Handshake <= 0 {
		c.Handshake = 30 * time.Millisecond
	}
	if c.FirstByte <= 0 {
		c.FirstByte = 50 * time.Millisecond
	}
	if c.Chunks <= 0 {
		c.Chunks = 12
	}
	if c.Gap <= 0 {
		c.Gap = 20 * time.Millisecond
	}
	c.Handshake = min(c.Handshake, maxHandshakeDelay)
	c.FirstByte = min(c.FirstByte, maxDelay)
	c.Chunks = min(c.Chunks, maxChunks)
	c.Gap = min(c.Gap, maxDelay)
}

// Demo is a running server and the steps to run against it.
type Demo struct {
	secure  *http.Server
	plain   *http.Server
	book    *book
	serving sync.WaitGroup
	unhook  func() bool
	close   sync.Once
	closed  error

	tls, tls6, cleartext netip.AddrPort // tls6 is invalid without IPv6

	client client
	steps  []Step
	notes  []string
}

// Start makes a certificate, listens on loopback and finds a client. It ends
// with ctx or Close.
func Start(ctx context.Context, cfg Config) (*Demo, error) {
	cfg.defaults()
	cert, err := certificate(time.Now())
	if err != nil {
		return nil, fmt.Errorf("making certificate: %w", err)
	}
	d := &Demo{book: newBook(maxRequests)}
	api := handler()
	d.secure = server(api, cfg.Logger)
	// TLS is terminated by the listener, so to net/http both are cleartext.
	d.secure.Protocols = new(http.Protocols)
	d.secure.Protocols.SetHTTP1(true)
	d.secure.Protocols.SetUnencryptedHTTP2(true)
	d.plain = server(api, cfg.Logger)

	lc := net.ListenConfig{Control: stampArrivals}
	secure, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening on loopback: %w", err)
	}
	plain, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening on loopback: %w", err), secure.Close())
	}
	conf := tlsConfig(cert)
	d.tls, d.cleartext = addrPort(secure), addrPort(plain)
	d.serve(d.secure, &listener{Listener: secure, book: d.book, tls: conf})
	d.serve(d.plain, &listener{Listener: plain, book: d.book})
	if secure6, err := lc.Listen(ctx, "tcp6", "[::1]:0"); err == nil {
		d.tls6 = addrPort(secure6)
		d.serve(d.secure, &listener{Listener: secure6, book: d.book, tls: conf})
	} else {
		d.notes = append(d.notes, "IPv6 is left out: no ::1 on this host")
	}

	d.client, err = findClient(ctx, cfg.Client)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.steps = plan(cfg, d.client, d.tls, d.tls6, d.cleartext)
	d.notes = append(d.notes, d.client.lacks...)
	d.unhook = context.AfterFunc(ctx, func() { d.Close() })
	return d, nil
}

// serve accepts from l until the server is closed.
func (d *Demo) serve(s *http.Server, l net.Listener) {
	d.serving.Go(func() {
		// Serve always returns an error; Close's is the only one to expect,
		// and any other shows as requests that fail.
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.ErrorLog.Print(err)
		}
	})
}

// Close stops the server and cuts what is under way. It may be called again.
func (d *Demo) Close() error {
	d.close.Do(func() {
		if d.unhook != nil {
			d.unhook()
		}
		d.closed = errors.Join(d.secure.Close(), d.plain.Close())
		d.serving.Wait()
	})
	return d.closed
}

// Steps returns what to run, in order.
func (d *Demo) Steps() []Step { return slices.Clone(d.steps) }

// Introduce says, in lines of at most width columns, what runs, and what the
// steps leave out on this host and why. Its error is w's.
func (d *Demo) Introduce(w io.Writer, width int) error {
	var out bytes.Buffer
	wrap(&out, fmt.Sprintf("%d calls by %s to a local API with known delays", len(d.steps), d.client.name), width)
	for _, note := range d.notes {
		wrap(&out, note, width)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// TLSAddrs returns the addresses that speak HTTPS: IPv4's, and IPv6's where
// the host has ::1.
func (d *Demo) TLSAddrs() []netip.AddrPort {
	if !d.tls6.IsValid() {
		return []netip.AddrPort{d.tls}
	}
	return []netip.AddrPort{d.tls, d.tls6}
}

// PlainAddr returns the address that speaks HTTP/1.1 without TLS.
func (d *Demo) PlainAddr() netip.AddrPort { return d.cleartext }

// Truth returns what the server itself saw of the latest request with that id.
func (d *Demo) Truth(id string) (Truth, bool) { return d.book.truth(id) }

// Shed returns how many requests went unrecorded because too many were there.
func (d *Demo) Shed() int { return d.book.shed() }

func addrPort(l net.Listener) netip.AddrPort {
	return netip.MustParseAddrPort(l.Addr().String())
}

func server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext:       withConn,
	}
}

// certificate makes a self-signed one for Domain and loopback, good for a day.
func certificate(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: Domain},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{Domain, "*." + Domain},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func tlsConfig(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2", "http/1.1"},
		// The hook runs when the ClientHello is read and nothing is
		// written yet: a sleep here is the server's part of the handshake.
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, sleep(hello.Context(), handshakeDelay(hello.ServerName))
		},
	}
}

// handshakeDelay reads the delay that a name asks for:
// handshake-30ms.demo.test asks for 30 ms, any other name for none.
func handshakeDelay(name string) time.Duration {
	label, _, _ := strings.Cut(name, ".")
	text, ok := strings.CutPrefix(label, "handshake-")
	if !ok {
		return 0
	}
	delay, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return min(max(delay, 0), maxHandshakeDelay)
}

// handshakeName is handshakeDelay's inverse.
func handshakeName(delay time.Duration) string {
	return fmt.Sprintf("handshake-%dus.%s", delay.Microseconds(), Domain)
}

// sleep waits at least d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

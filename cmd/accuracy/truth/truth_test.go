package truth

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/peel-dev/peel/cmd/accuracy/delayline"
)

func TestMeasure(t *testing.T) {
	// Without TLS: a request of 100 bytes, an answer of 50 and 50.
	plain := &tap{key: endpoint{clientPort: 40000, serverPort: PortPlain}}
	m := &message{id: "x", request: span{0, 100}, whole: true, answer: []span{{0, 50}, {50, 100}}}
	direct := mapping{direct: true}
	type event struct {
		end      int // 0 client, 1 server
		toServer bool
		at       int64
		lo, hi   int64
	}
	for _, tt := range []struct {
		name   string
		events []event
		want   Exchange
	}{
		{"smooth",
			[]event{{0, true, 100, 0, 100}, {1, true, 110, 0, 100}, {1, false, 130, 0, 50}, {0, false, 140, 0, 50}, {1, false, 150, 50, 100}, {0, false, 160, 50, 100}},
			Exchange{Wait: 40, Server: 20, Network: 20, Span: 20, Up: 10, Down: 10, Pauses: 20}},
		{"request lost once",
			[]event{{0, true, 100, 0, 100}, {0, true, 300, 0, 100}, {1, true, 310, 0, 100}, {1, false, 330, 0, 100}, {0, false, 340, 0, 100}},
			Exchange{Resent: true, Wait: 40, Server: 20, Network: 20, Span: 20, Up: 10, Down: 10}},
		{"its first half lost once",
			[]event{{0, true, 100, 0, 50}, {0, true, 101, 50, 100}, {1, true, 111, 50, 100}, {0, true, 300, 0, 50}, {1, true, 310, 0, 50}, {1, false, 330, 0, 100}, {0, false, 340, 0, 100}},
			Exchange{Resent: true, Wait: 40, Server: 20, Network: 20, Span: 20, Up: 10, Down: 10}},
		{"sent again for nothing, while the server works",
			[]event{{0, true, 100, 0, 100}, {1, true, 110, 0, 100}, {0, true, 200, 0, 100}, {1, true, 210, 0, 100}, {1, false, 230, 0, 100}, {0, false, 240, 0, 100}},
			Exchange{Resent: true, Wait: 40, Server: 30, Network: 10, Span: 120, Up: -90, Down: 10}},
		{"answer lost, its second half comes first",
			[]event{{0, true, 100, 0, 100}, {1, true, 110, 0, 100}, {1, false, 130, 0, 50}, {1, false, 131, 50, 100}, {0, false, 141, 50, 100}, {1, false, 170, 0, 50}, {0, false, 180, 0, 50}},
			Exchange{Wait: 41, Server: 20, Network: 21, Span: 20, Up: 10, Down: 11, Pauses: 1}},
		{"answer lost whole",
			[]event{{0, true, 100, 0, 100}, {1, true, 110, 0, 100}, {1, false, 130, 0, 100}, {1, false, 330, 0, 100}, {0, false, 340, 0, 100}},
			Exchange{Wait: 240, Server: 20, Network: 220, Span: 20, Up: 10, Down: 210}},
	} {
		var part [2][2][]segment
		for _, e := range tt.events {
			to := 0
			if e.toServer {
				to = 1
			}
			part[e.end][to] = append(part[e.end][to], segment{e.at, e.lo, e.hi})
		}
		w := &wire{
			clientOut: newHalf(part[0][1]), serverIn: newHalf(part[1][1]),
			serverOut: newHalf(part[1][0]), clientIn: newHalf(part[0][0]),
		}
		tt.want.ID = "x"
		got, why := measure(plain, w, direct, direct, m)
		if got != tt.want || why != "" {
			t.Errorf("%s:\n%+v %s, want\n%+v", tt.name, got, why, tt.want)
		}
	}
	if _, why := measure(plain, &wire{}, direct, direct, m); why == "" {
		t.Error("a connection without packets has a truth")
	}
}

func TestWork(t *testing.T) {
	for _, w := range []Work{{}, {Sleep: 8 * time.Millisecond, Size: 200_000}, {Chunks: 20, Gap: time.Millisecond}} {
		target := w.Target("a.1")
		if id := identify(target); id != "a.1" {
			t.Errorf("%s is %q", target, id)
		}
		r, err := http.NewRequest("GET", target, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseWork(r.URL.Query()); got != w || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", target, got, err, w)
		}
	}
	for _, q := range []string{"sleep=-1s", "sleep=1h", "sleep=x", "size=-1", "size=99999999999", "chunks=x"} {
		r, _ := http.NewRequest("GET", "/e/a?"+q, nil)
		if _, err := parseWork(r.URL.Query()); err == nil {
			t.Errorf("%s is taken", q)
		}
	}
}

// TestMain lets the test binary be the line's process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve-line" {
		if err := delayline.Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestObserver makes exchanges over a line: no truth may be shorter than what
// the line and the server were told to take.
func TestObserver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes network namespaces: run it as root")
	}
	line, err := delayline.Start(context.Background(), []string{os.Args[0], "serve-line"})
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	const up, down, sleep, gap = 7 * time.Millisecond, 4 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond
	if _, err := line.Set(delayline.Path{Up: delayline.Way{Delay: up}, Down: delayline.Way{Delay: down}}); err != nil {
		t.Fatal(err)
	}
	var o Observer
	start := func(n *delayline.Namespace, f func() error) {
		t.Helper()
		if err := n.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	start(line.Server, func() (err error) { o.Server, err = StartServer(); return err })
	defer o.Server.Close()
	start(line.Server, func() (err error) { o.Remote, err = StartCapture(delayline.Device, Serving); return err })
	defer o.Remote.Close()
	start(line.Client, func() (err error) { o.Client, err = StartCapture(delayline.Device, Serving); return err })
	defer o.Client.Close()

	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = line.Client.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
	insecure := func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
	for _, c := range []struct {
		name, origin string
		transport    http.RoundTripper
	}{
		{"plain", fmt.Sprintf("http://%s:%d", delayline.ServerAddr, PortPlain), &http.Transport{DialContext: dial}},
		{"h1", fmt.Sprintf("https://%s:%d", delayline.ServerAddr, PortTLS), &http.Transport{DialContext: dial, TLSClientConfig: insecure()}},
		{"tls12", fmt.Sprintf("https://%s:%d", delayline.ServerAddr, PortTLS), &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}},
		{"h2", fmt.Sprintf("https://[%s]:%d", delayline.ServerAddr6, PortTLS), &http.Transport{DialContext: dial, TLSClientConfig: insecure(), ForceAttemptHTTP2: true}},
	} {
		client := &http.Client{Transport: c.transport, Timeout: 30 * time.Second}
		works := []Work{{Sleep: sleep}, {Sleep: sleep, Size: 100_000}, {Sleep: sleep, Chunks: 3, Gap: gap}}
		for i, w := range works {
			r, err := client.Get(c.origin + w.Target(fmt.Sprint(c.name, i)))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		client.CloseIdleConnections()
		got, problems, err := o.Take(5 * time.Second)
		if err != nil || len(problems) > 0 || len(got) != len(works) {
			t.Errorf("%s: %d exchanges, %q, %v", c.name, len(got), problems, err)
			continue
		}
		for i, e := range got {
			if (e.Stream != 0) != (c.name == "h2") {
				t.Errorf("%s: stream %d", c.name, e.Stream)
			}
			if e.ID != fmt.Sprint(c.name, i) || e.First != (i == 0) {
				t.Errorf("%s, exchange %d: %+v", c.name, i, e)
			}
			if e.Up < int64(up) || e.Down < int64(down) || e.Server < int64(sleep) || e.Wait != e.Server+e.Network ||
				!e.Resent && e.Network != e.Up+e.Down {
				t.Errorf("%s: shorter than the line and the server: %+v", c.name, e)
			}
			if e.HasHandshake != (c.name != "plain") || e.HasHandshake && e.Handshake <= 0 {
				t.Errorf("%s: handshake: %+v", c.name, e)
			}
			if want := int64(2 * gap); i == 2 && e.Pauses < want*9/10 {
				t.Errorf("%s: pauses of two times %v: %+v", c.name, gap, e)
			}
		}
	}
}

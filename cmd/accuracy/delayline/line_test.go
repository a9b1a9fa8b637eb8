package delayline

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// TestMain lets the test binary be the line's process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve-line" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestLine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes network namespaces: run it as root")
	}
	l, err := Start(context.Background(), []string{os.Args[0], "serve-line"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	var server net.PacketConn
	if err := l.Server.Do(func() (err error) {
		server, err = net.ListenPacket("udp", ServerAddr+":9")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			server.WriteTo(b[:n], from)
		}
	}()
	var client net.Conn
	if err := l.Client.Do(func() (err error) {
		client, err = net.Dial("udp", ServerAddr+":9")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	// echoes sends one packet after the other and returns the shortest round
	// trip and how many came back.
	echoes := func(p Path, n int, patience time.Duration) (time.Duration, int, Stats) {
		if _, err := l.Set(p); err != nil {
			t.Fatal(err)
		}
		least, back := time.Hour, 0
		b := make([]byte, 100)
		for i := range n {
			begin := time.Now()
			client.Write([]byte{byte(i)})
			client.SetReadDeadline(begin.Add(patience))
			for {
				m, err := client.Read(b)
				if err != nil {
					break
				}
				if m == 1 && b[0] == byte(i) {
					least = min(least, time.Since(begin))
					back++
					break
				}
			}
		}
		s, err := l.Set(Path{})
		if err != nil {
			t.Fatal(err)
		}
		return least, back, s
	}

	up := Path{Up: Way{Delay: 10 * time.Millisecond}, Down: Way{Delay: 30 * time.Millisecond}}
	rtt, back, s := echoes(up, 5, 10*time.Second)
	if rtt < 40*time.Millisecond || back != 5 || s.Packets < 10 || s.Lost != 0 {
		t.Errorf("10 ms up, 30 ms down: %v, %d of 5 back, %+v", rtt, back, s)
	}
	lossy := Path{Down: Way{Loss: 1}}
	if _, back, s := echoes(lossy, 3, 50*time.Millisecond); back != 0 || s.Lost < 3 {
		t.Errorf("all lost on the way down: %d back, %+v", back, s)
	}
	jitter := Path{Up: Way{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond}}
	if rtt, back, _ := echoes(jitter, 5, 10*time.Second); rtt < 5*time.Millisecond || back != 5 {
		t.Errorf("jitter: %v, %d of 5 back", rtt, back)
	}
}

package demo

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connected is both ends of a connection on loopback.
func connected(t *testing.T, lc net.ListenConfig) (client net.Conn, server *arrivals) {
	t.Helper()
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	if server, err = newArrivals(accepted); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// pass sends a byte and reads it: the clock before and after it was sent, and
// the time of its arrival.
func pass(t *testing.T, client net.Conn, server *arrivals) (before, after, at int64) {
	t.Helper()
	before = now()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	after = now()
	n, at, err := server.read(make([]byte, 8))
	if n != 1 || err != nil {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	return before, after, at
}

// On loopback a byte is at its receiver before it is sent, as far as the
// sender knows, and so before any read of it ends.
func TestArrivalIsTheKernels(t *testing.T) {
	client, server := connected(t, net.ListenConfig{Control: stampArrivals})
	const tries = 100
	for range tries {
		before, after, at := pass(t, client, server)
		if before <= at && at <= after {
			return
		}
		// The kernel starts to take the times some moments after it is asked.
		time.Sleep(time.Millisecond)
	}
	t.Errorf("none of %d bytes has the time of its arrival", tries)
}

func TestArrivalWithoutStamps(t *testing.T) {
	client, server := connected(t, net.ListenConfig{})
	if _, after, at := pass(t, client, server); at < after || at > now() {
		t.Errorf("arrival %d is not the end of the read, which began after %d", at, after)
	}
}

// net/http wakes its own reads with a deadline, and asks for a connection's
// end.
func TestArrivalsReadLikeTheConnection(t *testing.T) {
	client, server := connected(t, net.ListenConfig{Control: stampArrivals})
	buf := make([]byte, 8)
	if err := server.conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if n, _, err := server.read(buf); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %d, %v", n, err)
	}
	if err := server.conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, _, err := server.read(nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
	client.Close()
	if n, _, err := server.read(buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
	server.conn.Close()
	if _, _, err := server.read(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}

	client, server = connected(t, net.ListenConfig{Control: stampArrivals})
	if err := client.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	client.Close()
	var op *net.OpError
	if _, _, err := server.read(buf); !errors.Is(err, unix.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" {
		t.Errorf("reset: %v", err)
	}
}

func TestArrivalOfOtherMessages(t *testing.T) {
	for _, oob := range [][]byte{nil, {1, 2, 3}, make([]byte, stampSpace), unix.UnixRights(1)} {
		if at := arrival(oob); at != 0 {
			t.Errorf("%v: %d, want none", oob, at)
		}
	}
}

package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stampArrivals asks the kernel for the arrival time of what a listener's
// connections receive. They inherit that, so it holds from the first byte on.
func stampArrivals(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}); cerr != nil {
		return cerr
	}
	return os.NewSyscallError("setsockopt", err)
}

// stampSpace holds the one control message that is asked for, a timespec.
const (
	timespecLen = 16
	stampSpace  = unix.SizeofCmsghdr + timespecLen
)

// arrivals reads a connection together with the time at which the kernel got
// what is read.
type arrivals struct {
	conn net.Conn
	raw  syscall.RawConn
}

func newArrivals(c net.Conn) (*arrivals, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("reading arrival times: %T is no socket", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reading arrival times: %w", err)
	}
	return &arrivals{conn: c, raw: raw}, nil
}

// read is net.Conn's Read. at is when the last of the bytes came to the host;
// where the kernel does not say, when they were read.
func (a *arrivals) read(b []byte) (n int, at int64, err error) {
	if len(b) == 0 {
		n, err = a.conn.Read(b)
		return n, now(), err
	}
	var oob [stampSpace]byte
	var oobn int
	var rerr error
	err = a.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, rerr = unix.Recvmsg(int(fd), b, oob[:], 0)
			if !errors.Is(rerr, unix.EINTR) {
				return !errors.Is(rerr, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil: // closed, or past its deadline
		return 0, now(), err
	case rerr != nil:
		return 0, now(), &net.OpError{
			Op: "read", Net: "tcp", Source: a.conn.LocalAddr(), Addr: a.conn.RemoteAddr(),
			Err: os.NewSyscallError("recvmsg", rerr),
		}
	case n == 0:
		return 0, now(), io.EOF
	}
	at = now()
	if wall := arrival(oob[:oobn]); wall != 0 {
		// What has been read has come.
		at = min(at, wall-realtimeLead())
	}
	return n, at, nil
}

// arrival returns the time, CLOCK_REALTIME, in a read's control messages, or
// 0.
func arrival(oob []byte) int64 {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= timespecLen {
			sec, nsec := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			return int64(sec)*int64(time.Second) + int64(nsec)
		}
	}
	return 0
}

// realtimeLead is CLOCK_REALTIME less CLOCK_MONOTONIC, read together: of
// some tries the one counts that was interrupted least.
func realtimeLead() int64 {
	const tries, enough = 20, int64(2 * time.Microsecond)
	least := int64(math.MaxInt64)
	var lead int64
	for range tries {
		before, wall, after := now(), clock(unix.CLOCK_REALTIME), now()
		if took := after - before; took < least {
			least, lead = took, wall-before-took/2
		}
		if least <= enough {
			break
		}
	}
	return lead
}

// now is the clock that the kernel's timestamps are of.
func now() int64 { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("reading clock %d: %v", id, err)) // every Linux has both
	}
	return ts.Nano()
}

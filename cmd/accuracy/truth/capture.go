package truth

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// snapshot holds IPv6, TCP and all options.
	snapshot = 128
	// ringBytes is what the kernel may keep for a capture that is late.
	ringBytes = 64 << 20
	// poll is how often a capture that sees nothing looks whether to end.
	poll = 100 * time.Millisecond
)

// Capture records the TCP packets of a device with the kernel's times.
type Capture struct {
	fd      int
	serving func(uint16) bool
	stop    chan struct{}
	ended   chan struct{}

	mu      sync.Mutex
	packets []Packet
	err     error
}

// StartCapture begins to record a device of the network namespace that the
// calling thread is in.
func StartCapture(device string, serving func(uint16) bool) (*Capture, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("capturing on %s: %w", device, err)
	}
	protocol := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(poll))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ringBytes),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: dev.Index}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a packet socket: %w", err)
	}
	c := &Capture{fd: fd, serving: serving, stop: make(chan struct{}), ended: make(chan struct{})}
	go c.run()
	return c, nil
}

func (c *Capture) run() {
	defer close(c.ended)
	b, control := make([]byte, snapshot), make([]byte, 128)
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		size, at, err := receive(c.fd, b, control)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			c.mu.Lock()
			c.err = fmt.Errorf("capturing packets: %w", err)
			c.mu.Unlock()
			return
		}
		p, ok := parse(b[:min(size, len(b))], size, c.serving)
		if !ok {
			continue
		}
		p.At = at
		c.mu.Lock()
		c.packets = append(c.packets, p)
		c.mu.Unlock()
	}
}

// receive returns a packet's size, which may be more than b holds, and its
// time stamp. unix.Recvmsg would allocate an address for each.
func receive(fd int, b, control []byte) (size int, at int64, err error) {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	msg := unix.Msghdr{Iov: &iov, Control: &control[0]}
	msg.SetIovlen(1)
	msg.SetControllen(len(control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_TRUNC)
	if errno != 0 {
		return 0, 0, errno
	}
	rest := control[:msg.Controllen]
	for len(rest) >= unix.CmsgLen(0) {
		header, data, remainder, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			return 0, 0, err
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SO_TIMESTAMPNS_NEW && len(data) >= 16 {
			t := *(*[2]int64)(unsafe.Pointer(&data[0])) // __kernel_timespec
			return int(n), t[0]*1e9 + t[1], nil
		}
		rest = remainder
	}
	return 0, 0, errors.New("a packet has no time stamp")
}

// Take returns the packets since the last call, and how many were missed.
func (c *Capture) Take() (packets []Packet, missed int, err error) {
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return nil, 0, fmt.Errorf("reading a capture's statistics: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	packets, c.packets = c.packets, nil
	return packets, int(stats.Drops), c.err
}

// Close ends the capture.
func (c *Capture) Close() error {
	close(c.stop)
	<-c.ended
	return unix.Close(c.fd)
}

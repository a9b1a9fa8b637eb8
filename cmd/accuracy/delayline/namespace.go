package delayline

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name: it is gone when nothing
// holds it any more, however the program ends.
type Namespace struct {
	file *os.File
}

// NewNamespace makes a namespace whose loopback is up.
func NewNamespace() (*Namespace, error) {
	n := new(Namespace)
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("opening the network namespace: %w", err)
		}
		n.file = file
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := n.ip("link set lo up"); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close lets go of the namespace. Sockets and processes in it keep it alive.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs f inside the namespace. What f opens stays there; so do the
// processes that it starts.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering the network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it, so that nobody inherits the
// namespace f moved the thread to.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		done <- f()
	}()
	return <-done
}

// ip runs commands of iproute2 inside the namespace.
func (n *Namespace) ip(commands ...string) error {
	return n.Do(func() error {
		for _, c := range commands {
			if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				return fmt.Errorf("running ip %s: %w: %s", c, err, out)
			}
		}
		return nil
	})
}

// mtu is Ethernet's.
const mtu = 1500

// tun makes a TUN device in the namespace, with an IPv4 address and its peer
// and an IPv6 address of a /64. The device lives as long as its file.
func (n *Namespace) tun(name, local, peer, local6 string) (*os.File, error) {
	var file *os.File
	err := n.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening /dev/net/tun: %w", err)
		}
		file = os.NewFile(uintptr(fd), "/dev/net/tun")
		request, err := unix.NewIfreq(name)
		if err != nil {
			return fmt.Errorf("naming a TUN device: %w", err)
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("making TUN device %s: %w", name, err)
		}
		return nil
	})
	if err == nil {
		err = n.ip(
			fmt.Sprintf("addr add %s peer %s dev %s", local, peer, name),
			fmt.Sprintf("-6 addr add %s/64 dev %s nodad", local6, name),
			fmt.Sprintf("link set %s up mtu %d txqueuelen 10000", name, mtu),
		)
	}
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return file, nil
}

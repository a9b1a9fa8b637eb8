// Package delayline joins two network namespaces by a line with a set delay,
// jitter and loss each way: a TUN device in each, and a process that carries
// packets from one to the other.
package delayline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Addresses and the device of either end, inside its namespace. The IPv4 ones
// are of the block for benchmarks (RFC 2544), the IPv6 ones unique local.
const (
	ClientAddr  = "198.18.0.1"
	ServerAddr  = "198.18.0.2"
	ClientAddr6 = "fd00:c612:1::1"
	ServerAddr6 = "fd00:c612:1::2"
	Device      = "line0"
)

// Way is what one direction does to packets.
type Way struct {
	Delay  time.Duration // of every packet
	Jitter time.Duration // more, uniform in [0, Jitter); packets keep their order
	Loss   float64       // share of packets that are lost, [0, 1]
}

// Path is both directions, up from client to server.
type Path struct {
	Up, Down Way
	Seed     uint64 // of jitter and loss
}

// Steady is a path of the same fixed delay both ways.
func Steady(d time.Duration) Path { return Path{Up: Way{Delay: d}, Down: Way{Delay: d}} }

// Stats says how well the line kept to its path since it was set.
type Stats struct {
	Packets, Lost int64
	Overflowed    int64         // dropped since the queue was full
	LateP50       time.Duration // how long after it was due a packet left
	LateP99       time.Duration
	Ordinary      bool // the line shares processors as any program: expect it to be late
}

// Line is the pair of namespaces and the process between them.
type Line struct {
	Client, Server *Namespace

	cmd     *exec.Cmd
	control io.WriteCloser
	encoder *json.Encoder
	replies *json.Decoder
}

// Start makes the namespaces and the line, with no delay. command runs Serve
// in another process, where no garbage collector makes packets late.
func Start(ctx context.Context, command []string) (*Line, error) {
	l := new(Line)
	if err := l.start(ctx, command); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Line) start(ctx context.Context, command []string) (err error) {
	if l.Client, err = NewNamespace(); err != nil {
		return err
	}
	if l.Server, err = NewNamespace(); err != nil {
		return err
	}
	client, err := l.Client.tun(Device, ClientAddr, ServerAddr, ClientAddr6)
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := l.Server.tun(Device, ServerAddr, ClientAddr, ServerAddr6)
	if err != nil {
		return err
	}
	defer server.Close()

	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{client, server}
	cmd.Stderr = os.Stderr
	if l.control, err = cmd.StdinPipe(); err != nil {
		return fmt.Errorf("starting the delay line: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting the delay line: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the delay line: %w", err)
	}
	l.cmd, l.encoder, l.replies = cmd, json.NewEncoder(l.control), json.NewDecoder(out)
	_, err = l.Set(Path{})
	return err
}

// Set changes the path and returns how the line did on the one before.
func (l *Line) Set(p Path) (Stats, error) {
	var s Stats
	if err := l.encoder.Encode(p); err != nil {
		return s, fmt.Errorf("setting the delay line: %w", err)
	}
	if err := l.replies.Decode(&s); err != nil {
		return s, fmt.Errorf("reading the delay line's figures: %w", err)
	}
	return s, nil
}

// Close ends the process and lets go of the namespaces.
func (l *Line) Close() error {
	var errs []error
	if l.control != nil {
		errs = append(errs, l.control.Close())
	}
	if l.cmd != nil {
		// Its status says nothing: it ends when its input does.
		l.cmd.Wait() //nolint:errcheck // see above
	}
	for _, n := range []*Namespace{l.Client, l.Server} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

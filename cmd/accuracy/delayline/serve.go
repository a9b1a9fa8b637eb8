package delayline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	clientFD, serverFD = 3, 4 // as Start passes the TUN devices

	// queue bounds the packets under way in one direction: 60 ms of
	// 200 MB/s.
	queue = 8192
	slot  = mtu + 36

	// spin is how long before it is due a packet is waited for with a busy
	// processor: what clock_nanosleep is late by, 99 times in 100.
	spin = 60 * time.Microsecond
)

// Serve is the line's process. It carries packets between the TUN devices at
// descriptors 3 and 4, reads paths as JSON from in, answers each with the
// Stats of the one before, and returns when in ends.
func Serve(in io.Reader, out io.Writer) error {
	debug.SetGCPercent(-1) // nothing below allocates for a packet
	// A thread that sleeps or spins keeps its processor of Go's.
	runtime.GOMAXPROCS(8)
	up := newDirection(clientFD, serverFD)
	down := newDirection(serverFD, clientFD)
	failed := make(chan error, 5)
	for _, d := range []*direction{up, down} {
		go func() { failed <- d.receive() }()
		go func() { failed <- d.deliver() }()
	}
	go func() {
		decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
		for {
			var p Path
			if err := decoder.Decode(&p); err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				failed <- err
				return
			}
			stats := merge(up, down)
			up.set(p.Up, p.Seed, 1)
			down.set(p.Down, p.Seed, 2)
			if err := encoder.Encode(stats); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

type packet struct {
	due  int64 // CLOCK_MONOTONIC, ns
	len  int
	slot int
}

// rules are a Way with the random numbers it uses.
type rules struct {
	Way
	random *rand.Rand
}

type direction struct {
	in, out int
	rules   atomic.Pointer[rules]
	memory  []byte // queue slots
	free    chan int
	waiting chan packet

	packets, lost, overflowed atomic.Int64
	late                      histogram
	ordinary                  atomic.Bool // not scheduled in real time
}

func newDirection(in, out int) *direction {
	d := &direction{
		in: in, out: out,
		memory:  make([]byte, queue*slot),
		free:    make(chan int, queue),
		waiting: make(chan packet, queue),
	}
	for i := range queue {
		d.free <- i
	}
	d.set(Way{}, 0, 0)
	return d
}

func (d *direction) set(w Way, seed, stream uint64) {
	d.rules.Store(&rules{Way: w, random: rand.New(rand.NewPCG(seed, stream))})
	d.packets.Store(0)
	d.lost.Store(0)
	d.overflowed.Store(0)
	d.late.reset()
}

func (d *direction) slot(i int) []byte { return d.memory[i*slot : (i+1)*slot] }

// receive stamps each packet with the time it is due at the other end.
func (d *direction) receive() error {
	if err := d.precise(); err != nil {
		return err
	}
	spare := make([]byte, slot) // when the queue is full
	last := int64(0)
	for {
		b, at := spare, -1
		select {
		case at = <-d.free:
			b = d.slot(at)
		default:
		}
		n, err := read(d.in, b)
		if err != nil {
			return fmt.Errorf("reading a packet: %w", err)
		}
		due := monotonic()
		r := d.rules.Load()
		lose := r.Loss > 0 && r.random.Float64() < r.Loss
		if lose || at < 0 {
			if lose {
				d.lost.Add(1)
			} else {
				d.overflowed.Add(1)
			}
			if at >= 0 {
				d.free <- at
			}
			continue
		}
		due += int64(r.Delay)
		if r.Jitter > 0 {
			due += r.random.Int64N(int64(r.Jitter))
		}
		last = max(last, due)
		d.waiting <- packet{due: last, len: n, slot: at}
	}
}

// deliver writes each packet when it is due.
func (d *direction) deliver() error {
	if err := d.precise(); err != nil {
		return err
	}
	for p := range d.waiting {
		sleepUntil(p.due - int64(spin))
		now := monotonic()
		for now < p.due {
			now = monotonic()
		}
		d.late.add(now - p.due)
		d.packets.Add(1)
		// A device that is down for a moment loses packets, as a cable would.
		unix.Write(d.out, d.slot(p.slot)[:p.len]) //nolint:errcheck // see above
		d.free <- p.slot
	}
	return nil
}

// precise gives the goroutine a thread of its own that is woken in time. A
// wire does not wait for others' programs: without the real-time scheduler one
// packet in eight was 0.3 ms late on a busy machine, with it one in 300.
func (d *direction) precise() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting the timer slack: %w", err)
	}
	fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}
	err := unix.SchedSetAttr(0, &fifo, 0)
	if err == nil {
		return nil
	}
	d.ordinary.Store(true) // a cgroup may forbid it
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil {
		return fmt.Errorf("setting the priority: %w", err)
	}
	return nil
}

func read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) //nolint:errcheck // cannot fail
	return t.Nano()
}

func sleepUntil(at int64) {
	t := unix.NsecToTimespec(at)
	for errors.Is(unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &t, nil), unix.EINTR) {
	}
}

func merge(a, b *direction) Stats {
	counts := a.late.counts()
	for i, n := range b.late.counts() {
		counts[i] += n
	}
	return Stats{
		Packets:    a.packets.Load() + b.packets.Load(),
		Lost:       a.lost.Load() + b.lost.Load(),
		Overflowed: a.overflowed.Load() + b.overflowed.Load(),
		LateP50:    time.Duration(quantile(counts, 0.5)),
		LateP99:    time.Duration(quantile(counts, 0.99)),
		Ordinary:   a.ordinary.Load() || b.ordinary.Load(),
	}
}

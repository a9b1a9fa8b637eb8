package conn

import (
	"net/netip"

	"github.com/peel-dev/peel/collector/exchange"
)

const (
	maxPaths = 256
	maxPath  = 32
	// enoughClean samples of its own and a connection needs no others'.
	enoughClean = 8
)

type pathSample struct {
	exchange.RTTSample
	conn uint64
}

// path holds what the connections to one peer address have shown: clean round
// trips, and how long answers took.
type path struct {
	used    int64
	samples [maxPath]pathSample
	n       int          // samples so far
	waits   trail[int64] // of exchanges on any connection
}

func (p *path) add(conn uint64, at, rtt int64) {
	p.samples[p.n%maxPath] = pathSample{exchange.RTTSample{At: at, RTT: rtt}, conn}
	p.n++
	p.used = at
}

// others returns the samples of other connections than conn, latest first.
func (p *path) others(conn uint64) []exchange.RTTSample {
	var out []exchange.RTTSample
	n := min(p.n, maxPath)
	for i := range n {
		s := &p.samples[(p.n-1-i)%maxPath]
		if s.conn == conn {
			continue
		}
		if out == nil {
			out = make([]exchange.RTTSample, 0, n-i)
		}
		out = append(out, s.RTTSample)
	}
	return out
}

// paths is bounded: the address that was used longest ago goes first.
type paths map[netip.Addr]*path

func (ps paths) get(addr netip.Addr, now int64) *path {
	if p := ps[addr]; p != nil {
		p.used = max(p.used, now)
		return p
	}
	if len(ps) >= maxPaths {
		var oldest netip.Addr
		for a, p := range ps {
			if !oldest.IsValid() || p.used < ps[oldest].used {
				oldest = a
			}
		}
		delete(ps, oldest)
	}
	p := &path{used: now}
	ps[addr] = p
	return p
}

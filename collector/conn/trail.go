package conn

const (
	trailKeep = 32
	trailRoom = 128
)

// trail holds the latest values, latest first. What latest returns can be
// shared: it is never written again, since new values go in front of it, and
// into a new buffer when there is no room.
type trail[T any] struct {
	buf []T
	at  int // where the latest value is
}

func (r *trail[T]) push(v T) {
	if r.at == 0 {
		kept := r.latest()
		buf := make([]T, min(trailRoom, max(8, 4*len(kept))))
		r.at = len(buf) - copy(buf[len(buf)-len(kept):], kept)
		r.buf = buf
	}
	r.at--
	r.buf[r.at] = v
}

// latest returns up to 32 values.
func (r *trail[T]) latest() []T {
	end := min(r.at+trailKeep, len(r.buf))
	return r.buf[r.at:end:end]
}

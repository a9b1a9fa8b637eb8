package http2

// entryOverhead is what RFC 7541 section 4.1 adds to the length of name and
// value for an entry's size.
const entryOverhead = 32

// entry is a field of the dynamic table. Its size is that of the field on the
// wire, which for a secret is not what Field holds.
type entry struct {
	field Field
	size  uint32
}

// table holds the newest entries of the encoder's dynamic table, RFC 7541
// section 2.3.2. Indices count from the newest entry on, so those it holds are
// right even when older ones are not known, as long as it makes one for every
// entry of the encoder's. To hold one for longer than the encoder does no
// harm: nothing refers to it any more. Hence a limit that is not known is
// taken as none.
type table struct {
	ring    []entry // of a power of two; ring[newest] is the last one that came in
	last    int     // of the newest, where there is one
	n       int     // entries
	size    uint32  // of the entries, at most min(max, MaxTable)
	max     uint32  // the encoder's limit, or noLimit
	changes uint64  // times that it was changed
}

// noLimit is table.max when a size update may have been missed.
const noLimit = 1<<32 - 1

// at returns the i-th newest entry, from 0; nil if that is not known.
func (t *table) at(i uint64) *entry {
	if i >= uint64(t.n) {
		return nil
	}
	return &t.ring[(t.last-int(i))&(len(t.ring)-1)]
}

// add puts an entry in front and evicts what has no more room (RFC 7541
// section 4.4). One larger than the table leaves it empty.
func (t *table) add(e entry) {
	t.changes++
	if e.size > t.max {
		t.evict(0)
		return
	}
	if e.size > MaxTable {
		// The encoder has it, at the price of all others that we could hold.
		e = entry{field: Field{Unknown: true}, size: MaxTable}
	}
	t.evict(min(t.max, MaxTable) - e.size)
	if t.n == len(t.ring) {
		t.grow()
	}
	t.last = (t.last + 1) & (len(t.ring) - 1)
	t.ring[t.last] = e
	t.n++
	t.size += e.size
}

// evict drops the oldest entries until the size is at most limit.
func (t *table) evict(limit uint32) {
	for t.size > limit {
		oldest := t.at(uint64(t.n - 1))
		t.size -= oldest.size
		t.n--
		*oldest = entry{}
	}
}

// resize obeys a size update, RFC 7541 section 4.3.
func (t *table) resize(limit uint32) {
	t.changes++
	t.max = limit
	t.evict(min(limit, MaxTable))
}

// forget drops all entries and what is known of the limit.
func (t *table) forget() {
	t.changes++
	t.evict(0)
	t.max = noLimit
}

func (t *table) grow() {
	ring := make([]entry, max(8, 2*len(t.ring)))
	for i := range t.n {
		ring[t.n-1-i] = *t.at(uint64(i))
	}
	t.ring, t.last = ring, t.n-1
}

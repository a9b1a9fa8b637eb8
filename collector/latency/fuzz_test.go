package latency

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/peel-dev/peel/collector/exchange"
)

// garbage fills every integer and flag of a struct from r: zeros, small and
// huge values, negative ones.
func garbage(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			garbage(r, field)
		}
	case reflect.Slice:
		n := r.IntN(70)
		s := reflect.MakeSlice(v.Type(), n, n)
		for i := range n {
			garbage(r, s.Index(i))
		}
		v.Set(s)
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		switch r.IntN(12) {
		case 0, 1, 2:
			v.SetInt(0)
		case 3:
			v.SetInt(r.Int64())
		case 4:
			v.SetInt(-r.Int64())
		case 5:
			v.SetInt(int64(^uint64(0)>>1) - r.Int64N(3))
		default:
			v.SetInt(r.Int64N(int64(1) << (1 + r.IntN(40))))
		}
	}
}

// FuzzSplit feeds marks and evidence that make no sense: the split has to hold
// its rules all the same, and must not change when it is made again.
func FuzzSplit(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, seed*7919)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		rnd := rand.New(rand.NewPCG(a, b))
		for range 20 {
			var r exchange.Record
			garbage(rnd, reflect.ValueOf(&r.Timeline).Elem())
			garbage(rnd, reflect.ValueOf(&r.Evidence).Elem())
			r.Connection.Reused = rnd.IntN(2) == 0
			r.Connection.Retransmits = rnd.IntN(2)
			if rnd.IntN(2) == 0 {
				r.TLS = &exchange.TLSInfo{}
			}
			Split(&r)
			if err := Check(&r); err != nil {
				t.Fatalf("%v\n%+v\n%+v", err, r.Timeline, r.Evidence)
			}
			notes := len(r.Quality.Notes)
			before := r
			Split(&r)
			if r.Phases != before.Phases || r.Components != before.Components || len(r.Quality.Notes) != notes {
				t.Fatalf("split again differs:\n%+v\n%+v", before, r)
			}
		}
	})
}

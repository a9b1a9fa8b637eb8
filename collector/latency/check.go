package latency

import (
	"fmt"

	"github.com/peel-dev/peel/collector/exchange"
)

// Check reports the first rule of a split that r breaks: nothing is negative,
// low ≤ value ≤ high ≤ the whole, the values of a phase's parts add up to it,
// phases and components add up to Total, a phase that was not seen has no
// time.
func Check(r *exchange.Record) error {
	if r.Total < 0 || r.TTFB < 0 {
		return fmt.Errorf("checking split: total %d, ttfb %d: negative", r.Total, r.TTFB)
	}
	var phases int64
	for p := range exchange.NumPhases {
		split := &r.Phases[p]
		if split.Total < 0 || (!split.Seen && split.Total != 0) {
			return fmt.Errorf("checking %v: total %d, seen %t", p, split.Total, split.Seen)
		}
		var parts int64
		for party := range exchange.NumParties {
			if err := checkBounds(split.Parts[party], split.Total); err != nil {
				return fmt.Errorf("checking %v of %v: %w", party, p, err)
			}
			parts += split.Parts[party].Value
		}
		if parts != split.Total {
			return fmt.Errorf("checking %v: parts add up to %d, not %d", p, parts, split.Total)
		}
		phases += split.Total
	}
	if phases != r.Total {
		return fmt.Errorf("checking split: phases add up to %d, not %d", phases, r.Total)
	}
	var sum int64
	for c := range exchange.NumComponents {
		if err := checkBounds(r.Components[c], r.Total); err != nil {
			return fmt.Errorf("checking %v: %w", c, err)
		}
		sum += r.Components[c].Value
	}
	if sum != r.Total {
		return fmt.Errorf("checking split: components add up to %d, not %d", sum, r.Total)
	}
	return nil
}

func checkBounds(b exchange.Bounded, whole int64) error {
	if b.Low < 0 || b.Low > b.Value || b.Value > b.High || b.High > whole {
		return fmt.Errorf("value %d, low %d, high %d of %d", b.Value, b.Low, b.High, whole)
	}
	return nil
}

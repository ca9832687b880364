package wal

import (
	"fmt"
	"strings"
	"time"

	"mulligan/errs"
)

// Base is a base backup: a copy of the data folder, from which the log can be replayed.
type Base struct {
	ID      string    `json:"id"`
	TLI     Timeline  `json:"tli"`
	Start   LSN       `json:"start"` // position where replay begins
	Stop    LSN       `json:"stop"`  // position from which the replayed state is consistent
	Sums    string    `json:"sums"`  // digest of the list of checksums of its files
	Created time.Time `json:"created"`
}

// Choose returns the newest base backup from which a position on timeline t can be reached. legs is the history of t. The error
// is of kind errs.Corrupt if there is none.
func Choose(bases []Base, legs []Leg, t Timeline, to LSN) (best Base, err error) {
	for _, b := range bases {
		if len(Path(legs, b.TLI, b.Stop, to)) > 0 && (best.ID == "" || b.Stop > best.Stop) {
			best = b
		}
	}
	if best.ID == "" {
		return best, errs.New(errs.Corrupt, "", "no base copy of the cluster lies before %s on timeline %d", to, t).
			WithHint("use another checkpoint")
	}
	return best, nil
}

// ReadLabel sets the start of the base backup from its backup_label file.
func (b *Base) ReadLabel(label string) (err error) {
	for line := range strings.Lines(label) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "START WAL LOCATION":
			at, _, _ := strings.Cut(value, " ")
			if b.Start, err = ParseLSN(at); err != nil {
				return err
			}
		case "START TIMELINE":
			if err := b.TLI.UnmarshalJSON([]byte(value)); err != nil {
				return err
			}
		}
	}
	if b.Start == 0 || b.TLI == 0 {
		return fmt.Errorf("the server's backup label has no start: %q", label)
	}
	return nil
}

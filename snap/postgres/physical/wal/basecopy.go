package wal

import (
	"fmt"
	"strings"
	"time"

	"mulligan/errs"
)

// Base is a copy of the data folder from which the log can be replayed.
type Base struct {
	ID      string    `json:"id"`
	TLI     Timeline  `json:"tli"`
	Start   LSN       `json:"start"` // replay begins here
	Stop    LSN       `json:"stop"`  // and is consistent from here on
	Sums    string    `json:"sums"`  // digest of the list of its files
	Created time.Time `json:"created"`
}

// Choose finds the newest base on the way to a place on timeline t, on the
// timelines that t descends from, which are legs.
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

// ReadLabel takes where the base begins from its backup_label file.
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

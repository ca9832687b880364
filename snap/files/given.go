package files

import (
	"fmt"

	"mulligan/errs"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

// checkGiven refuses what only root could give back, in either direction.
func (d *Driver) checkGiven(op string, deltas []diff.Delta) error {
	g, err := rights.Self()
	if err != nil || g.Root {
		return err
	}
	why, path, more := "", "", 0
	for i := range deltas {
		c := &deltas[i]
		if c.Outside || c.Mounted() {
			continue
		}
		word := g.RefusesChange(c.Old, c.New)
		if word == "" {
			word = g.RefusesChange(c.New, c.Old) // an undo must be possible too
		}
		switch {
		case word == "":
		case why == "":
			why, path = word, c.Seen()
		default:
			more++
		}
	}
	if why == "" {
		return nil
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf(" (and %d more paths)", more)
	}
	return errs.New(errs.Denied, op, "%s %s: only root can give it back%s", workspace.Shown(d.cfg.Dir, path), why, others).
		WithHint("chown or chgrp it to yourself, exclude it, or protect this app with the host daemon (root); a scope that leaves it out goes back")
}

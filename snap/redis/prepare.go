package redis

import (
	"context"

	"mulligan/errs"
	"mulligan/snap/cas"
)

// Plan reads target and base to their ends, checking them against their hashes. Nothing
// has to be made ready beside the server.
func (e engine) Plan(ctx context.Context, p, old *plan, target, base cas.Root) (err error) {
	if err := loadable(target, base); err != nil {
		return err
	}
	if old != nil {
		p.Lead = old.Lead
	}
	p.Changes, err = e.d.diff(ctx, storedSide(target), storedSide(base), nil)
	return err
}

// loadable refuses a target that a newer server wrote: a server that cannot
// load what it was sent is left with nothing.
func loadable(target, base cas.Root) error {
	t, _, err := parseMeta(target)
	if err != nil {
		return err
	}
	b, _, err := parseMeta(base)
	if err == nil && t.Version > b.Version {
		return errs.New(errs.Unsupported, "", "the snapshot has format %d, and the server writes %d", t.Version, b.Version).
			WithHint("restore it with the newer server that it was captured from")
	}
	return err
}

// Build lets the server go where an earlier preparation left it following.
func (e engine) Build(ctx context.Context, p, _ *plan, _, _ cas.Root) error {
	return e.d.letGo(ctx, p)
}

// Drop lets the server go, if it still follows.
func (e engine) Drop(ctx context.Context, p *plan) (left []string, err error) {
	return nil, e.d.letGo(ctx, p)
}

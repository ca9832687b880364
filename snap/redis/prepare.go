package redis

import (
	"context"
	"strconv"

	"mulligan/errs"
	"mulligan/snap/cas"
)

// Plan reads the target and the base completely and checks their hashes. A restore builds nothing beside the server.
func (e engine) Plan(ctx context.Context, p, old *plan, target, base cas.Root) (err error) {
	if err := loadable(target, base); err != nil {
		return err
	}
	if old != nil {
		p.Lead = old.Lead
	}
	var last int64
	p.Changes, err = e.d.diff(ctx, side{root: target, last: &last}, storedSide(base), nil)
	if err != nil {
		return err
	}
	return e.d.hasDatabase(ctx, last)
}

// hasDatabase returns an error if the server has no database with the number last. A server that receives a snapshot with such a database exits, and
// does not start again, because it has saved the snapshot as its own file.
func (d *Driver) hasDatabase(ctx context.Context, last int64) error {
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	text, err := c.config("databases")
	if err != nil {
		return err
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && last >= n {
		return errs.New(errs.Unsupported, "", "the snapshot has keys in database %d, and the server has only %d databases", last, n).
			WithHint("set `databases %d` in the server's configuration and restart it", last+1)
	}
	return nil
}

// loadable returns an error if a newer server wrote the target: a server that fails to load a snapshot loses its data.
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

// Build restores the server's settings if an earlier preparation left it replicating.
func (e engine) Build(ctx context.Context, p, _ *plan, _, _ cas.Root) error {
	return e.d.letGo(ctx, p)
}

// Drop restores the server's settings if the server still replicates.
func (e engine) Drop(ctx context.Context, p *plan) (left []string, err error) {
	return nil, e.d.letGo(ctx, p)
}

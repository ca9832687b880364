package redis

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Each step first restores the server's settings, because a process may have died while the server replicated from it.

// same reports whether the live state is the stored one, except for keys that have expired since. gone is the number of stored
// keys that have expired.
func (d *Driver) same(ctx context.Context, live summary, root cas.Root) (same bool, gone int, err error) {
	_, hash, err := parseMeta(root)
	if err != nil || live.hash() == hash {
		return err == nil, 0, err
	}
	stored, err := d.scanStored(ctx, root, nil)
	if err != nil {
		return false, 0, err
	}
	defer stored.close()
	now := live.read.UnixMilli()
	want, gone, err := stored.hashAt(now)
	if err != nil {
		return false, 0, err
	}
	got, _, err := live.scanned.hashAt(now)
	return err == nil && got == want, gone, err
}

// atBase returns the server's position, and whether its data is the base's. It does not read the data if the position proves
// that.
func (d *Driver) atBase(ctx context.Context, base cas.Root) (at position, is bool, err error) {
	m, _, err := parseMeta(base)
	if err != nil {
		return at, false, err
	}
	c, err := d.dial(ctx)
	if err != nil {
		return at, false, err
	}
	defer c.close()
	if at, err = c.position(); err != nil || at == m.Position {
		return at, err == nil, err
	}
	live, err := d.read(ctx, io.Discard, nil)
	if err != nil {
		return at, false, err
	}
	defer live.scanned.close()
	is, _, err = d.same(ctx, live, base)
	return live.at, is, err
}

// Stale compares the live state with the base.
func (e engine) Stale(ctx context.Context, p *plan, base cas.Root) (bool, error) {
	if err := e.d.letGo(ctx, p); err != nil {
		return false, err
	}
	_, is, err := e.d.atBase(ctx, base)
	return !is, err
}

// Commit makes the server load the target.
func (e engine) Commit(ctx context.Context, p *plan, target, base cas.Root) error {
	if err := e.d.letGo(ctx, p); err != nil {
		return err
	}
	done, err := e.d.alreadyAt(ctx, p, target)
	if err == nil && !done {
		err = e.d.replace(ctx, p, target, base)
	}
	if err != nil {
		return err
	}
	return e.d.awaitPersisted(ctx)
}

// alreadyAt reports whether an interrupted Commit reached the target.
func (d *Driver) alreadyAt(ctx context.Context, p *plan, target cas.Root) (bool, error) {
	if p.Phase != database.Committing {
		return false, nil
	}
	live, err := d.read(ctx, io.Discard, nil)
	if err != nil {
		return false, err
	}
	defer live.scanned.close()
	is, _, err := d.same(ctx, live, target)
	return is, err
}

// tries bounds how often replace tries again. The server's position may advance without a change of data while the server is
// told to replicate, for example by pings to its replicas.
const tries = 5

// replace makes the server load the target if its data is the base.
func (d *Driver) replace(ctx context.Context, p *plan, target, base cas.Root) error {
	for range tries {
		at, is, err := d.atBase(ctx, base)
		if err != nil {
			return err
		}
		if !is {
			break
		}
		err = d.lead(ctx, p, target, &at, func() error { return d.records.Advance(p, database.Committing) })
		if !errors.Is(err, errMoved) {
			return errs.Also(err, d.callOff(ctx, p, at, err))
		}
	}
	return snap.Changed("", "the server at "+d.server.String())
}

// callOff returns the plan to Prepared after a failed Commit if the server still has its data at position at. Otherwise Undo
// must restore the data. A server that is a master again remembers the previous history of its data, which is either its own or
// that of the master from which it replicated.
func (d *Driver) callOff(ctx context.Context, p *plan, at position, failed error) error {
	if failed == nil || p.Phase != database.Committing || p.Lead != nil {
		return nil
	}
	ctx, cancel := d.after(ctx)
	defer cancel()
	c, err := d.dial(ctx)
	if err != nil {
		return nil // Commit returns its own error
	}
	defer c.close()
	r, err := c.info("replication")
	if err != nil || r["master_replid2"] != at.ID {
		return nil
	}
	return d.records.Advance(p, database.Prepared)
}

// Undo makes the server load the base.
func (e engine) Undo(ctx context.Context, p *plan, _, base cas.Root) error {
	if err := e.d.letGo(ctx, p); err != nil {
		return err
	}
	_, is, err := e.d.atBase(ctx, base)
	if err == nil && !is {
		err = e.d.lead(ctx, p, base, nil, func() error { return e.d.cfg.Failpoint.At("undo: load") })
	}
	if err != nil {
		return err
	}
	return e.d.awaitPersisted(ctx)
}

// ReadBack reads the live state. Keys that have expired since the capture of want count as equal.
func (e engine) ReadBack(ctx context.Context, p *plan, want cas.Root) (hash snap.Hash, notes []string, err error) {
	if err := e.d.letGo(ctx, p); err != nil {
		return hash, nil, err
	}
	live, err := e.d.read(ctx, io.Discard, nil)
	if err != nil {
		return hash, nil, err
	}
	defer live.scanned.close()
	match, gone, err := e.d.same(ctx, live, want)
	if err != nil {
		return hash, nil, err
	}
	if gone > 0 {
		notes = append(notes, fmt.Sprintf("%d keys of that state have expired since.", gone))
	}
	if !match {
		return live.hash(), notes, nil
	}
	hash, err = database.HashOf(want)
	return hash, notes, err
}

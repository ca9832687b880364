package physical

import (
	"cmp"
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/contents"
)

// Plan records the base, the target and the fork in p. The fork is that of the last preparation, the folder that was kept at
// the target, or the name of a new one. After an error, it starts a server that the salvage of the base stopped.
func (e engine) Plan(ctx context.Context, p, old *plan, target, base state) (err error) {
	defer func() {
		if err != nil && base.raw != nil {
			err = errs.Also(err, e.raws.start(context.WithoutCancel(ctx), base.raw))
		}
	}()
	f, err := e.survivor(ctx, base)
	if err != nil {
		return err
	}
	p.facts, p.System, p.From, p.RawBase = f, f.System, base.place, base.raw
	if target.raw != nil && !target.raw.Whole {
		p.RawTarget = target.raw
	}
	if p.Live, err = asowner.Inode(e.cfg.DataDir); err != nil {
		return err
	}
	p.setChanges(target, base, nil)
	p.Fork.Dir = randomHex(8)
	if p.RawTarget != nil {
		return nil
	}
	if old != nil && old.Phase == database.Prepared && old.Target == p.Target {
		if now, err := e.server.ReadControl(ctx, e.store.path("forks", old.Fork.Dir)); err == nil && now.Same(old.Fork.End) {
			p.Fork, p.Kept, p.Digest, p.Rows, p.reuses = old.Fork, old.Kept, old.Digest, old.Rows, true
			p.setChanges(target, base, old.Changes[1:])
			return nil
		}
	}
	fk, found, err := e.forks.kept(ctx, target.ID)
	if found {
		p.Fork, p.Kept, p.reuses = fk, true, true
	}
	return err
}

// Build makes a fork of the target. The live server runs meanwhile.
func (e engine) Build(ctx context.Context, p, old *plan, target, base state) error {
	if base.raw != nil { // the plan is saved, and Drop goes by it
		if err := e.records.drop(".", haltedRecord); err != nil {
			return err
		}
	}
	if !p.reuses {
		if err := e.fill(ctx, p, target, base); err != nil {
			return err
		}
	}
	if old != nil && old.Fork.Dir != p.Fork.Dir && !old.Kept {
		return e.store.remove(ctx, e.store.path("forks", old.Fork.Dir))
	}
	return nil
}

// survivor checks that a restore can begin with base, and returns the facts of the live server. If base is a raw snapshot, it
// returns the facts that were recorded before the server broke.
func (e engine) survivor(ctx context.Context, base state) (f facts, err error) {
	if base.raw != nil {
		return e.records.known()
	}
	c, err := e.server.connect(ctx)
	if errs.KindOf(err) == errs.Unavailable {
		if err = e.server.revive(ctx, true, err, e.records.clusters()); err == nil {
			c, err = e.server.connect(ctx)
		}
	}
	if err != nil {
		return f, err
	}
	defer c.Close()
	if f, err = e.server.inspect(ctx, c); err != nil {
		return f, err
	}
	if err := cmp.Or(e.server.refuse(ctx, f), e.records.clusters().Check(f.System)); err != nil {
		return f, err
	}
	if f.TLI != base.TLI {
		return f, snap.Changed("", "cluster "+e.cfg.Name)
	}
	return f, e.archive.collect(ctx, c, f) // so that little must be copied while the server is down
}

// fill makes the fork, and records the differences between its contents and the live ones.
func (e engine) fill(ctx context.Context, p *plan, target, base state) error {
	if p.RawTarget != nil {
		return e.raws.fork(ctx, *target.raw, &p.Fork)
	}
	if err := e.forks.of(ctx, target, p.facts, &p.Fork); err != nil {
		return err
	}
	p.Digest, p.Rows = p.Fork.Contents.Digest(), p.Fork.Contents.Rows
	if base.raw != nil {
		return nil
	}
	limit := int64(-1)
	if p.Rows {
		limit = e.cfg.DigestLimit
	}
	now, err := contents.Read(ctx, e.server.connectTo, limit)
	if err == nil {
		p.setChanges(target, base, contents.Differences(p.Fork.Contents, now))
	}
	return err
}

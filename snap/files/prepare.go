package files

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

// Prepare makes ready to restore a whole workspace.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	return d.PrepareScoped(ctx, req, nil)
}

// PrepareScoped makes ready to restore paths and what lies below them. Hard
// links between a file in the scope and one outside of it are not restored.
func (d *Driver) PrepareScoped(ctx context.Context, req snap.RestoreRequest, paths []string) (snap.Switch, error) {
	const op = "prepare files"
	if err := checkID(op, string(req.ID)); err != nil {
		return nil, err
	}
	sc, err := makeScope(op, paths)
	if err != nil {
		return nil, err
	}
	base, target, err := d.ends(ctx, op, req.Base, req.Target)
	if err != nil {
		return nil, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	return d.prepare(ctx, op, req.ID, base, target, sc, b)
}

// prepare makes ready to go from base to target, whose new contents b has.
func (d *Driver) prepare(ctx context.Context, op string, id snap.RestoreID, base, target *manifest.Manifest, sc relpath.Scope, b *cas.Batch) (snap.Switch, error) {
	deltas, err := d.compare(ctx, base, target, sc)
	if err == nil {
		err = d.checkPossible(ctx, op, deltas, base, target, sc)
	}
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	p := &plan{Version: planVersion, State: prepared, Base: manifest.HexHash(base.Hash), Target: manifest.HexHash(target.Hash)}
	for _, s := range sc {
		p.Scope = append(p.Scope, []byte(s))
	}
	if err := d.record(ctx, id, p, base, target, b); err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	return &change{d: d, id: id, plan: p, base: base, target: target, deltas: deltas}, nil
}

// Foresee refuses what Prepare would refuse for its rights, its room or what is excluded. What
// does not hold still, or can't be read, is for the capture to tell.
func (d *Driver) Foresee(ctx context.Context, target snap.SnapshotID, paths []string) error {
	const op = "prepare files"
	sc, err := makeScope(op, paths)
	if err != nil {
		return err
	}
	to, err := d.stored(ctx, op, target)
	if err != nil {
		return err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	now, err := d.present(ctx, op, b, sc)
	if err != nil {
		return nil
	}
	deltas, err := d.compare(ctx, now.Manifest, to, sc)
	if err == nil {
		_, err = d.allowed(ctx, op, deltas, rights.HolderOf(d.cfg.Reader, d.cfg.Owner, now.Root.Uid), now.Manifest, to, sc)
	}
	return workspace.Wrap(errs.Failed, op, err)
}

// record makes the preparation durable: what it needs, and the plan.
func (d *Driver) record(ctx context.Context, id snap.RestoreID, p *plan, base, target *manifest.Manifest, b *cas.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	plan, err := d.putPlan(id, p, b)
	if err != nil {
		return err
	}
	for _, m := range []*manifest.Manifest{base, target} {
		if m.Source.IsZero() {
			if err := m.Save(b); err != nil {
				return err
			}
		}
	}
	from, to := d.switchRoots(id)
	if err := b.Commit(cas.Root{Name: from, Hash: base.Source}, cas.Root{Name: to, Hash: target.Source}, plan); err != nil {
		return err
	}
	return d.cfg.Failpoint.At("switch planned")
}

// checkPossible makes sure of what Commit and Undo will need: contents that
// are whole, the right to give files to their owners, folders that may change hands, and room.
func (d *Driver) checkPossible(ctx context.Context, op string, deltas []diff.Delta, base, target *manifest.Manifest, sc relpath.Scope) error {
	holder := rights.HolderOf(d.cfg.Reader, d.cfg.Owner, base.Root.Uid)
	deltas, err := d.allowed(ctx, op, deltas, holder, base, target, sc)
	if err != nil {
		return err
	}
	return parallel.InRuns(len(deltas), func() (func(int) error, func()) {
		return func(i int) error { return d.checkContents(ctx, &deltas[i], holder) }, func() {}
	})
}

// allowed makes sure of everything but stored contents. It returns deltas with what must be
// made anew because its folder changes hands.
func (d *Driver) allowed(ctx context.Context, op string, deltas []diff.Delta, holder rights.Holder, base, target *manifest.Manifest, sc relpath.Scope) ([]diff.Delta, error) {
	if err := d.checkWays(op, deltas, holder, target); err != nil {
		return nil, err
	}
	deltas, err := d.withRemade(ctx, deltas, base, target, sc)
	if err == nil {
		err = d.checkHeld(op, deltas)
	}
	if err == nil {
		err = d.checkGiven(op, deltas)
	}
	if err == nil {
		err = d.checkRoom(op, deltas)
	}
	return deltas, err
}

func (d *Driver) checkContents(ctx context.Context, c *diff.Delta, holder rights.Holder) error {
	nothing := func(int64, []byte) error { return ctx.Err() }
	for _, e := range []*manifest.Entry{c.New, c.Old} {
		if e == nil || !e.IsFile() || !c.Remake && c.Old != nil && c.New != nil && c.Old.Hash == c.New.Hash && holder.Keeps(c.Old, c.New) {
			continue
		}
		if err := manifest.EachPiece(d.cfg.Store, e, nothing); err != nil {
			return contentError(workspace.Shown(d.cfg.Dir, c.Seen()), err)
		}
	}
	return ctx.Err()
}

// contentError is for what is stored of a file and cannot be had: whatever is
// missing or unreadable there is damage.
func contentError(path string, err error) error {
	if workspace.Cancelled(err) {
		return err
	}
	if k := errs.KindOf(err); k != errs.NotFound && k != errs.Corrupt && k != errs.Internal {
		return err
	}
	return &errs.Error{Kind: errs.Corrupt, Message: "the stored content of " + path, Err: err,
		Hint: "choose another checkpoint; mulligan verify says which are whole"}
}

// checkRoom compares what Commit will write with what the disk has. A batch
// exists beside the files that it replaces, until they are gone.
func (d *Driver) checkRoom(op string, deltas []diff.Delta) error {
	var grows, writes int64
	for _, c := range deltas {
		if c.New != nil && c.New.IsFile() && (c.Old == nil || c.Old.Hash != c.New.Hash) {
			n := manifest.StoredSize(d.cfg.Store, c.New)
			grows, writes = grows+n, writes+n
		}
		if c.Old != nil && c.Old.IsFile() && (c.New == nil || c.Old.Hash != c.New.Hash) {
			grows -= manifest.StoredSize(d.cfg.Store, c.Old)
		}
	}
	root, err := d.ws.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(root.FD(), &fs); err != nil {
		return err
	}
	need, free := max(grows, 0)+min(writes, batchBytes), int64(fs.Bavail)*fs.Bsize
	if os.Geteuid() == 0 {
		free = int64(fs.Bfree) * fs.Bsize
	}
	if writes == 0 || need <= free || fs.Blocks == 0 { // no blocks: the filesystem does not say (ramfs)
		return nil
	}
	return errs.New(errs.Failed, op, "the restore needs %s on the disk of %s, which has %s left", diff.FormatSize(need), d.cfg.Dir, diff.FormatSize(free)).
		WithHint("free some space there and try again")
}

package physical

import (
	"context"
	"fmt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/contents"
	"mulligan/snap/postgres/physical/pgserver"
)

// engine implements the steps of a restore, whose order package database defines for all drivers, and finds the snapshots of a
// restore. The plan has all that the steps need of these snapshots.
type engine struct{ *pieces }

var (
	_ database.Steps[*plan, state] = engine{}
	_ database.Snapshots[state]    = engine{}
)

func (e engine) Snapshot(_ string, id snap.SnapshotID) (state, error) { return e.records.state(id) }

// Intact does nothing: the base backup is checked while the log is replayed from it.
func (engine) Intact(context.Context, state) error { return nil }

func (engine) Hold(_ *database.Plan, _, _ state) error              { return nil }
func (engine) Held(*database.Plan) (target, base state, err error)  { return target, base, nil }
func (engine) Release(_ snap.RestoreID, _ ...snap.SnapshotID) error { return nil }
func (e engine) Classify(op string, err error) error {
	return database.Classify(op, err, e.cfg.DataDir)
}

// Stale reports whether the live state is no longer the base: whether the log has a commit after the base's marker that changed
// something.
func (e engine) Stale(ctx context.Context, p *plan, _ state) (bool, error) { return e.moved(ctx, p) }

// Warm makes the server write its buffers to the disk, so that stopping it is quick.
func (e engine) Warm(ctx context.Context, _ *plan, _ state) error {
	_, err := e.server.writeOut(ctx)
	return err
}

// moved reports whether the live folder was changed since the base. The server may be down.
func (e engine) moved(ctx context.Context, p *plan) (bool, error) {
	now, err := asowner.Inode(e.cfg.DataDir)
	if err != nil || now != p.Live {
		return true, err
	}
	if p.RawBase != nil {
		return e.raws.moved(ctx, p.RawBase)
	}
	t, size, end, err := e.server.head(ctx)
	if err != nil || t != p.From.TLI {
		return true, err
	}
	_, changed, err := e.archive.firstChange(ctx, p.From, size, end)
	return changed, err
}

// Commit stops the server, exchanges the data folders, and starts the server again.
func (e engine) Commit(ctx context.Context, p *plan, _, _ state) error {
	done, err := e.exchanged(p)
	if err == nil && !done {
		err = e.swapIn(ctx, p)
	}
	if err == nil {
		err = e.cfg.Failpoint.At("commit: start")
	}
	if err != nil {
		return err
	}
	p.up = true
	return e.bringUp(ctx, p, p.RawTarget)
}

// Tidy starts a server that a salvage stopped. It is called when Commit is repeated after its end, and when Undo has nothing to
// exchange.
func (e engine) Tidy(ctx context.Context, p *plan) error {
	switch {
	case p.up:
		return nil
	case p.Phase == database.Committed:
		return e.bringUp(ctx, p, p.RawTarget)
	case p.RawBase != nil:
		return e.bringUp(ctx, p, p.RawBase)
	}
	return nil
}

// swapIn stops the server and makes the fork the live folder. If something was committed since the base, it starts the server
// in the old folder again, and returns an error.
func (e engine) swapIn(ctx context.Context, p *plan) error {
	if err := e.checkFork(ctx, p); err != nil {
		return err
	}
	if err := e.quiet(ctx, p); err != nil {
		return err
	}
	p.Read = snap.Hash{}
	if err := e.plans.Advance(p, database.Committing); err != nil {
		return err
	}
	if err := e.cfg.Failpoint.At("commit: stop"); err != nil {
		return err
	}
	e.marks.hangUp() // a server may wait for its clients
	if err := e.server.Stop(ctx); err != nil {
		return err
	}
	moved, err := e.moved(ctx, p)
	if err != nil {
		return err
	}
	if moved {
		err := e.bringUp(ctx, p, p.RawBase)
		if err == nil { // else Commit or Undo starts the server
			err = e.plans.Advance(p, database.Prepared)
		}
		return errs.Also(snap.Changed("", "cluster "+e.cfg.Name), err)
	}
	if err := e.cfg.Failpoint.At("commit: save log"); err != nil {
		return err
	}
	if err := e.saveLive(ctx, p); err != nil {
		return err
	}
	if p.RawTarget == nil {
		if err := e.records.clusters().Admit(p.Fork.End.System); err != nil {
			return err
		}
	}
	if err := e.cfg.Failpoint.At("commit: exchange"); err != nil {
		return err
	}
	return e.store.exchange(ctx, e.store.path("forks", p.Fork.Dir))
}

// checkFork returns an error if the fork was changed since it was prepared.
func (e engine) checkFork(ctx context.Context, p *plan) error {
	fork := e.store.path("forks", p.Fork.Dir)
	n, err := asowner.Inode(fork)
	same := err == nil && n == p.Fork.Inode
	if same && p.RawTarget == nil {
		var now pgserver.Control
		now, err = e.server.ReadControl(ctx, fork)
		same = err == nil && now.Same(p.Fork.End)
	}
	if !same {
		return errs.Also(errs.New(errs.Corrupt, "", "the prepared folder %s is not as it was left", fork).WithHint("restore again"), err)
	}
	return nil
}

// saveLive saves the log of the live folder, whose server is stopped. If the base is a raw snapshot, errors are not fatal: the
// archive has at least links to the log that markers need.
func (e engine) saveLive(ctx context.Context, p *plan) error {
	ctl, err := e.server.ReadControl(ctx, e.cfg.DataDir)
	if p.RawBase != nil && (err != nil || ctl.System != p.System) {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	err = e.archive.saveEnd(ctx, e.cfg.DataDir, ctl)
	if p.RawBase != nil && err != nil && ctx.Err() == nil {
		e.cfg.Log.Warn("the log of a broken cluster could not be saved", "cluster", e.cfg.Name, "err", err)
		return nil
	}
	return err
}

// quiet makes the server write its buffers to the disk, so that stopping it is quick: what was committed since the base is looked for once it has stopped.
// Of a raw base, quiet returns an error if its files have changed.
func (e engine) quiet(ctx context.Context, p *plan) error {
	if p.RawBase == nil {
		_, err := e.server.writeOut(ctx)
		return err
	}
	moved, err := e.moved(ctx, p)
	if moved && err == nil {
		err = snap.Changed("", "cluster "+e.cfg.Name)
	}
	return err
}

// Undo exchanges the folders back if Commit exchanged them. The server continues in the folder from before the restore;
// everything written to the fork is lost.
func (e engine) Undo(ctx context.Context, p *plan, _, _ state) error {
	done, err := e.exchanged(p)
	if err == nil && done {
		err = e.swapBack(ctx, p)
	}
	if err == nil {
		err = e.cfg.Failpoint.At("undo: start")
	}
	if err != nil {
		return err
	}
	p.up = true
	return e.bringUp(ctx, p, p.RawBase)
}

// swapBack stops the server and makes the folder from before the restore live again.
func (e engine) swapBack(ctx context.Context, p *plan) error {
	if err := e.cfg.Failpoint.At("undo: stop"); err != nil {
		return err
	}
	e.marks.hangUp()
	if err := e.server.Stop(ctx); err != nil {
		return err
	}
	if !p.Read.IsZero() { // the hash of the target
		p.Read = snap.Hash{}
		if err := e.plans.Save(p); err != nil {
			return err
		}
	}
	if err := e.cfg.Failpoint.At("undo: exchange"); err != nil {
		return err
	}
	return e.store.exchange(ctx, e.store.path("forks", p.Fork.Dir))
}

// check compares the live server's identity and log with the expected ones, and the contents with those of the fork if they
// were read.
func (e engine) check(ctx context.Context, p *plan, _, _ state) (proof snap.Proof, err error) {
	back := p.Back()
	from, digest := p.Fork.place(), p.Digest
	proof = snap.Proof{Pre: p.baseHash(), Want: p.targetHash(), Notes: p.notes(back)}
	if r := p.wanted(back); r != nil {
		err = e.raws.proof(ctx, p, r, &proof)
		return proof, err
	}
	if back {
		from, digest, proof.Want = p.From, snap.Hash{}, p.baseHash()
	}
	proof.Post, err = e.liveHash(ctx, from, digest, p.Rows)
	proof.Match, proof.Shallow = proof.Post == proof.Want, digest.IsZero()
	return proof, err
}

// wanted returns the raw snapshot that should be live, or nil if a marker should be.
func (p *plan) wanted(back bool) *raw {
	if back {
		return p.RawBase
	}
	return p.RawTarget
}

// notes describes what the proof of a restore, or of its undo, compared.
func (p *plan) notes(back bool) []string {
	if back {
		return []string{"The data folder from before is live again; the log shows whether anything was committed to it since the safety checkpoint."}
	}
	what := "the catalogs of all databases"
	switch {
	case p.Digest.IsZero():
		what = "no contents, as the folder is the one that was swapped out at the target"
	case p.Rows:
		what = "every row of all databases"
	}
	return []string{
		fmt.Sprintf("Compared: the cluster's identifier, its timeline %d, its log since the fork was made, and %s.", p.Fork.End.TLI, what),
		"Sequences may stand up to 32 ahead of the marker, and unlogged tables come back empty.",
	}
}

// liveHash returns the hash of the live state, given a position in its history.
func (e engine) liveHash(ctx context.Context, from place, digest snap.Hash, rows bool) (h snap.Hash, err error) {
	c, err := e.server.connect(ctx)
	if err != nil {
		return h, err
	}
	defer c.Close()
	f, err := e.server.inspect(ctx, c)
	if err != nil {
		return h, err
	}
	end, err := c.Barrier(ctx)
	if err != nil || f.TLI != from.TLI {
		return stateHash(f.System, f.TLI, end, snap.Hash{}), err
	}
	at, changed, err := e.archive.firstChange(ctx, from, f.Segments, end)
	if err != nil {
		return h, err
	}
	if changed {
		return stateHash(f.System, f.TLI, at, snap.Hash{}), nil
	}
	if !digest.IsZero() {
		limit := int64(-1)
		if rows {
			limit = 1 << 62
		}
		now, err := contents.Read(ctx, e.server.connectTo, limit)
		if err != nil {
			return h, err
		}
		digest = now.Digest()
	}
	return stateHash(f.System, f.TLI, from.Start, digest), nil
}

// bringUp starts the server after a snapshot has become live. Files of a raw snapshot are left as they are, unless a server ran
// in them: then bringUp hashes them, and starts the server if that is possible.
func (e engine) bringUp(ctx context.Context, p *plan, r *raw) error {
	if r == nil {
		return e.server.Start(ctx)
	}
	if !r.Ran {
		return nil
	}
	if p.Read.IsZero() {
		now, err := asowner.HashRaw.Call(ctx, e.store.owner, e.cfg.DataDir)
		if err != nil {
			return err
		}
		p.Read = now
		if err := e.plans.Save(p); err != nil {
			return err
		}
	}
	return e.raws.start(ctx, r)
}

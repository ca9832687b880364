package physical

import (
	"context"
	"fmt"

	"mulligan/errs"
	"mulligan/snap"
)

// dbSwitch is a restore under way. What it knows is on disk, in the plan.
type dbSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
	total   int
}

// Changes lists what differs in the catalogs and in the sizes of tables, after
// one entry for the cluster as a whole.
func (s *dbSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], s.total
}

// with calls f with the plan, one at a time, and gives its error a kind.
func (s *dbSwitch) with(ctx context.Context, op string, f func(*plan) error) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := s.d.loadPlan(op, s.id)
	if err == nil {
		err = f(p)
	}
	return s.d.classify(op, err)
}

// Stale reports whether the live state is no longer the base: whether the log
// holds a commit that changed something since the base's marker.
func (s *dbSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to cluster", func(p *plan) error {
		stale, err = s.d.moved(ctx, p)
		return err
	})
	return stale, err
}

// Warm has the server write its buffers out, so that stopping it is quick.
func (s *dbSwitch) Warm(ctx context.Context) error {
	return s.with(ctx, "write out the buffers of cluster", func(*plan) error {
		_, err := s.d.writeOut(ctx)
		return err
	})
}

// moved reports whether the live folder is past the base. The server may be down.
func (d *Driver) moved(ctx context.Context, p *plan) (bool, error) {
	now, err := inode(d.cfg.DataDir)
	if err != nil || now != p.Live {
		return true, err
	}
	if p.RawBase != nil {
		return d.movedRaw(ctx, p.RawBase)
	}
	t, size, end, err := d.head(ctx)
	if err != nil || t != p.From.TLI {
		return true, err
	}
	_, changed, err := d.firstChange(ctx, p.From, size, end)
	return changed, err
}

// head is where the live folder's log ends: timeline and place. The place is 0
// after a crash of the server, when only reading tells.
func (d *Driver) head(ctx context.Context) (t timeline, size segments, end lsn, err error) {
	running, err := inUse(d.cfg.DataDir)
	if err != nil {
		return 0, 0, 0, err
	}
	ctl, err := d.readControl(ctx, d.cfg.DataDir)
	if err != nil || !running {
		if ctl.State == shutDown {
			end = ctl.Checkpoint // only that record is left
		}
		return ctl.TLI, ctl.segments, end, err
	}
	c, err := d.connect(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	defer c.close()
	if t, err = c.timeline(ctx); err == nil {
		end, err = c.barrier(ctx)
	}
	return t, ctl.segments, end, err
}

// Commit stops the server, exchanges the data folders, and starts it again.
func (s *dbSwitch) Commit(ctx context.Context) error {
	const op = "restore cluster"
	return s.with(ctx, op, func(p *plan) error {
		switch p.Phase {
		case committed:
			return s.d.bringUp(ctx, p, p.RawTarget)
		case undoing, undone:
			return errs.New(errs.Conflict, "", "restore %s was undone", p.ID).WithHint("restore again")
		}
		done, err := s.d.exchanged(p)
		if err != nil {
			return err
		}
		if !done {
			if err := s.d.swapIn(ctx, p); err != nil {
				return err
			}
		}
		if err := s.d.cfg.Failpoint.At("commit: start"); err != nil {
			return err
		}
		if err := s.d.bringUp(ctx, p, p.RawTarget); err != nil {
			return err
		}
		return s.d.advance(p, committed)
	})
}

// swapIn makes the fork the live folder, with the server down. If something was
// committed since the base, the server goes on as it was.
func (d *Driver) swapIn(ctx context.Context, p *plan) error {
	if err := d.checkFork(ctx, p); err != nil {
		return err
	}
	if err := d.quiet(ctx, p); err != nil {
		return err
	}
	p.Read = snap.Hash{}
	if err := d.advance(p, committing); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("commit: stop"); err != nil {
		return err
	}
	if err := d.stop(ctx); err != nil {
		return err
	}
	moved, err := d.moved(ctx, p)
	if err != nil {
		return err
	}
	if moved {
		return errs.Also(snap.Changed("", "cluster "+d.cfg.Name), errs.Also(d.bringUp(ctx, p, p.RawBase), d.advance(p, prepared)))
	}
	if err := d.cfg.Failpoint.At("commit: save log"); err != nil {
		return err
	}
	if err := d.saveLive(ctx, p); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("commit: exchange"); err != nil {
		return err
	}
	return d.exchange(ctx, d.stored("forks", p.Fork.Dir))
}

// checkFork makes sure that the fork is as it was left.
func (d *Driver) checkFork(ctx context.Context, p *plan) error {
	fork := d.stored("forks", p.Fork.Dir)
	n, err := inode(fork)
	same := err == nil && n == p.Fork.Inode
	if same && p.RawTarget == nil {
		var now control
		now, err = d.readControl(ctx, fork)
		same = err == nil && now.same(p.Fork.End)
	}
	if !same {
		return errs.Also(errs.New(errs.Corrupt, "", "the prepared folder %s is not as it was left", fork).WithHint("restore again"), err)
	}
	return nil
}

// saveLive saves the log of the live folder, whose server was stopped. Of a folder that
// was kept raw it saves what it can: of the log that markers need, the archive has
// links at least.
func (d *Driver) saveLive(ctx context.Context, p *plan) error {
	ctl, err := d.readControl(ctx, d.cfg.DataDir)
	if p.RawBase != nil && (err != nil || ctl.System != p.System) {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	err = d.saveEnd(ctx, d.cfg.DataDir, ctl)
	if p.RawBase != nil && err != nil && ctx.Err() == nil {
		d.cfg.Log.Warn("the log of a broken cluster could not be saved", "cluster", d.cfg.Name, "err", err)
		return nil
	}
	return err
}

// quiet refuses early where something was committed since the base, and else has
// the server write its buffers out, so that stopping it is quick.
func (d *Driver) quiet(ctx context.Context, p *plan) error {
	if p.RawBase == nil {
		if up, err := d.writeOut(ctx); err != nil || !up {
			return err
		}
	}
	moved, err := d.moved(ctx, p)
	if moved && err == nil {
		err = snap.Changed("", "cluster "+d.cfg.Name)
	}
	return err
}

// writeOut has the server write its buffers out, if it is up. One that is down,
// or dead, is told by what its log holds.
func (d *Driver) writeOut(ctx context.Context) (up bool, err error) {
	if d.status(ctx, d.cfg.DataDir) != "ready" {
		return false, nil
	}
	c, err := d.connect(ctx)
	if err != nil {
		return false, err
	}
	defer c.close()
	return true, c.exec(ctx, "CHECKPOINT")
}

// Undo exchanges the folders back, if Commit did exchange them. The folder from
// before the restore goes on where it was stopped; what was written to the fork is lost.
func (s *dbSwitch) Undo(ctx context.Context) error {
	const op = "undo the restore of cluster"
	return s.with(ctx, op, func(p *plan) error {
		switch p.Phase {
		case undone:
			return nil
		case prepared:
			if p.RawBase != nil {
				if err := s.d.bringUp(ctx, p, p.RawBase); err != nil {
					return err
				}
			}
			return s.d.advance(p, undone)
		}
		if p.Phase != undoing {
			p.Read = snap.Hash{}
		}
		if err := s.d.advance(p, undoing); err != nil {
			return err
		}
		done, err := s.d.exchanged(p)
		if err != nil {
			return err
		}
		if done {
			if err := s.d.cfg.Failpoint.At("undo: stop"); err != nil {
				return err
			}
			if err := s.d.stop(ctx); err != nil {
				return err
			}
			if err := s.d.cfg.Failpoint.At("undo: exchange"); err != nil {
				return err
			}
			if err := s.d.exchange(ctx, s.d.stored("forks", p.Fork.Dir)); err != nil {
				return err
			}
		}
		if err := s.d.cfg.Failpoint.At("undo: start"); err != nil {
			return err
		}
		if err := s.d.bringUp(ctx, p, p.RawBase); err != nil {
			return err
		}
		return s.d.advance(p, undone)
	})
}

// Check compares what the live server says of itself, and its log, with what it
// should be; and the contents with the fork's, where those were read.
func (s *dbSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	err = s.with(ctx, "check the restore of cluster", func(p *plan) error {
		back := p.Phase == undoing || p.Phase == undone
		from, digest := p.Fork.place(), p.Digest
		proof = snap.Proof{Pre: p.baseHash(), Want: p.targetHash(), Notes: p.notes(back)}
		if r := p.wanted(back); r != nil {
			return s.d.rawProof(ctx, p, r, &proof)
		}
		if back {
			from, digest, proof.Want = p.From, snap.Hash{}, p.baseHash()
		}
		proof.Post, err = s.d.liveHash(ctx, from, digest, p.Rows)
		proof.Match, proof.Shallow = proof.Post == proof.Want, digest.IsZero()
		return err
	})
	return proof, err
}

// wanted is what should be live, if it was kept raw.
func (p *plan) wanted(back bool) *raw {
	if back {
		return p.RawBase
	}
	return p.RawTarget
}

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

// liveHash is the hash of the live state, seen from a place in its history.
func (d *Driver) liveHash(ctx context.Context, from place, digest snap.Hash, rows bool) (h snap.Hash, err error) {
	c, err := d.connect(ctx)
	if err != nil {
		return h, err
	}
	defer c.close()
	f, err := d.inspect(ctx, c)
	if err != nil {
		return h, err
	}
	end, err := c.barrier(ctx)
	if err != nil || f.TLI != from.TLI {
		return stateHash(f.System, f.TLI, end, snap.Hash{}), err
	}
	at, changed, err := d.firstChange(ctx, from, f.Segments, end)
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
		now, err := readContents(ctx, d.connectTo, limit)
		if err != nil {
			return h, err
		}
		digest = now.digest()
	}
	return stateHash(f.System, f.TLI, from.Start, digest), nil
}

// Finish ends the restore. After a Commit, the folder that was swapped out stays
// for as long as the base's snapshot does: the way forward needs no replay. A
// restore that is half done must be committed or undone first.
func (s *dbSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of cluster"
	err := s.with(ctx, op, func(p *plan) error {
		if p.Phase == committing || p.Phase == undoing {
			return errs.New(errs.Conflict, "", "restore %s is half done", p.ID).WithHint("commit it again, or undo it")
		}
		return s.d.finish(ctx, p)
	})
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}

func (d *Driver) finish(ctx context.Context, p *plan) error {
	if err := d.cfg.Failpoint.At("finish"); err != nil {
		return err
	}
	live, err := d.exchanged(p)
	if err != nil {
		return err
	}
	switch {
	case live:
		err = d.keep(ctx, p)
	case p.Kept:
		err = d.keepAgain(ctx, p)
	default:
		err = d.remove(ctx, d.stored("forks", p.Fork.Dir))
	}
	if err != nil {
		return err
	}
	return d.drop("switches", string(p.ID))
}

// keep records the folder that was swapped out as its marker's, and forgets that
// the live one was.
func (d *Driver) keep(ctx context.Context, p *plan) error {
	dir := d.stored("forks", p.Fork.Dir)
	if p.Kept {
		if err := d.drop("kept", string(p.Target)); err != nil {
			return err
		}
	}
	if p.RawBase != nil { // a copy of it is kept
		return d.remove(ctx, dir)
	}
	end, err := d.readControl(ctx, dir)
	if err != nil {
		return err
	}
	if _, err := d.marker(p.Base); errs.KindOf(err) == errs.NotFound || end.State != shutDown {
		return d.remove(ctx, dir)
	} else if err != nil {
		return err
	}
	return d.put("kept", string(p.Base), kept{Marker: p.Base, Dir: p.Fork.Dir, Inode: p.Live, End: end})
}

// keepAgain keeps a folder that was live between Commit and Undo only if nothing
// was changed in it meanwhile.
func (d *Driver) keepAgain(ctx context.Context, p *plan) error {
	now, err := d.readControl(ctx, d.stored("forks", p.Fork.Dir))
	if err == nil && now.same(p.Fork.End) {
		return nil
	}
	if err := d.drop("kept", string(p.Target)); err != nil {
		return err
	}
	return d.remove(ctx, d.stored("forks", p.Fork.Dir))
}

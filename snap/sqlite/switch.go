package sqlite

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/records"
)

// dbSwitch is a restore under way. What it knows is on disk, in the plan.
type dbSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
}

// Changes says how the database differs, in at most one entry.
func (s *dbSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
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
	if err != nil {
		return s.d.classify(op, err)
	}
	return nil
}

// ends gives the stored states of target and base.
func (d *Driver) ends(p *plan) (target, base *stored, err error) {
	t, b, err := d.records.Held(p.Head())
	if err != nil {
		return nil, nil, err
	}
	if target, err = load(d.cfg.Store, t.Hash); err == nil {
		base, err = load(d.cfg.Store, b.Hash)
	}
	return target, base, records.Damaged(err)
}

// liveHash is the hash of the live state: that of base where the files' identity proves it.
func (l *live) liveHash(ctx context.Context, p *plan, base *stored) (snap.Hash, error) {
	if l.surely(p.BaseIdentity) {
		return base.State.hash(), nil
	}
	s, _, err := l.readState(ctx)
	return s.hash(), err
}

// Stale reports whether the live state is no longer the base.
func (s *dbSwitch) Stale(ctx context.Context) (stale bool, err error) {
	const op = "look for later writes to database"
	err = s.with(ctx, op, func(p *plan) error {
		_, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		if base.Raw != nil {
			same, err := s.d.lies(ctx, op, base.record)
			stale = !same
			return err
		}
		return s.d.withLive(ctx, op, false, func(l *live) error {
			hash, err := l.liveHash(ctx, p, base)
			stale = hash != base.State.hash()
			return err
		})
	})
	return stale, err
}

// Commit replaces the database by the target. Whoever still has it open would
// go on with the old file, so that is errs.Busy.
func (s *dbSwitch) Commit(ctx context.Context) error {
	const op = "restore database"
	return s.with(ctx, op, func(p *plan) error {
		if p.Phase == records.Committed {
			return s.d.removeTemp(p.ID)
		}
		if err := p.Forward(op); err != nil {
			return err
		}
		target, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		if target.Raw != nil || base.Raw != nil {
			return s.commitRaw(ctx, op, p, target, base)
		}
		return s.d.withLive(ctx, op, true, func(l *live) error {
			hash, err := l.liveHash(ctx, p, base)
			if err != nil {
				return err
			}
			done := hash == target.State.hash()
			if hash != base.State.hash() && !(done && p.Phase == records.Committing) {
				return snap.Changed(op, "database "+s.d.cfg.Path)
			}
			if err := s.d.records.Advance(p, records.Committing); err != nil {
				return err
			}
			if !done {
				if err := s.d.replace(ctx, l, p.ID, target.record, s.copyStaged); err != nil {
					return err
				}
			}
			return s.d.records.Advance(p, records.Committed)
		})
	})
}

// commitRaw is Commit where one of the two ends was not read as a database.
func (s *dbSwitch) commitRaw(ctx context.Context, op string, p *plan, target, base *stored) error {
	begun := false
	if p.Phase == records.Committing {
		var err error
		if begun, err = s.d.between(ctx, op, target.record, base.record); err != nil {
			return err
		}
	}
	if !begun {
		same, err := s.d.lies(ctx, op, base.record)
		if err != nil {
			return err
		}
		if !same {
			return snap.Changed(op, "database "+s.d.cfg.Path)
		}
	}
	if err := s.d.records.Advance(p, records.Committing); err != nil {
		return err
	}
	if !begun && base.Raw == nil { // what lies there becomes the base as it is stored: one file
		if err := s.d.fold(ctx, op, p.ID); err != nil {
			return err
		}
	}
	if err := s.d.install(ctx, op, p.ID, target); err != nil {
		return err
	}
	if err := s.d.records.Advance(p, records.Committed); err != nil {
		return err
	}
	return s.d.removeTemp(p.ID)
}

// fold puts journal and log into the database file, and removes them. The state stays.
func (d *Driver) fold(ctx context.Context, op string, id snap.RestoreID) error {
	return d.withLive(ctx, op, true, func(l *live) error {
		if len(l.layers) > 0 {
			if err := d.settle(ctx, l, id); err != nil {
				return err
			}
		}
		return l.clear()
	})
}

// copyStaged writes the content that Prepare put beside the plan.
func (s *dbSwitch) copyStaged(f *os.File) error {
	staged, err := os.Open(filepath.Join(s.d.records.Folder(s.id), "target"))
	if err != nil {
		return err
	}
	defer staged.Close() // only read
	_, err = io.Copy(f, staged)
	return err
}

// Undo replaces the database by the base, if a Commit began. What was written
// after Commit is lost; what was written while there was no Commit stays.
func (s *dbSwitch) Undo(ctx context.Context) error {
	const op = "undo the restore of database"
	return s.with(ctx, op, func(p *plan) error {
		switch p.Phase {
		case records.Undone:
			return s.d.removeTemp(p.ID)
		case records.Prepared:
			return s.d.records.Advance(p, records.Undone)
		}
		target, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		if err := s.d.records.Advance(p, records.Undoing); err != nil {
			return err
		}
		if target.Raw == nil && base.Raw == nil {
			err := s.undoRead(ctx, op, p, base)
			if !s.d.unreadable(op, err) {
				return err
			}
		}
		if err := s.d.install(ctx, op, p.ID, base); err != nil {
			return err
		}
		if err := s.d.records.Advance(p, records.Undone); err != nil {
			return err
		}
		return s.d.removeTemp(p.ID)
	})
}

// undoRead is Undo from a state that can be read, to one that could be.
func (s *dbSwitch) undoRead(ctx context.Context, op string, p *plan, base *stored) error {
	return s.d.withLive(ctx, op, true, func(l *live) error {
		hash, err := l.liveHash(ctx, p, base)
		if err != nil {
			return err
		}
		if hash != base.State.hash() {
			write := func(f *os.File) error { return base.writeTo(ctx, f) }
			if err := s.d.replace(ctx, l, p.ID, base.record, write); err != nil {
				return err
			}
		}
		return s.d.records.Advance(p, records.Undone)
	})
}

// Check reads the live database again and compares.
func (s *dbSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	const op = "check the restore of database"
	err = s.with(ctx, op, func(p *plan) error {
		target, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		want := target
		if p.Back() {
			want = base
		}
		proof = snap.Proof{Pre: base.hash(), Want: want.hash()}
		read := errMoved
		if want.Raw == nil {
			read = s.d.withLive(ctx, op, false, func(l *live) error {
				now, _, err := l.readState(ctx)
				proof.Post, proof.Notes = now.hash(), l.warnings
				return err
			})
		}
		if want.Raw != nil || s.d.unreadable(op, read) {
			now, _, err := s.d.readRaw(ctx, op, sum)
			if proof.Post = now.hash(); err != nil {
				return err
			}
		} else if read != nil {
			return read
		}
		proof.Match = proof.Post == proof.Want
		return nil
	})
	return proof, err
}

// Finish drops what was kept for Undo. A restore that is half done must be
// committed or undone first.
func (s *dbSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of database"
	err := s.with(ctx, op, func(p *plan) error {
		if err := p.Ended(op); err != nil {
			return err
		}
		if err := s.d.removeTemp(p.ID); err != nil {
			return err
		}
		if err := s.d.records.Drop(string(p.ID)); err != nil {
			return err
		}
		return s.d.records.Release(p.ID)
	})
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}

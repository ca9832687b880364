package sqlite

import (
	"context"
	"io"
	"os"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// ends loads the target and the base.
func (e engine) ends(target, base cas.Root) (to, from *stored, err error) {
	if to, err = load(e.d.cfg.Store, target.Hash); err == nil {
		from, err = load(e.d.cfg.Store, base.Hash)
	}
	return to, from, database.Damaged(err)
}

// liveHash returns the hash of the live state: base's hash if the files' identity proves it.
func (l *live) liveHash(ctx context.Context, p *plan, base *stored) (snap.Hash, error) {
	if l.surely(p.BaseIdentity) {
		return base.State.hash(), nil
	}
	s, _, err := l.readState(ctx)
	return s.hash(), err
}

// Stale compares the live state with the base.
func (e engine) Stale(ctx context.Context, p *plan, base cas.Root) (stale bool, err error) {
	from, err := load(e.d.cfg.Store, base.Hash)
	if err != nil {
		return false, database.Damaged(err)
	}
	if from.Raw != nil {
		same, err := e.d.isLive(ctx, from.record)
		return !same, err
	}
	return e.d.isStale(ctx, p, from)
}

// isStale is Stale for a base that is a readable database.
func (d *Driver) isStale(ctx context.Context, p *plan, base *stored) (stale bool, err error) {
	err = d.withLive(ctx, false, func(l *live) error {
		hash, err := l.liveHash(ctx, p, base)
		stale = hash != base.State.hash()
		return err
	})
	return stale, err
}

// Commit replaces the database by the target if it differs. It returns errs.Busy then if another process has the database
// open, since that process would keep using the old file.
func (e engine) Commit(ctx context.Context, p *plan, target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err != nil {
		return err
	}
	if to.Raw != nil || from.Raw != nil {
		return e.commitRaw(ctx, p, to, from)
	}
	return e.d.withLive(ctx, to.hash() != from.hash(), func(l *live) error {
		hash, err := l.liveHash(ctx, p, from)
		if err != nil {
			return err
		}
		done := hash == to.State.hash()
		if hash != from.State.hash() && !(done && p.Phase == database.Committing) {
			return snap.Changed("", "database "+e.d.cfg.Path)
		}
		if err := e.d.records.Advance(p, database.Committing); err != nil || done {
			return err
		}
		return e.d.replace(ctx, l, p.ID, to.record, func(f *os.File) error { return e.d.copyStaged(f, p.ID) })
	})
}

// commitRaw is Commit if target or base is raw bytes.
func (e engine) commitRaw(ctx context.Context, p *plan, target, base *stored) error {
	begun := false
	if p.Phase == database.Committing {
		var err error
		if begun, err = e.d.between(ctx, target.record, base.record); err != nil {
			return err
		}
	}
	if !begun {
		same, err := e.d.isLive(ctx, base.record)
		if err != nil {
			return err
		}
		if !same {
			return snap.Changed("", "database "+e.d.cfg.Path)
		}
	}
	if err := e.d.records.Advance(p, database.Committing); err != nil {
		return err
	}
	if !begun && base.Raw == nil { // makes the live files equal to the stored base: one file
		if err := e.d.fold(ctx, p.ID); err != nil {
			return err
		}
	}
	return e.d.install(ctx, p.ID, target)
}

// fold applies journal and log to the database file, and removes them. The state stays the same.
func (d *Driver) fold(ctx context.Context, id snap.RestoreID) error {
	return d.withLive(ctx, true, func(l *live) error {
		if len(l.layers) > 0 {
			if err := d.applyLogs(ctx, l, id); err != nil {
				return err
			}
		}
		return l.clear()
	})
}

// copyStaged writes the content that Build staged beside the plan.
func (d *Driver) copyStaged(f *os.File, id snap.RestoreID) error {
	staged, err := os.Open(d.staged(id))
	if err != nil {
		return err
	}
	defer staged.Close() // only read
	_, err = io.Copy(f, staged)
	return err
}

// Undo replaces the database by the base.
func (e engine) Undo(ctx context.Context, p *plan, target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err != nil {
		return err
	}
	if to.Raw == nil && from.Raw == nil {
		err := e.undoRead(ctx, p, to, from)
		if !e.d.unreadable(err) {
			return err
		}
	}
	return e.d.install(ctx, p.ID, from)
}

// undoRead is Undo if the live state and both ends are readable databases. If the ends are equal, Commit changed nothing, and
// the daemon may not be able to.
func (e engine) undoRead(ctx context.Context, p *plan, target, base *stored) error {
	if target.hash() == base.hash() {
		if stale, err := e.d.isStale(ctx, p, base); err != nil || !stale {
			return err
		}
	}
	return e.d.withLive(ctx, true, func(l *live) error {
		hash, err := l.liveHash(ctx, p, base)
		if err != nil || hash == base.State.hash() {
			return err
		}
		return e.d.replace(ctx, l, p.ID, base.record, func(f *os.File) error { return base.writeTo(ctx, f) })
	})
}

// ReadBack reads the live database: as raw bytes if want is raw or the database cannot be read.
func (e engine) ReadBack(ctx context.Context, _ *plan, want cas.Root) (hash snap.Hash, notes []string, err error) {
	s, err := load(e.d.cfg.Store, want.Hash)
	if err != nil {
		return hash, nil, database.Damaged(err)
	}
	if s.Raw == nil {
		err = e.d.withLive(ctx, false, func(l *live) error {
			now, _, err := l.readState(ctx)
			hash, notes = now.hash(), l.warnings
			return err
		})
		if !e.d.unreadable(err) {
			return hash, notes, err
		}
	}
	now, _, err := e.d.readRaw(ctx, sum)
	return now.hash(), nil, err
}

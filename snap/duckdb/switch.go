package duckdb

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

func (e engine) ends(target, base cas.Root) (to, from stored, err error) {
	if to, err = e.d.load(target); err == nil {
		from, err = e.d.load(base)
	}
	return to, from, err
}

// Plan records the changes.
func (e engine) Plan(ctx context.Context, p, _ *database.Plan, target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err == nil {
		p.Changes, err = e.d.changes(ctx, to, from)
	}
	return err
}

// Build reads all of the target to check that it is complete. It builds nothing beside the live state.
func (e engine) Build(ctx context.Context, _, _ *database.Plan, target, _ cas.Root) error {
	return e.d.cfg.Store.Check(ctx, target.Name, true)
}

// Stale compares the live state with the base.
func (e engine) Stale(ctx context.Context, _ *database.Plan, base cas.Root) (bool, error) {
	h, _, err := e.ReadBack(ctx, nil, base)
	if err != nil {
		return true, err
	}
	want, err := database.HashOf(base)
	return h != want, err
}

// ReadBack reads the live state.
func (e engine) ReadBack(ctx context.Context, _ *database.Plan, _ cas.Root) (snap.Hash, []string, error) {
	l, err := e.d.open()
	if err != nil {
		return snap.Hash{}, nil, err
	}
	defer l.dir.Close() // all writes are synced
	s, err := e.d.present(ctx, l)
	return s.hash(), nil, err
}

// Commit replaces the base's files by the target's. The error is of kind errs.Busy if another process has the database open,
// because that process would continue with the old file.
func (e engine) Commit(ctx context.Context, p *database.Plan, target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err != nil {
		return err
	}
	return e.d.exchange(ctx, p.ID, to, func(now state) error {
		if now.hash() != from.hash() && !(p.Begun() && now.between(from.state, to.state)) {
			return snap.Changed("", "database "+e.d.cfg.Path)
		}
		return e.d.records.Advance(p, database.Committing)
	})
}

// Undo replaces the live files by the base's.
func (e engine) Undo(ctx context.Context, p *database.Plan, _, base cas.Root) error {
	from, err := e.d.load(base)
	if err != nil {
		return err
	}
	return e.d.exchange(ctx, p.ID, from, func(state) error { return nil })
}

// exchange makes the live state to, unless agree, called with the present state, returns an error. If the present state is to
// already, exchange changes nothing.
func (d *Driver) exchange(ctx context.Context, id snap.RestoreID, to stored, agree func(now state) error) error {
	l, err := d.open()
	if err != nil {
		return err
	}
	defer l.dir.Close() // all writes are synced
	held, err := l.lock()
	if err != nil {
		return err
	}
	defer held.Close() // this releases the lock; the file may have been removed by then
	now, err := d.present(ctx, l)
	if err != nil {
		return err
	}
	if err := agree(now); err != nil || now.hash() == to.hash() {
		return err
	}
	return d.install(ctx, l, id, to)
}

// install removes the log first, then replaces the database, and then writes the new log. So a log is never beside a database
// that it does not belong to. Between these steps the live state is neither base nor target, which the plan records.
func (d *Driver) install(ctx context.Context, l live, id snap.RestoreID, to stored) error {
	if err := l.unlink(l.name + ".wal"); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("replace: cleared"); err != nil {
		return err
	}
	if len(to.Entries) == 0 || to.Entries[0].Suffix != "" {
		if err := l.unlink(l.name); err != nil {
			return err
		}
	}
	for i, e := range to.Entries { // the database comes first
		f, err := d.put(ctx, l, id, e, to.contents[i])
		if err != nil {
			return err
		}
		defer f.Close() // the database stays locked until the log is written too
		if err := d.cfg.Failpoint.At("replace: renamed"); err != nil {
			return err
		}
	}
	return nil
}

// unlink removes a file from the folder durably. A missing file is not an error.
func (l live) unlink(name string) error {
	if err := unix.Unlinkat(l.dir.FD(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Fsync(l.dir.FD())
}

// tempName returns the name of the temporary file that a restore writes beside the database.
func tempName(id snap.RestoreID) string { return ".mulligan-" + string(id) }

// put writes a temporary file and renames it to the entry's name. It returns the open file, which is locked.
func (d *Driver) put(ctx context.Context, l live, id snap.RestoreID, e entry, content cas.Hash) (f *os.File, err error) {
	temp := tempName(id)
	if err := l.unlink(temp); err != nil {
		return nil, err
	}
	if f, err = l.dir.OpenFile(temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	err = lockFile(f)
	if err == nil {
		err = d.write(content, f)
	}
	if err == nil {
		err = errors.Join(unix.Fchown(int(f.Fd()), int(e.UID), int(e.GID)), unix.Fchmod(int(f.Fd()), e.Mode), f.Sync())
	}
	if err == nil {
		err = d.cfg.Failpoint.At("replace: written")
	}
	if err == nil {
		err = unix.Renameat(l.dir.FD(), temp, l.dir.FD(), l.name+e.Suffix)
	}
	if err != nil {
		return nil, errs.Also(err, errors.Join(f.Close(), l.unlink(temp)))
	}
	return f, unix.Fsync(l.dir.FD())
}

// Drop removes the temporary file of an interrupted restore. If the live state is neither base nor target, Drop restores the
// base.
func (e engine) Drop(ctx context.Context, p *database.Plan) (left []string, err error) {
	l, err := e.d.open()
	if err != nil {
		return nil, err
	}
	defer l.dir.Close() // all writes are synced
	if err := l.unlink(tempName(p.ID)); err != nil || p.Reached != database.Committing && p.Reached != database.Undoing {
		return nil, err
	}
	return nil, e.mend(ctx, p, l)
}

// mend restores the base if the live state is between base and target, and their snapshots still exist.
func (e engine) mend(ctx context.Context, p *database.Plan, l live) error {
	target, err1 := e.d.records.Snapshot("", p.Target)
	base, err2 := e.d.records.Snapshot("", p.Base)
	if err1 != nil || err2 != nil {
		return nil
	}
	to, from, err := e.ends(target, base)
	if err != nil {
		return err
	}
	now, err := e.d.present(ctx, l)
	if err != nil || now.hash() == to.hash() || !now.between(from.state, to.state) {
		return err
	}
	return e.d.exchange(ctx, p.ID, from, func(state) error { return nil })
}

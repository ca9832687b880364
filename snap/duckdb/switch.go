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

// Plan says what differs.
func (e engine) Plan(ctx context.Context, p, _ *database.Plan, target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err == nil {
		p.Changes, err = e.d.changes(ctx, to, from)
	}
	return err
}

// Build reads all of the target, so that Commit finds it whole. Nothing lies beside the live state.
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
	defer l.dir.Close() // what was written was synced
	s, err := e.d.present(ctx, l)
	return s.hash(), nil, err
}

// Commit puts the target's files in the place of the base's. Whoever still has the database open
// would go on with the old file, so that is errs.Busy.
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

// Undo puts the base's files back.
func (e engine) Undo(ctx context.Context, p *database.Plan, _, base cas.Root) error {
	from, err := e.d.load(base)
	if err != nil {
		return err
	}
	return e.d.exchange(ctx, p.ID, from, func(state) error { return nil })
}

// exchange makes the live state to, if agree agrees with what it is now. A state that is to already
// stays as it is.
func (d *Driver) exchange(ctx context.Context, id snap.RestoreID, to stored, agree func(now state) error) error {
	l, err := d.open()
	if err != nil {
		return err
	}
	defer l.dir.Close() // what was written was synced
	held, err := l.lock()
	if err != nil {
		return err
	}
	defer held.Close() // with its lock; the file may be gone by then
	now, err := d.present(ctx, l)
	if err != nil {
		return err
	}
	if err := agree(now); err != nil || now.hash() == to.hash() {
		return err
	}
	return d.install(ctx, l, id, to)
}

// install removes the log first, then puts the database in its place, and then the log: at no
// moment does a log lie beside a database that it does not belong to. Between these steps the state
// is neither, which the plan tells.
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
	for i, e := range to.Entries { // the database is the first
		f, err := d.put(ctx, l, id, e, to.contents[i])
		if err != nil {
			return err
		}
		defer f.Close() // which keeps the database locked until the log is there too
		if err := d.cfg.Failpoint.At("replace: renamed"); err != nil {
			return err
		}
	}
	return nil
}

// unlink removes a file from the folder, durably; one that is not there is no error.
func (l live) unlink(name string) error {
	if err := unix.Unlinkat(l.dir.FD(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Fsync(l.dir.FD())
}

// tempName is the file beside the database that a restore writes.
func tempName(id snap.RestoreID) string { return ".mulligan-" + string(id) }

// put writes a new file and renames it into its place.
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

// Drop removes what a restore that was cut short left beside the database, and where that is
// neither base nor target, puts the base back.
func (e engine) Drop(ctx context.Context, p *database.Plan) (left []string, err error) {
	l, err := e.d.open()
	if err != nil {
		return nil, err
	}
	defer l.dir.Close() // what was written was synced
	if err := l.unlink(tempName(p.ID)); err != nil || p.Reached != database.Committing && p.Reached != database.Undoing {
		return nil, err
	}
	return nil, e.mend(ctx, p, l)
}

// mend puts the base back where the live state is between base and target, as far as those are
// still there.
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

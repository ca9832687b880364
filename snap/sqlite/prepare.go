package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Plan computes the changes. If there are any, it returns an error if the daemon may not make them, or not undo them.
func (e engine) Plan(_ context.Context, p, _ *plan, target, base cas.Root) error {
	m, _, err := parseMeta(base)
	if err != nil {
		return err
	}
	p.BaseIdentity = m.Identity
	if p.Changes, err = e.d.diffRoots(target, base); err != nil || len(p.Changes) == 0 {
		return err
	}
	return e.mayReplace(target, base)
}

// mayReplace returns an error if the daemon may not write the live file, cannot give a file to the owner that it has in one of the states, or has
// no folder for the target.
func (e engine) mayReplace(target, base cas.Root) error {
	to, from, err := e.ends(target, base)
	if err != nil {
		return err
	}
	for _, file := range slices.Concat(to.entries(), from.entries()) {
		if me := os.Geteuid(); me != 0 && int(file.UID) != me {
			return errs.New(errs.Denied, "", "%s%s belongs to user %d, and only root can give a file to another user", e.d.cfg.Path, file.Path, file.UID).
				WithHint("register the app with the host's daemon, which is root's")
		}
	}
	l := &live{}
	err = l.openFile(e.d.cfg, true)
	switch {
	case e.d.unreadable(err): // it was kept as raw bytes
		err = nil
	case len(to.entries()) > 0 && l.gone != nil:
		err = l.gone
	}
	return errors.Join(err, l.close())
}

// Build writes the target's content beside the plan, durably, and checks its digest.
func (e engine) Build(ctx context.Context, p, _ *plan, target, _ cas.Root) error {
	s, err := load(e.d.cfg.Store, target.Hash)
	if err != nil {
		return database.Damaged(err)
	}
	f, err := os.OpenFile(e.d.staged(p.ID), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if s.Raw != nil {
		err = s.checkStored(ctx) // Commit builds it beside the database
	} else {
		err = s.writeTo(ctx, f)
	}
	return errors.Join(err, f.Sync(), f.Close(), e.d.cfg.Failpoint.At("prepare: stage"))
}

// staged returns the path of the file with the target's content.
func (d *Driver) staged(id snap.RestoreID) string {
	return filepath.Join(d.records.Folder(id), "target")
}

// Drop removes the files of the switch beside the database.
func (e engine) Drop(_ context.Context, p *plan) (left []string, err error) {
	return nil, e.d.removeTemp(p.ID)
}

// Tidy removes files that a Commit or Undo, interrupted at its end, left beside the database.
func (e engine) Tidy(_ context.Context, p *plan) error { return e.d.removeTemp(p.ID) }

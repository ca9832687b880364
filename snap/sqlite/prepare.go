package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Plan computes the changes.
func (e engine) Plan(_ context.Context, p, _ *plan, target, base cas.Root) error {
	m, _, err := parseMeta(base)
	if err != nil {
		return err
	}
	p.BaseIdentity = m.Identity
	p.Changes, err = e.d.diffRoots(target, base)
	return err
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

package layer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"mulligan/daemon/isolate"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres"
)

// SeedServers makes the data of those of a fork's own servers whose files the parent's driver manages, with the state of a checkpoint
// of the parent.
func (b *Binder) SeedServers(ctx context.Context, parent *Setup, rec store.App, origin store.Checkpoint) error {
	list, err := b.ownServers(rec)
	if err != nil {
		return err
	}
	for _, o := range list {
		if o.Seeded == nil {
			continue
		}
		l, src, err := o.source(parent)
		if err != nil {
			return err
		}
		held, ok := origin.Snapshot(l.Name)
		if !ok {
			return errs.New(errs.Conflict, "", "checkpoint %s was made before the app had the layer %s", origin.ID, l.Name).WithHint("use a newer checkpoint")
		}
		if err := src.SeedServer(ctx, o.seed(), held.ID); err != nil {
			return cannotFork(o.name, err)
		}
		if err := b.opt.Failpoint.At("fork: server seeded"); err != nil {
			return err
		}
		if _, err := postgres.KeepServer(ctx, *o.Seeded, o.seed(), o.aside().seed()); err != nil {
			return cannotFork(o.name, err)
		}
	}
	return nil
}

// source returns the layer of the parent's whose driver made the server's data.
func (o ownServer) source(parent *Setup) (Layer, snap.ServerSource, error) {
	for _, name := range o.dbs {
		if l, ok := parent.Layer(snap.DB(name)); ok {
			if src, ok := snap.ServerSourceOf(l.Driver); ok {
				return l, src, nil
			}
		}
	}
	return Layer{}, nil, errs.New(errs.Conflict, "", "the app's database %s is another one than when the fork was made", o.name).
		WithHint("make it what it was, or make a new fork")
}

// AdoptServer stores the state of the server that a fork has for a database as a snapshot of the parent's. The server is stopped.
func (b *Binder) AdoptServer(ctx context.Context, parent *Setup, rec store.App, of snap.Layer, as snap.SnapshotID) (snap.Snapshot, error) {
	list, err := b.ownServers(rec)
	if err != nil {
		return snap.Snapshot{}, err
	}
	for _, o := range list {
		if slices.ContainsFunc(o.dbs, func(name string) bool { return snap.DB(name) == of }) && o.Seeded != nil {
			_, src, err := o.source(parent)
			if err != nil {
				return snap.Snapshot{}, err
			}
			return src.AdoptServer(ctx, o.seed(), as)
		}
	}
	return snap.Snapshot{}, errs.New(errs.Conflict, "", "the fork's %s is of another kind than the app's", of).
		WithHint("make the mode of the database what it was when the fork was made")
}

// CaptureSeeded stores the state that a fork's server of seeded data begins with, as a snapshot of the layer.
func CaptureSeeded(ctx context.Context, l Layer, as snap.SnapshotID) (snap.Snapshot, error) {
	req := snap.CaptureRequest{ID: as}
	if d, ok := l.Driver.(*postgres.Driver); ok {
		return d.CaptureAside(ctx, req)
	}
	return l.Driver.Capture(ctx, req) // it is held up, and says why
}

// SeededLayers returns the names of a fork's layers that are databases on servers of the fork's own whose data the parent's driver made.
func (b *Binder) SeededLayers(rec store.App) (names []string, err error) {
	list, err := b.ownServers(rec)
	for _, o := range list {
		if o.Seeded == nil {
			continue
		}
		for _, name := range o.dbs {
			names = append(names, string(snap.DB(name)))
		}
	}
	return names, err
}

// hidden puts an empty folder in the place of each folder that the server must not reach, except where its program or the host's
// programs lie below it.
func (o ownServer) hidden(program string) (binds []isolate.Bind, err error) {
	none := filepath.Join(o.dir, "none")
	if len(o.Hidden) > 0 {
		if err := os.Mkdir(none, 0o555); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	for _, dir := range o.Hidden {
		at, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		needed := slices.ContainsFunc([]string{program, o.Programs[0], "/tmp", "/usr", "/etc", "/proc", "/dev/shm"}, func(used string) bool {
			rel, err := filepath.Rel(at, used)
			return err == nil && filepath.IsLocal(rel)
		})
		if rel, err := filepath.Rel("/tmp", at); needed || err == nil && filepath.IsLocal(rel) { // its /tmp is another one
			continue
		}
		binds = append(binds, isolate.Bind{From: none, At: at})
	}
	return binds, nil
}

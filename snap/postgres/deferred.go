package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/logical"
)

// Aside is a state of the database that lies in a server's files beside those of the live server. Its methods are safe for concurrent use.
type Aside interface {
	// Has reports whether the files exist.
	Has() (bool, error)
	// With starts a server on the files, calls use with its DSN, and stops the server. alive reports whether the server may still answer.
	With(ctx context.Context, use func(dsn string, alive func() bool) error) error
	// Drop removes the files. Files that other databases need stay.
	Drop(ctx context.Context) error
	// Size returns the bytes on disk that Drop would free.
	Size(ctx context.Context) (int64, error)
}

// deferred is a driver in logical mode with one snapshot that may be no dump yet, but an [Aside]. The snapshot is dumped when something
// needs its contents. The file [deferred.file] exists from the snapshot's capture until the Aside is dropped.
type deferred struct {
	*logical.Driver
	cfg   logical.Config
	file  string
	aside Aside

	mu sync.Mutex // of the file and the snapshot that it names
}

// origin is the content of the file.
type origin struct {
	Snapshot snap.SnapshotID `json:"snapshot"`
}

var (
	_ snap.Rehearser   = (*deferred)(nil)
	_ snap.Differ      = (*deferred)(nil)
	_ snap.Transporter = (*deferred)(nil)
)

// asideFile returns the path of the file that names the snapshot whose contents are in an Aside.
func asideFile(stateDir string) string { return filepath.Join(stateDir, "aside.json") }

// HasAside reports whether the database with this state folder has a snapshot whose contents are in an [Aside].
func HasAside(stateDir string) (bool, error) {
	_, err := os.Stat(asideFile(stateDir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// captureAside makes the Aside a snapshot. ok is false if there is none.
func (d *deferred) captureAside(id snap.SnapshotID) (s snap.Snapshot, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok, err = d.aside.Has(); err != nil || !ok {
		return s, false, err
	}
	if err = durable.WriteJSON(d.file, origin{id}); err == nil {
		err = d.cfg.Failpoint.At("aside: captured")
	}
	return snap.Snapshot{ID: id, Driver: "postgres", Quiesced: true, Created: time.Now().UTC()}, true, err
}

// pending returns the snapshot whose contents are in the Aside; "" if there is none.
func (d *deferred) pending() (snap.SnapshotID, error) {
	var o origin
	err := durable.ReadJSON(d.file, &o)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return o.Snapshot, errs.Wrap(errs.Corrupt, "", err)
}

// dumped reports whether the snapshot is a dump.
func (d *deferred) dumped(id snap.SnapshotID) (bool, error) {
	_, err := d.Driver.Size(context.Background(), id)
	if errs.KindOf(err) == errs.NotFound {
		return false, nil
	}
	return err == nil, err
}

// need dumps the Aside if its snapshot is one of ids.
func (d *deferred) need(ctx context.Context, ids ...snap.SnapshotID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, err := d.pending()
	if err != nil || id == "" || !slices.Contains(ids, id) {
		return err
	}
	done, err := d.dumped(id)
	if err == nil && !done {
		err = d.aside.With(ctx, func(dsn string, alive func() bool) error { return d.dump(ctx, dsn, alive, id) })
	}
	if err != nil {
		return errs.Wrap(errs.Failed, "dump the database that a fork began with", err)
	}
	return d.forget(ctx)
}

// dump captures the state of the Aside's server under the id.
func (d *deferred) dump(ctx context.Context, dsn string, alive func() bool, id snap.SnapshotID) error {
	cfg := d.cfg
	cfg.DSN = dsn
	reader, err := logical.New(cfg)
	if err != nil {
		return err
	}
	for err = reader.Answers(ctx); err != nil; err = reader.Answers(ctx) {
		if ctx.Err() != nil || !alive() {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if err := d.cfg.Failpoint.At("aside: serves"); err != nil {
		return err
	}
	_, err = reader.Capture(ctx, snap.CaptureRequest{ID: id, Quiesced: true})
	return err
}

// forget drops the Aside. The file goes last, because it says that there may be an Aside.
func (d *deferred) forget(ctx context.Context) error {
	err := d.cfg.Failpoint.At("aside: drop")
	if err == nil {
		err = d.aside.Drop(context.WithoutCancel(ctx))
	}
	if err == nil {
		err = d.cfg.Failpoint.At("aside: forget")
	}
	if err == nil {
		err = os.Remove(d.file)
	}
	return err
}

// gone drops the Aside if its snapshot is one of ids, which were deleted.
func (d *deferred) gone(ctx context.Context, ids ...snap.SnapshotID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, err := d.pending()
	if err != nil || id == "" || !slices.Contains(ids, id) {
		return err
	}
	return d.forget(ctx)
}

func (d *deferred) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	if err := d.need(ctx, req.Target, req.Base); err != nil {
		return nil, err
	}
	return d.Driver.Prepare(ctx, req)
}

func (d *deferred) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	if err := d.need(ctx, id); err != nil {
		return err
	}
	return d.Driver.Verify(ctx, id, depth)
}

func (d *deferred) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	if err := d.need(ctx, from, to); err != nil {
		return nil, err
	}
	return d.Driver.Diff(ctx, from, to, paths)
}

func (d *deferred) Rehearse(ctx context.Context, as snap.RestoreID, id snap.SnapshotID) error {
	if err := d.need(ctx, id); err != nil {
		return err
	}
	return d.Driver.Rehearse(ctx, as, id)
}

func (d *deferred) Export(ctx context.Context, id snap.SnapshotID) (snap.Portable, func(), error) {
	if err := d.need(ctx, id); err != nil {
		return snap.Portable{}, nil, err
	}
	return d.Driver.Export(ctx, id)
}

// Shape returns "" for a snapshot that is not dumped yet, so that it is not rehearsed.
func (d *deferred) Shape(id snap.SnapshotID) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if aside, err := d.pending(); err != nil || aside == id {
		return "", err
	}
	return d.Driver.Shape(id)
}

func (d *deferred) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, err := d.pending()
	if err != nil || id == "" || !slices.Contains(ids, id) {
		if err == nil {
			return d.Driver.Size(ctx, ids...)
		}
		return 0, err
	}
	size, err := d.aside.Size(ctx)
	if done, e := d.dumped(id); e != nil || !done {
		ids = slices.DeleteFunc(slices.Clone(ids), func(x snap.SnapshotID) bool { return x == id })
		err = errors.Join(err, e)
	}
	if err != nil {
		return 0, err
	}
	rest, err := d.Driver.Size(ctx, ids...)
	return size + rest, err
}

func (d *deferred) Delete(ctx context.Context, id snap.SnapshotID) error {
	if err := d.Driver.Delete(ctx, id); err != nil {
		return err
	}
	return d.gone(ctx, id)
}

func (d *deferred) Sweep(ctx context.Context, gone snap.Gone) error {
	if err := d.Driver.Sweep(ctx, gone); err != nil {
		return err
	}
	return d.gone(ctx, gone.Snapshots...)
}

// CaptureAside is a Capture that reads nothing: the contents stay in the Aside until something needs them. Without an Aside it is Capture.
// The live server must not have been written to since the Aside was made.
func (d *Driver) CaptureAside(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	if l, ok := d.Driver.(*deferred); ok {
		if s, kept, err := l.captureAside(req.ID); kept || err != nil {
			return s, errs.Wrap(errs.Failed, "capture database", err)
		}
	}
	return d.Capture(ctx, req)
}

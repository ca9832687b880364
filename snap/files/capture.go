package files

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// Capture stores the present state of the workspace. The error is snap.ErrChanged if a file or folder changes all the time, of
// kind errs.Denied if something may not be read, and of kind errs.Invalid if the tree exceeds the limits.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture files"
	if err := checkID(op, string(req.ID)); err != nil {
		return snap.Snapshot{}, err
	}
	if req.At != "" {
		if err := ctx.Err(); err != nil {
			return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
		}
		return d.captureAt(op, req)
	}
	return d.capture(ctx, op, d.rootName(req.ID), req)
}

// Warm stores changed contents in advance, so that the next Capture has less work.
func (d *Driver) Warm(ctx context.Context) error {
	_, err := d.capture(ctx, "warm files", d.warmName(), snap.CaptureRequest{})
	return err
}

func (d *Driver) capture(ctx context.Context, op, root string, req snap.CaptureRequest) (snap.Snapshot, error) {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	created := time.Now().UTC()
	how := follow.CheckAll
	if root == d.warmName() {
		how = follow.CheckNames // the Capture that follows checks the rest
	}
	need, err := makeScope(op, req.Paths)
	if err != nil {
		return snap.Snapshot{}, err
	}
	v, err := d.read(ctx, op, b, nil, need, how, nil, b)
	if err != nil {
		return snap.Snapshot{}, err
	}
	warnings := v.Warnings
	if root != d.warmName() {
		lacks, err := d.lacks(v.Manifest)
		if err != nil { // as of a damaged record in the store: only a warning depends on it, and a rollback must get its safety checkpoint
			lacks = append(lacks, fmt.Sprintf("It is not known which paths mulligand could not restore: %v.", err))
		}
		warnings = append(warnings, lacks...)
		if w := d.walker.Flags.Warning(d.walker.Shown); w != "" {
			warnings = append(warnings, w)
		}
	}
	if req.Read != nil {
		req.Read()
	}
	if len(warnings) > maxWarnings {
		warnings = append(warnings[:maxWarnings], "And more of the kind.")
	}
	about := withRules(d, meta{Created: created, Quiesced: req.Quiesced, Warnings: warnings, Files: v.Files, Place: v.Mark})
	r, err := about.root(root, v.Hash)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = d.cfg.Failpoint.At("captured")
	}
	if err == nil {
		err = b.Commit(r)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("stored")
	}
	if err == nil && root != d.warmName() {
		err = cool(d)
	}
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	if err := d.walker.Cache.Save(d.cfg.StateDir); err != nil {
		warnings = append(warnings, fmt.Sprintf("The cache of read files could not be saved (%v): after a restart every file is read again.", err))
	}
	return snap.Snapshot{ID: req.ID, Driver: "files", Hash: v.Hash, Quiesced: req.Quiesced, Created: created, Warnings: warnings}, nil
}

// cool deletes the root that Warm made, because a snapshot now refers to the same contents. Otherwise these would be counted as
// shared.
func cool(d *Driver) error {
	_, err := d.cfg.Store.Root(d.warmName())
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return d.cfg.Store.Delete(d.warmName())
}

// walk reads the workspace, or the part sc, into b. What is not in need and cannot be read is left out. With oneMoment, the state of each git
// repository is that of one moment.
func (d *Driver) walk(ctx context.Context, op string, b *cas.Batch, sc, need relpath.Scope, fresh map[string]bool, oneMoment bool) (*follow.View, error) {
	s := d.walker.NewScan(ctx, op, b, b.Keep)
	s.OneMoment, s.Pack = oneMoment, true
	s.Scope, s.Need, s.Fresh = sc, need, func(p string) bool { return fresh[p] }
	if id, err := d.ws.RootID(); err == nil { // otherwise run returns the error
		s.Mapped = walk.MappedToWrite(id.Dev)
	}
	n, err := s.Run()
	if err == nil {
		err = d.cfg.Failpoint.At("scanned")
	}
	if err != nil {
		return nil, workspace.Wrap(errs.Failed, op, err)
	}
	m, err := manifest.SealTree(n, d.cfg.Store, b)
	return &follow.View{Manifest: m, Files: s.Files.Load(), Warnings: s.Warned()}, workspace.Wrap(errs.Failed, op, err)
}

// captureAt makes a snapshot of a position of the journal, which already has the contents.
func (d *Driver) captureAt(op string, req snap.CaptureRequest) (snap.Snapshot, error) {
	at, epoch, err := d.history.Find(op, req.At)
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	about := meta{Created: time.Now().UTC(), Quiesced: req.Quiesced, Rules: epoch.Rules, Mark: req.At}
	if epoch.Rules == d.ws.Exclude.Hash() { // of an earlier epoch only the hash is known
		about = withRules(d, about)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	r, err := about.root(d.rootName(req.ID), at)
	if err == nil {
		err = d.cfg.Failpoint.At("captured")
	}
	if err == nil {
		err = b.Commit(r)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("stored")
	}
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	var hash snap.Hash
	if d.history.IsBase(epoch, req.At) { // at is a manifest
		hash = at
	}
	return snap.Snapshot{ID: req.ID, Driver: "files", Hash: hash, Quiesced: req.Quiesced, Created: about.Created, Position: string(req.At)}, nil
}

// present returns the state of the workspace: from the journal if that is current, and otherwise by a walk of everything, or of
// sc, into b.
func (d *Driver) present(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope) (*follow.View, error) {
	return d.read(ctx, op, b, sc, sc, follow.CheckPatrolled, nil, nil)
}

// presentFresh does the same as present, for a proof: it reads the paths of fresh from the disk even if the cache has them.
func (d *Driver) presentFresh(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, fresh map[string]bool) (*follow.View, error) {
	return d.read(ctx, op, b, sc, sc, follow.CheckStores, fresh, nil)
}

// presentStored does the same as present, and always stores the manifest in b.
func (d *Driver) presentStored(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, how follow.Depth) (*follow.View, error) {
	return d.read(ctx, op, b, sc, sc, how, nil, b)
}

// read does the work of present. need is what must be readable, if that is not everything. The journal is not current where something cannot be read: then
// a walk shows whether that is needed.
func (d *Driver) read(ctx context.Context, op string, b *cas.Batch, sc, need relpath.Scope, how follow.Depth, fresh map[string]bool, to *cas.Batch) (*follow.View, error) {
	if len(sc) == 0 {
		d.follower.Await(ctx)
	}
	v, err := d.follower.View(ctx, to, how, fresh)
	if errors.Is(err, follow.ErrEnded) || len(need) > 0 && walk.Unreadable(err) {
		if len(sc) == 0 {
			defer d.follower.Walking()()
		}
		return d.walk(ctx, op, b, sc, need, fresh, to != nil)
	}
	return v, workspace.Wrap(errs.Failed, op, err)
}

package disk

import (
	"context"
	"os"

	"mulligan/errs"
	"mulligan/snap"
)

// A layer is raw if its images could not be read when it was frozen, because somebody had overwritten, truncated or deleted
// them. Its files are kept unchanged, with an overlay above them as for any other layer. A domain on that overlay cannot start,
// as before.

// Salvage freezes the files at the paths of the domain's present images, whatever they contain, as the snapshot req.ID. The
// domain must be off.
func (d *Driver) Salvage(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "keep the bytes of disks"
	if err := d.begin(ctx, op); err != nil {
		return snap.Snapshot{}, err
	}
	defer d.mu.Unlock()
	if !validName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot that disks can have", req.ID)
	}
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return snap.Snapshot{}, err
	}
	defer m.Free()
	c := &capturing{d: d, m: m, id: req.ID, raw: true, quiesced: true}
	if err := c.salvage(ctx, op); err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Failed, op, err)
	}
	s := d.tree.Snapshots[req.ID]
	return snap.Snapshot{ID: req.ID, Driver: driverName, Position: string(s.Layer), Raw: true, Quiesced: s.Quiesced, Created: s.Created, Warnings: c.warnings}, nil
}

func (c *capturing) salvage(ctx context.Context, op string) (err error) {
	d := c.d
	if err := needOff(op, c.m); err != nil {
		return err
	}
	if c.survey, _, err = d.dom.Survey(op, c.m, false); err != nil {
		return err
	}
	head := d.tree.Layers[d.tree.Head]
	if fresh, err := d.images.headFresh(); err == nil && fresh && d.tree.Rests(head) {
		return c.name(head.Parent) // it was frozen before
	}
	for _, f := range head.Files {
		if fi, err := os.Lstat(f.Path); err == nil && !fi.Mode().IsRegular() {
			return errs.New(errs.Unsupported, op, "%s is not a file", f.Path).WithHint("move it away")
		}
	}
	if err := d.images.room(op); err != nil {
		return err
	}
	return c.freeze(ctx)
}

// FindGaps returns a gap for each present image that cannot be read.
func (d *Driver) FindGaps(ctx context.Context) ([]snap.Gap, error) {
	const op = "look at the disks"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	err = d.follower.followChains(op)
	if err == nil {
		err = d.onRaw(op)
	}
	if err == nil {
		return nil, nil
	}
	remedy := errs.HintOf(err)
	if remedy == "" {
		remedy = "go back to a checkpoint"
	}
	return []snap.Gap{{What: err.Error(), Remedy: remedy, Blocks: true}}, nil
}

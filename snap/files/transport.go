package files

import (
	"context"
	"encoding/json"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Export returns what a snapshot consists of. A marker is exported as a manifest, because the journal to which it belongs stays
// here. See [snap.Transporter].
func (d *Driver) Export(ctx context.Context, id snap.SnapshotID) (p snap.Portable, release func(), err error) {
	const op = "export files"
	root, about, err := d.root(op, id)
	if err != nil {
		return p, nil, err
	}
	b := d.cfg.Store.Begin()
	hash, err := saveManifest(ctx, d.cfg.Store, b, root.Hash)
	if err != nil {
		b.Discard()
		return p, nil, workspace.Wrap(errs.Failed, op, err)
	}
	about.Mark, about.Place = "", ""
	data, err := json.Marshal(about)
	if err != nil {
		b.Discard()
		return p, nil, errs.Wrap(errs.Internal, op, err)
	}
	return snap.Portable{Driver: "files", Object: hash, Meta: data}, b.Discard, nil
}

// Import stores a snapshot that Export returned, perhaps on another host. Unless the workspace is root's own, all files become its
// owner's, without rights that only root can give. See [snap.Transporter].
func (d *Driver) Import(ctx context.Context, p snap.Portable, as snap.SnapshotID) (s snap.Snapshot, err error) {
	const op = "import files"
	if err := checkID(op, string(as)); err != nil {
		return s, err
	}
	if p.Driver != "files" {
		return s, errs.New(errs.Unsupported, op, "the snapshot is of %q and not of files", p.Driver)
	}
	var about meta
	if err := json.Unmarshal(p.Meta, &about); err != nil {
		return s, manifest.Damaged(p.Object, err)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	if !b.Keep(p.Object) {
		return s, errs.New(errs.Corrupt, op, "the contents of %s are not in the content store", as)
	}
	m, err := manifest.Load(d.cfg.Store, p.Object)
	if err != nil {
		return s, workspace.Wrap(errs.Corrupt, op, err)
	}
	hash, changed, err := settleOwner(ctx, &d.cfg, b, m)
	if err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	about.Warnings = append(about.Warnings, changed...)
	if s, err = d.put(op, b, as, hash, about); err == nil {
		s.Warnings = changed
	}
	return s, err
}

package files

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/workspace"
)

// meta is what a snapshot's root says beside the manifest.
type meta struct {
	Created  time.Time
	Quiesced bool
	Warnings []string
	Files    int64
	Rules    manifest.HexHash // of what was excluded
	Mark     snap.Mark        `json:",omitempty"` // of a marker: its root is a link of the journal
	Place    snap.Mark        `json:",omitempty"` // of another snapshot: the mark that was there, while somebody followed
}

// root is the root of a snapshot.
func (m meta) root(name string, hash snap.Hash) (cas.Root, error) {
	about, err := json.Marshal(m)
	return cas.Root{Name: name, Hash: hash, Meta: about}, err
}

// maxWarnings bounds what one snapshot says of itself.
const maxWarnings = 50

// Capture stores the workspace as it is. It fails with snap.ErrChanged when a
// file or folder does not hold still, with errs.Denied for what it may not
// read, and with errs.Invalid for a tree over the limits.
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

// Warm stores what the next Capture would have to, so that it finds little to do.
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
		how = follow.CheckNames // the Capture that follows doubts the rest
	}
	v, err := d.presentStored(ctx, op, b, nil, how)
	if err != nil {
		return snap.Snapshot{}, err
	}
	warnings := v.Warnings
	if root != d.warmName() {
		lacks, err := d.lacks(ctx)
		if err != nil {
			return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
		}
		warnings = append(warnings, lacks...)
		if w := d.walker.Flags.Warning(func(p string) string { return workspace.Shown(d.cfg.Dir, p) }); w != "" {
			warnings = append(warnings, w)
		}
	}
	if len(warnings) > maxWarnings {
		warnings = append(warnings[:maxWarnings], "And more of the kind.")
	}
	about := meta{Created: created, Quiesced: req.Quiesced, Warnings: warnings, Files: v.Files, Rules: d.ws.Exclude.Hash(), Place: v.Mark}
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
		err = d.cool()
	}
	if err != nil {
		return snap.Snapshot{}, workspace.Wrap(errs.Failed, op, err)
	}
	if err := d.walker.Cache.Save(d.cfg.StateDir); err != nil {
		warnings = append(warnings, fmt.Sprintf("The cache of read files could not be saved (%v): after a restart every file is read again.", err))
	}
	return snap.Snapshot{ID: req.ID, Driver: "files", Hash: v.Hash, Quiesced: req.Quiesced, Created: created, Warnings: warnings}, nil
}

// cool drops what Warm kept, now that a snapshot keeps it: else it would be
// counted as shared.
func (d *Driver) cool() error {
	_, err := d.cfg.Store.Root(d.warmName())
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return d.cfg.Store.Delete(d.warmName())
}

// walk reads the workspace, or sc of it, into b. With oneMoment, each git repository is of one moment.
func (d *Driver) walk(ctx context.Context, op string, b *cas.Batch, sc relpath.Scope, fresh map[string]bool, oneMoment bool) (*follow.View, error) {
	s := d.walker.NewScan(ctx, op, b, b.Keep)
	s.OneMoment = oneMoment
	s.Scope, s.Fresh = sc, func(p string) bool { return fresh[p] }
	if id, err := d.ws.RootID(); err == nil { // if not, run says so
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

// root finds a snapshot's root.
func (d *Driver) root(op string, id snap.SnapshotID) (cas.Root, meta, error) {
	if err := checkID(op, string(id)); err != nil {
		return cas.Root{}, meta{}, err
	}
	r, err := d.cfg.Store.Root(d.rootName(id))
	if err != nil {
		return r, meta{}, workspace.Wrap(errs.NotFound, op, err)
	}
	var m meta
	if err := json.Unmarshal(r.Meta, &m); err != nil {
		return r, m, manifest.Damaged(r.Hash, err)
	}
	return r, m, nil
}

// Verify checks a snapshot's manifest and contents in the store.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	const op = "verify files"
	if _, _, err := d.root(op, id); err != nil {
		return err
	}
	return workspace.Wrap(errs.Corrupt, op, d.cfg.Store.Check(ctx, d.rootName(id), depth == snap.Full))
}

// Size is what is in the store for these snapshots and nothing else.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.TrimSize(ctx, "", ids...)
}

// snapshotRoots names the roots of snapshots that must be there.
func (d *Driver) snapshotRoots(op string, ids []snap.SnapshotID) (names []string, err error) {
	for _, id := range ids {
		if _, _, err := d.root(op, id); err != nil {
			return nil, err
		}
		names = append(names, d.rootName(id))
	}
	return names, nil
}

// Delete drops a snapshot; the store collects its space in time.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	const op = "delete files"
	if err := checkID(op, string(id)); err != nil {
		return err
	}
	d.names.Lock()
	defer d.names.Unlock()
	return workspace.Wrap(errs.Failed, op, d.cfg.Store.Delete(d.rootName(id)))
}

// Sweep drops the snapshots and switches that gone names. What an Undo
// stored because it was nobody's (see Switch.Undo) stays.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep files"
	var drop []string
	for _, r := range d.cfg.Store.Roots(d.prefix()) {
		name := strings.TrimPrefix(r.Name, d.prefix())
		sort, rest, nested := strings.Cut(name, "/")
		id, _, _ := strings.Cut(rest, "/")
		switch {
		case !nested && slices.Contains(gone.Snapshots, snap.SnapshotID(name)),
			nested && sort == "switch" && slices.Contains(gone.Restores, snap.RestoreID(id)):
			drop = append(drop, r.Name)
		}
	}
	if len(drop) == 0 {
		return nil
	}
	return workspace.Wrap(errs.Failed, op, d.cfg.Store.Delete(drop...))
}

// Diff compares two snapshots; an empty id is the workspace as it is now.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare files"
	sc, err := makeScope(op, paths)
	if err != nil {
		return nil, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	side := func(id snap.SnapshotID) (*manifest.Manifest, error) {
		if id == "" {
			v, err := d.present(ctx, op, b, sc)
			if err != nil {
				return nil, err
			}
			return v.Manifest, nil
		}
		return d.stored(ctx, op, id)
	}
	old, err := side(from)
	if err != nil {
		return nil, err
	}
	new, err := side(to)
	if err != nil {
		return nil, err
	}
	deltas, err := d.compare(ctx, old, new, sc)
	list, _ := diff.Changes(deltas, len(deltas))
	return list, workspace.Wrap(errs.Failed, op, err)
}

// stored opens a snapshot's manifest by today's rules: what is excluded now is
// not in it, also when it was captured under other rules. Such a manifest is
// made anew.
func (d *Driver) stored(ctx context.Context, op string, id snap.SnapshotID) (*manifest.Manifest, error) {
	r, about, err := d.root(op, id)
	if err != nil {
		return nil, err
	}
	m, err := journal.Resolve(ctx, d.cfg.Store, r.Hash)
	if err != nil || about.Rules == d.ws.Exclude.Hash() {
		return m, workspace.Wrap(errs.Corrupt, op, err)
	}
	n, err := without(ctx, m, d.ws.Exclude)
	if err == nil {
		m, err = manifest.SealTree(n, d.cfg.Store, nil)
	}
	return m, workspace.Wrap(errs.Failed, op, err)
}

// makeScope checks and orders paths given by a caller.
func makeScope(op string, paths []string) (relpath.Scope, error) {
	var sc relpath.Scope
	for _, p := range paths {
		c := filepath.Clean(p)
		if c == "." {
			return nil, nil
		}
		if !relpath.Valid(c) {
			return nil, errs.New(errs.Invalid, op, "%q is not a path in the workspace", p).
				WithHint("give paths relative to the workspace, without ..")
		}
		sc = append(sc, c)
	}
	slices.Sort(sc)
	var out relpath.Scope
	for _, p := range sc {
		if len(out) == 0 || !out.Holds(p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// without loads m into memory, less what x excludes.
func without(ctx context.Context, m *manifest.Manifest, x *workspace.Rules) (*manifest.Node, error) {
	var load func(e manifest.Entry, path string) (*manifest.Node, error)
	load = func(e manifest.Entry, path string) (*manifest.Node, error) {
		n := &manifest.Node{Entry: e, LinkKey: e.Group()}
		if !e.IsDir() {
			return n, ctx.Err()
		}
		n.Loose = x.Loose[path]
		if n.Loose {
			n.Mtime = inode.Time{}
		}
		entries, err := m.Folder(e.Hash)
		if err != nil {
			return nil, err
		}
		for _, k := range entries {
			p := relpath.Join(path, k.Name)
			if x.Excludes(p, k.Kind() == manifest.DirKind) {
				continue
			}
			kid, err := load(k, p)
			if err != nil {
				return nil, err
			}
			n.Children = append(n.Children, kid)
		}
		return n, nil
	}
	return load(m.Root, ".")
}

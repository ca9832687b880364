package files

import (
	"context"
	"encoding/json"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// meta is the data of a snapshot's root beside the manifest.
type meta struct {
	Created  time.Time
	Quiesced bool
	Warnings []string
	Files    int64
	Rules    manifest.HexHash // hash of the rules of exclusion
	Exclude  []string         `json:",omitempty"` // the rules themselves, see rulesOf
	Skip     []string         `json:",omitempty"`
	Mark     snap.Mark        `json:",omitempty"` // set for a marker, whose root is a link of the journal
	Place    snap.Mark        `json:",omitempty"` // of another snapshot: the journal's mark at that time, if the journal was written
}

// root returns the root of a snapshot.
func (m meta) root(name string, hash snap.Hash) (cas.Root, error) {
	about, err := json.Marshal(m)
	return cas.Root{Name: name, Hash: hash, Meta: about}, err
}

// maxWarnings bounds the warnings of a snapshot.
const maxWarnings = 50

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

// Size returns the stored bytes that only these snapshots use.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.TrimSize(ctx, "", ids...)
}

// snapshotRoots returns the names of the roots of snapshots, which must exist.
func (d *Driver) snapshotRoots(op string, ids []snap.SnapshotID) (names []string, err error) {
	for _, id := range ids {
		if _, _, err := d.root(op, id); err != nil {
			return nil, err
		}
		names = append(names, d.rootName(id))
	}
	return names, nil
}

// Delete deletes a snapshot. The store frees its space later.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	const op = "delete files"
	if err := checkID(op, string(id)); err != nil {
		return err
	}
	d.names.Lock()
	err := d.cfg.Store.Delete(d.rootName(id))
	d.names.Unlock() // the journal's own work may wait for it
	if err == nil {
		err = d.follower.LetGo(ctx)
	}
	return workspace.Wrap(errs.Failed, op, err)
}

// tidy replaces markers whose epoch was trimmed by ordinary snapshots. Until then, each of them keeps a part of the journal,
// with all contents that existed during it.
func (d *Driver) tidy(ctx context.Context) (failed error) {
	for _, r := range d.cfg.Store.Roots(d.prefix()) {
		id := snap.SnapshotID(r.Name[len(d.prefix()):])
		if checkID("", string(id)) != nil {
			continue
		}
		_, about, err := d.root("tidy files", id)
		if errs.KindOf(err) == errs.NotFound || about.Mark == "" || d.history.Reaches(about.Mark) {
			continue
		}
		if err == nil {
			err = d.resolveMarker(ctx, r, about)
		}
		if kind := errs.KindOf(err); kind == errs.Corrupt || kind == errs.NotFound {
			failed = errs.Also(failed, err) // it keeps no other marker from its manifest
		} else if err != nil {
			return errs.Also(failed, err)
		}
	}
	return failed
}

// resolveMarker stores the manifest of a snapshot that was recorded only as a position in the journal (a marker), and replaces
// the marker by it.
func (d *Driver) resolveMarker(ctx context.Context, r cas.Root, about meta) error {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	m, err := journal.Resolve(ctx, d.cfg.Store, r.Hash)
	if err == nil {
		err = m.Save(b)
	}
	if err != nil {
		return err
	}
	about.Mark = ""
	next, err := about.root(r.Name, m.Hash)
	if err != nil {
		return err
	}
	d.names.Lock()
	defer d.names.Unlock()
	if now, err := d.cfg.Store.Root(r.Name); err != nil || now.Hash != r.Hash {
		return nil // deleted meanwhile
	}
	return b.Commit(next)
}

// TrimSize returns the bytes that would be freed if these snapshots were deleted and the journal were trimmed to oldest.
func (d *Driver) TrimSize(ctx context.Context, oldest snap.Mark, ids ...snap.SnapshotID) (int64, error) {
	const op = "size of files"
	names, err := d.snapshotRoots(op, ids)
	if err == nil && oldest != "" {
		var gone []string
		gone, err = d.history.EndedRoots(op, oldest)
		names = append(names, gone...)
	}
	if err != nil {
		return 0, workspace.Wrap(errs.Failed, op, err)
	}
	n, err := d.cfg.Store.Unique(names...)
	return n, workspace.Wrap(errs.Failed, op, err)
}

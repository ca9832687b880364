// Package records keeps the durable state: mulligan.db, and the content stores, which have the captured contents and a
// description of each app and checkpoint. It makes the two agree, collects garbage, and checks the free space of the disk.
package records

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// Records are the daemon's records: mulligan.db, and a description of each app and checkpoint in the content store, from which
// mulligan.db can be made anew. A description is written before the row that it describes. See store/DESIGN.md.
type Records struct {
	*store.Store
	Contents *Contents
	opt      *settings.Options

	mu       sync.Mutex
	disposed []store.Disposal // carried out and to be deleted
	collect  chan struct{}    // wakes the garbage collector
	purged   []ipc.AppID      // apps whose purge is to be finished
	unpurged error            // why a purge could not be finished, when that was last tried

	// one is locked while a description and its record are written, and while records are deleted.
	one sync.Mutex

	Repaired []string // what Open repaired, in sentences
	trouble  []string // what could not be repaired
}

// Names of the roots of descriptions in the content store. The data of a root is the record's revision in digits.
const (
	appRoots        = "record/app/"        // then the app's id
	checkpointRoots = "record/checkpoint/" // then the app's id, a slash and the checkpoint's
)

func appRoot(id ipc.AppID) string { return appRoots + string(id) }

func checkpointRoot(app ipc.AppID, id ipc.CheckpointID) string {
	return checkpointRoots + string(app) + "/" + string(id)
}

// appText describes an app.
type appText struct {
	App       ipc.App    `json:"app"`
	OwnerUID  int        `json:"owner_uid"`
	FolderUID int        `json:"folder_uid"`
	ByRoot    bool       `json:"by_root"`
	RemovedAt *time.Time `json:"removed_at,omitempty"`
}

// checkpointText describes a checkpoint.
type checkpointText struct {
	Checkpoint ipc.Checkpoint   `json:"checkpoint"`
	Snapshots  []store.Snapshot `json:"snapshots"`
	Seq        int64            `json:"seq"`
}

// description is a description on its way into the content store.
type description struct {
	root string
	rev  int64
	text any
}

func describeApp(a store.App) description {
	return description{appRoot(a.ID), a.Rev, appText{a.App, a.OwnerUID, a.FolderUID, a.ByRoot, a.RemovedAt}}
}

func describeCheckpoint(c store.Checkpoint) description {
	return description{checkpointRoot(c.AppID, c.ID), c.Rev, checkpointText{c.Checkpoint, c.Snapshots, c.Seq}}
}

// describe writes descriptions, durably and all at once.
func (r *Records) describe(list ...description) error {
	if len(list) == 0 {
		return nil
	}
	b := r.Contents.main.Begin()
	defer b.Discard()
	var roots []cas.Root
	for _, d := range list {
		text, err := json.Marshal(d.text)
		if err != nil {
			return err
		}
		hash, err := b.Series("record").Blob(text)
		if err != nil {
			return err
		}
		roots = append(roots, cas.Root{Name: d.root, Hash: hash, Meta: strconv.AppendInt(nil, d.rev, 10)})
	}
	return b.Commit(roots...)
}

// revOf returns the revision of a description.
func revOf(root cas.Root) int64 {
	n, err := strconv.ParseInt(string(root.Meta), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// PutCheckpoint writes a checkpoint's description and then its record. If there is a record already, the checkpoint stays pinned or not as
// that says: somebody may have pinned it since the caller read it.
func (r *Records) PutCheckpoint(ctx context.Context, c store.Checkpoint, op ipc.OperationID) error {
	r.one.Lock()
	defer r.one.Unlock()
	old, err := r.Store.Checkpoint(ctx, c.AppID, c.ID)
	switch errs.KindOf(err) {
	case "":
		c.Pinned = old.Pinned
		return r.replace(ctx, old, c, op)
	case errs.NotFound:
		if c.Seq, err = r.NextSeq(ctx); err != nil {
			return err
		}
		c.Rev = 1
		return r.put(ctx, c, op, func() error { return r.Contents.main.Delete(checkpointRoot(c.AppID, c.ID)) })
	}
	return err
}

// SetPinned pins or unpins a checkpoint of an app.
func (r *Records) SetPinned(ctx context.Context, app ipc.AppID, id ipc.CheckpointID, pinned bool) error {
	r.one.Lock()
	defer r.one.Unlock()
	old, err := r.Store.Checkpoint(ctx, app, id)
	if err != nil {
		return err
	}
	c := old
	c.Pinned = pinned
	return r.replace(ctx, old, c, "")
}

// DeleteCheckpoints deletes checkpoints like the store's. It waits for a record that is being written, which would be there again otherwise.
func (r *Records) DeleteCheckpoints(ctx context.Context, entry *ipc.AuditEntry, ids ...ipc.CheckpointID) error {
	r.one.Lock()
	defer r.one.Unlock()
	return r.Store.DeleteCheckpoints(ctx, entry, ids...)
}

// PurgeApp deletes an app and its checkpoints like the store's. It waits like DeleteCheckpoints.
func (r *Records) PurgeApp(ctx context.Context, id ipc.AppID, entry *ipc.AuditEntry) error {
	r.one.Lock()
	defer r.one.Unlock()
	return r.Store.PurgeApp(ctx, id, entry)
}

// replace writes c in place of old. The caller must have locked one.
func (r *Records) replace(ctx context.Context, old, c store.Checkpoint, op ipc.OperationID) error {
	c.Seq, c.Rev = old.Seq, old.Rev+1
	old.Rev += 2
	return r.put(ctx, c, op, func() error { return r.describe(describeCheckpoint(old)) })
}

// put writes c's description and then its record. If the record cannot be written, put calls back, which makes the description what it was.
// The caller must have locked one.
func (r *Records) put(ctx context.Context, c store.Checkpoint, op ipc.OperationID, back func() error) error {
	if err := r.describe(describeCheckpoint(c)); err != nil {
		return err
	}
	if err := r.Store.PutCheckpoint(ctx, c, op); err != nil {
		return errs.Also(err, back())
	}
	return nil
}

// PutApp writes an app's description and then its record.
func (r *Records) PutApp(ctx context.Context, a store.App) error {
	r.one.Lock()
	defer r.one.Unlock()
	return r.putApp(ctx, a)
}

func (r *Records) putApp(ctx context.Context, a store.App) error {
	old, err := r.App(ctx, a.ID)
	if err != nil && errs.KindOf(err) != errs.NotFound {
		return err
	}
	known := err == nil
	a.Rev = old.Rev + 1
	if err := r.describe(describeApp(a)); err != nil {
		return err
	}
	err = r.Store.PutApp(ctx, a)
	switch {
	case err == nil:
		return nil
	case known:
		old.Rev = a.Rev + 1
		return errs.Also(err, r.describe(describeApp(old)))
	}
	return errs.Also(err, r.Contents.main.Delete(appRoot(a.ID)))
}

// RemoveApp removes the registration of an app and keeps its checkpoints.
func (r *Records) RemoveApp(ctx context.Context, id ipc.AppID, at time.Time) error {
	r.one.Lock()
	defer r.one.Unlock()
	a, err := r.App(ctx, id)
	if err != nil {
		return err
	}
	a.RemovedAt = &at
	return r.putApp(ctx, a)
}

// endDescribed deletes the descriptions of apps and checkpoints whose disposals are carried out.
func (r *Records) endDescribed(list []store.Disposal) error {
	var roots []string
	for _, o := range list {
		switch o.Kind {
		case store.DisposeApp:
			roots = append(roots, appRoot(ipc.AppID(o.ID)))
		case store.DisposeCheckpoint:
			roots = append(roots, checkpointRoot(o.AppID, ipc.CheckpointID(o.ID)))
		}
	}
	return r.Contents.main.Delete(roots...)
}

// Open opens the content stores and mulligan.db. It makes mulligan.db anew if the file is damaged or if the caller asks for it,
// and makes it agree with the descriptions.
func Open(ctx context.Context, opt *settings.Options, anew bool) (*Records, error) {
	r := &Records{opt: opt, collect: make(chan struct{}, 1)}
	err := r.open(ctx, anew)
	if errs.KindOf(err) == errs.Failed && r.giveBallast(Reserve, startRoom) { // SQLite says "disk I/O error" where it has no room to make its files
		err = r.open(ctx, anew)
	}
	if err != nil {
		return nil, err
	}
	r.noteRepair()
	if err := r.reconcile(ctx); err != nil {
		return nil, errs.Also(err, r.Close())
	}
	for _, word := range r.Repaired {
		opt.Log.Warn("records", "repaired", word)
	}
	for _, word := range r.trouble {
		opt.Log.Error("records", "problem", word)
	}
	return r, nil
}

// open opens the files for Open.
func (r *Records) open(ctx context.Context, anew bool) error {
	contents, err := openContents(r.opt)
	if err != nil {
		return err
	}
	db, err := store.OpenOrRepair(ctx, filepath.Join(r.opt.StateDir, "mulligan.db"), r.opt.Failpoint,
		store.How{Now: r.opt.Now(), Described: len(contents.main.Roots("record/")) > 0, Anew: anew})
	if err != nil {
		return errs.Also(err, contents.close())
	}
	r.Store, r.Contents = db, contents
	return nil
}

// Close closes mulligan.db and the content stores.
func (r *Records) Close() error { return errs.Also(r.Store.Close(), r.Contents.close()) }

func (r *Records) noteRepair() {
	rep := r.Repair
	if rep == nil {
		return
	}
	word := "mulligan.db was damaged (" + rep.Problem + ")"
	if rep.Anew {
		word += " and was made anew"
	}
	if rep.Problem == "" {
		word = "mulligan.db was made anew"
	}
	if len(rep.Kept) > 0 {
		word += "; the old one is kept as " + strings.Join(rep.Kept, ", ")
	}
	r.Repaired = append(r.Repaired, word)
	if len(rep.Lost) > 0 {
		r.Repaired = append(r.Repaired, "lost, because mulligan.db could not be read and no content store has them: rows of "+strings.Join(rep.Lost, ", "))
	}
}

// Problems returns problems of the records that need a person's attention. Damaged files are kept until a person removes them.
func (r *Records) Problems() []string {
	list := slices.Clone(r.trouble)
	r.mu.Lock()
	if r.unpurged != nil {
		list = append(list, "what is left of a purged app could not be removed, and is tried again: "+errs.Words(r.unpurged))
	}
	r.mu.Unlock()
	for _, s := range r.Contents.all() {
		if err := s.Unread(); err != nil {
			list = append(list, errs.Words(err))
		}
	}
	kept, err := filepath.Glob(filepath.Join(r.opt.StateDir, "mulligan.db.damaged-*"))
	if err != nil {
		return list // the pattern is valid
	}
	slices.Sort(kept)
	for _, path := range kept {
		list = append(list, fmt.Sprintf("mulligan.db was damaged; it was made anew, or read as far as it is good (see `mulligan log`); "+
			"the damaged file is kept as %s: check the disk, and remove that file when it is no longer needed", path))
	}
	return list
}

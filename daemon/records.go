package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// records holds the daemon's records: mulligan.db, and in the content store a
// description of each app and checkpoint, from which mulligan.db can be made anew. A
// description is written before the row that it describes. See store/DESIGN.md.
type records struct {
	*store.Store
	contents *cas.Store
	dir      string // the state folder

	// one is held while a description and its record are written.
	one sync.Mutex

	repaired []string // what was done at the opening, in sentences
	trouble  []string // what could not be done
}

// Names of descriptions in the content store. The bytes of a root are the
// record's revision in digits.
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
func (r *records) describe(list ...description) error {
	if len(list) == 0 {
		return nil
	}
	b := r.contents.Begin()
	defer b.Discard()
	var roots []cas.Root
	for _, d := range list {
		text, err := json.Marshal(d.text)
		if err != nil {
			return err
		}
		hash, err := b.Kin("record").Blob(text)
		if err != nil {
			return err
		}
		roots = append(roots, cas.Root{Name: d.root, Hash: hash, Meta: strconv.AppendInt(nil, d.rev, 10)})
	}
	return b.Commit(roots...)
}

// revOf is the revision of a description.
func revOf(root cas.Root) int64 {
	n, err := strconv.ParseInt(string(root.Meta), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// PutCheckpoint is that of the store, with the description.
func (r *records) PutCheckpoint(ctx context.Context, c store.Checkpoint, op ipc.OperationID) error {
	r.one.Lock()
	defer r.one.Unlock()
	return r.put(ctx, c, op)
}

// put is PutCheckpoint with one held.
func (r *records) put(ctx context.Context, c store.Checkpoint, op ipc.OperationID) error {
	old, err := r.Store.Checkpoint(ctx, c.AppID, c.ID)
	back := func() error { return r.describe(describeCheckpoint(old)) }
	switch errs.KindOf(err) {
	case "":
		c.Seq, c.Rev = old.Seq, old.Rev+1
		old.Rev += 2
	case errs.NotFound:
		if c.Seq, err = r.NextSeq(ctx); err != nil {
			return err
		}
		c.Rev = 1
		back = func() error { return r.contents.Delete(checkpointRoot(c.AppID, c.ID)) }
	default:
		return err
	}
	if err := r.describe(describeCheckpoint(c)); err != nil {
		return err
	}
	if err := r.Store.PutCheckpoint(ctx, c, op); err != nil {
		return errs.Also(err, back())
	}
	return nil
}

// SetPinned pins or unpins a checkpoint of an app.
func (r *records) SetPinned(ctx context.Context, app ipc.AppID, id ipc.CheckpointID, pinned bool) error {
	r.one.Lock()
	defer r.one.Unlock()
	cp, err := r.Store.Checkpoint(ctx, app, id)
	if err != nil {
		return err
	}
	cp.Pinned = pinned
	return r.put(ctx, cp, "")
}

// PutApp is that of the store, with the description.
func (r *records) PutApp(ctx context.Context, a store.App) error {
	r.one.Lock()
	defer r.one.Unlock()
	return r.putApp(ctx, a)
}

func (r *records) putApp(ctx context.Context, a store.App) error {
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
	return errs.Also(err, r.contents.Delete(appRoot(a.ID)))
}

// RemoveApp unregisters an app and keeps its checkpoints.
func (r *records) RemoveApp(ctx context.Context, id ipc.AppID, at time.Time) error {
	r.one.Lock()
	defer r.one.Unlock()
	a, err := r.App(ctx, id)
	if err != nil {
		return err
	}
	a.RemovedAt = &at
	return r.putApp(ctx, a)
}

// strikeOff drops the descriptions that carried-out disposals are about, and strikes these off.
func (r *records) strikeOff(ctx context.Context, list []store.Disposal) error {
	var roots []string
	for _, o := range list {
		switch o.Kind {
		case store.DisposeApp:
			roots = append(roots, appRoot(ipc.AppID(o.ID)))
		case store.DisposeCheckpoint:
			roots = append(roots, checkpointRoot(o.AppID, ipc.CheckpointID(o.ID)))
		}
	}
	if err := r.contents.Delete(roots...); err != nil {
		return err
	}
	return r.EndDisposals(ctx, list...)
}

// openRecords opens mulligan.db, makes it anew where it is damaged (or where that is
// asked for), and brings it and the descriptions into line.
func openRecords(ctx context.Context, opt Options, contents *cas.Store, anew bool) (*records, error) {
	db, err := store.OpenOrRepair(ctx, filepath.Join(opt.StateDir, "mulligan.db"), opt.Failpoint,
		store.How{Now: opt.Now(), Described: len(contents.Roots("record/")) > 0, Anew: anew})
	if err != nil {
		return nil, err
	}
	r := &records{Store: db, contents: contents, dir: opt.StateDir}
	r.noteRepair()
	if err := r.reconcile(ctx); err != nil {
		return nil, errs.Also(err, db.Close())
	}
	for _, word := range r.repaired {
		opt.Log.Warn("records", "repaired", word)
	}
	for _, word := range r.trouble {
		opt.Log.Error("records", "problem", word)
	}
	return r, nil
}

func (r *records) noteRepair() {
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
	r.repaired = append(r.repaired, word)
	if len(rep.Lost) > 0 {
		r.repaired = append(r.repaired, "lost, because mulligan.db could not be read and no content store has them: rows of "+strings.Join(rep.Lost, ", "))
	}
}

// problems says what about the records needs a person's attention: damaged files are
// kept until somebody removes them.
func (r *records) problems() []string {
	list := slices.Clone(r.trouble)
	kept, err := filepath.Glob(filepath.Join(r.dir, "mulligan.db.damaged-*"))
	if err != nil {
		return list // the pattern is good
	}
	slices.Sort(kept)
	for _, path := range kept {
		list = append(list, fmt.Sprintf("mulligan.db was damaged; it was made anew, or read as far as it is good (see mulligan log); "+
			"the damaged file is kept as %s: check the disk, and remove that file when it is no longer needed", path))
	}
	return list
}

// reconcile brings records and descriptions into line: the newer of the two is right.
// mulligan.db may lack its last changes, or everything; the descriptions are missing where
// an older mulligan wrote the records.
func (r *records) reconcile(ctx context.Context) error {
	l := liner{r: r, gone: map[string]bool{}}
	orders, err := r.Disposals(ctx)
	if err != nil {
		return err
	}
	var done []store.Disposal
	for _, o := range orders {
		switch o.Kind {
		case store.DisposeApp:
			l.gone[appRoot(ipc.AppID(o.ID))] = true
			l.gone[checkpointRoots+o.ID+"/"] = true
		case store.DisposeCheckpoint:
			l.gone[checkpointRoot(o.AppID, ipc.CheckpointID(o.ID))] = true
		default:
			continue
		}
		done = append(done, o)
	}
	if err := errs.Also(l.apps(ctx), l.checkpoints(ctx)); err != nil {
		return err
	}
	err = r.contents.Delete(l.drop...)
	if err == nil {
		err = r.EndDisposals(ctx, done...)
	}
	err = errs.Also(errs.Also(err, r.describe(l.describe...)), l.tell(ctx))
	if err != nil && ctx.Err() == nil { // the disk may be full; the next start does it
		r.trouble = append(r.trouble, "mulligan.db and the content store disagree: "+err.Error())
	}
	return ctx.Err()
}

// liner carries out one reconcile.
type liner struct {
	r        *records
	gone     map[string]bool // names, and prefixes that end in a slash, of what was deleted
	drop     []string        // descriptions of that
	describe []description   // records without a description, or with an older one
	told     map[ipc.AppID]int
	added    int // apps that the records did not have
}

// newer lists the roots below a prefix that are newer than the record of their name.
func (l *liner) newer(prefix string, revs map[string]int64) (list []cas.Root) {
	for _, root := range l.r.contents.Roots(prefix) {
		rev, known := revs[root.Name]
		switch {
		case l.gone[root.Name] || l.gone[root.Name[:strings.LastIndexByte(root.Name, '/')+1]]:
			l.drop = append(l.drop, root.Name)
		case !known || revOf(root) > rev:
			list = append(list, root)
		}
	}
	return list
}

// stale reports whether a record has no description, or an older one.
func (l *liner) stale(root string, rev int64) bool {
	have, err := l.r.contents.Root(root)
	return err != nil || revOf(have) < rev
}

func (l *liner) apps(ctx context.Context) error {
	all, err := l.r.AllApps(ctx)
	if err != nil {
		return err
	}
	revs := map[string]int64{}
	for _, a := range all {
		d := describeApp(a)
		if revs[d.root] = a.Rev; l.stale(d.root, a.Rev) {
			l.describe = append(l.describe, d)
		}
	}
	for _, root := range l.newer(appRoots, revs) {
		var t appText
		err := l.read(root, &t)
		if err == nil {
			err = l.r.Store.PutApp(ctx, store.App{App: t.App, OwnerUID: t.OwnerUID, FolderUID: t.FolderUID, ByRoot: t.ByRoot,
				RemovedAt: t.RemovedAt, Rev: revOf(root)})
		}
		if l.failed(ctx, "app "+root.Name[len(appRoots):], err) {
			continue
		}
		l.added++
	}
	return ctx.Err()
}

func (l *liner) checkpoints(ctx context.Context) error {
	all, err := l.r.AllCheckpoints(ctx)
	if err != nil {
		return err
	}
	revs, seqs := map[string]int64{}, map[int64]ipc.CheckpointID{}
	for _, c := range all {
		d := describeCheckpoint(c)
		if revs[d.root], seqs[c.Seq] = c.Rev, c.ID; l.stale(d.root, c.Rev) {
			l.describe = append(l.describe, d)
		}
	}
	var list []store.Checkpoint
	for _, root := range l.newer(checkpointRoots, revs) {
		var t checkpointText
		if err := l.read(root, &t); !l.failed(ctx, "checkpoint "+root.Name[len(checkpointRoots):], err) {
			list = append(list, store.Checkpoint{Checkpoint: t.Checkpoint, Snapshots: t.Snapshots, Seq: t.Seq, Rev: revOf(root)})
		}
	}
	slices.SortFunc(list, func(a, b store.Checkpoint) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), a.CreatedAt.Compare(b.CreatedAt))
	})
	l.told = map[ipc.AppID]int{}
	for _, c := range list {
		if id, taken := seqs[c.Seq]; taken && id != c.ID {
			c.Seq = 0 // the next
		}
		if !l.failed(ctx, "checkpoint "+string(c.ID), l.r.Store.PutCheckpoint(ctx, c, "")) {
			l.told[c.AppID]++
		}
	}
	return ctx.Err()
}

// read reads a description.
func (l *liner) read(root cas.Root, into any) error {
	text, err := l.r.contents.Get(root.Hash)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// failed notes what could not be taken from its description. It stays in the content store.
func (l *liner) failed(ctx context.Context, what string, err error) bool {
	if err != nil && ctx.Err() == nil {
		l.r.trouble = append(l.r.trouble, what+" is in the content store, but could not be put into the records: "+err.Error())
	}
	return err != nil
}

// tell says, and writes into the audit trail, what the records did not have.
func (l *liner) tell(ctx context.Context) error {
	if l.added > 0 {
		l.r.repaired = append(l.r.repaired, fmt.Sprintf("%d apps were put back into mulligan.db from their descriptions", l.added))
	}
	var all []error
	for app, n := range l.told {
		word := fmt.Sprintf("%d checkpoints of %s were put back into mulligan.db from their descriptions", n, app)
		l.r.repaired = append(l.r.repaired, word)
	}
	slices.Sort(l.r.repaired[len(l.r.repaired)-len(l.told):])
	if len(l.r.repaired) == 0 {
		return nil
	}
	detail, err := json.Marshal(l.r.repaired)
	if err != nil {
		return err
	}
	apps, err := l.r.AllApps(ctx)
	if err != nil {
		return err
	}
	for _, a := range apps {
		all = append(all, l.r.Audit(ctx, ipc.AuditEntry{At: time.Now().UTC(), AppID: a.ID, Actor: "mulligand", Action: "rebuild",
			Target: a.Slug, Result: "ok", Detail: detail}))
	}
	return errors.Join(all...)
}

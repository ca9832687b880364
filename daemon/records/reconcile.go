package records

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// reconcile makes records and descriptions agree: the newer of the two replaces the other. mulligan.db may lack its last
// changes, or everything. Descriptions are missing if an older mulligan wrote the records.
func (r *Records) reconcile(ctx context.Context) error {
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
			r.purged = append(r.purged, ipc.AppID(o.ID))
			continue // FinishPurges deletes it
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
	err = r.Contents.main.Delete(l.drop...)
	if err == nil {
		err = r.EndDisposals(ctx, done...)
	}
	err = errs.Also(errs.Also(err, r.describe(l.describe...)), l.tell(ctx))
	if err != nil && ctx.Err() == nil { // the disk may be full; the next start tries again
		r.trouble = append(r.trouble, "mulligan.db and the content store disagree: "+err.Error())
	}
	return ctx.Err()
}

// liner has the state of one reconcile.
type liner struct {
	r        *Records
	gone     map[string]bool // names of deleted records, and prefixes of names that end in a slash
	drop     []string        // descriptions of deleted records
	describe []description   // records whose description is missing or older
	told     map[ipc.AppID]int
	added    int // number of apps that the records lacked
}

// newer returns the descriptions below a prefix that are newer than their records.
func (l *liner) newer(prefix string, revs map[string]int64) (list []cas.Root) {
	for _, root := range l.r.Contents.main.Roots(prefix) {
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

// stale reports whether the description of a record is missing or older.
func (l *liner) stale(root string, rev int64) bool {
	have, err := l.r.Contents.main.Root(root)
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
			c.Seq = 0 // the store assigns the next number
		}
		if !l.failed(ctx, "checkpoint "+string(c.ID), l.r.Store.PutCheckpoint(ctx, c, "")) {
			l.told[c.AppID]++
		}
	}
	return ctx.Err()
}

// read reads a description.
func (l *liner) read(root cas.Root, into any) error {
	text, err := l.r.Contents.main.Get(root.Hash)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// failed records that a description could not be used. The description stays in the content store.
func (l *liner) failed(ctx context.Context, what string, err error) bool {
	if err != nil && ctx.Err() == nil {
		l.r.trouble = append(l.r.trouble, what+" is in the content store, but could not be put into the records: "+err.Error())
	}
	return err != nil
}

// tell logs what the records lacked, and writes it to the audit trail.
func (l *liner) tell(ctx context.Context) error {
	if l.added > 0 {
		l.r.Repaired = append(l.r.Repaired, fmt.Sprintf("%d apps were put back into mulligan.db from their descriptions", l.added))
	}
	var all []error
	for app, n := range l.told {
		word := fmt.Sprintf("%d checkpoints of %s were put back into mulligan.db from their descriptions", n, app)
		l.r.Repaired = append(l.r.Repaired, word)
	}
	slices.Sort(l.r.Repaired[len(l.r.Repaired)-len(l.told):])
	if len(l.r.Repaired) == 0 {
		return nil
	}
	detail, err := json.Marshal(l.r.Repaired)
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

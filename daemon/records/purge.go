package records

import (
	"context"
	"slices"
	"strings"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// PurgeLater has FinishPurges finish the purge of an app.
func (r *Records) PurgeLater(id ipc.AppID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.purged = append(r.purged, id)
}

// FinishPurges finishes the purges that an earlier process, or this one, did not complete. It deletes the contents of the apps, and calls
// clear, which removes everything else of an app and reports whether nothing is left. A purge that fails keeps no other from being finished, and a store
// that cannot be opened keeps nothing that is elsewhere; the next call tries again, and Problems says so until then.
func (r *Records) FinishPurges(ctx context.Context, clear func(ipc.AppID) (gone bool, err error)) error {
	r.mu.Lock()
	list := r.purged
	r.purged = nil
	r.mu.Unlock()
	var left []ipc.AppID
	var failed error
	for _, id := range list {
		if err := r.finishPurge(ctx, id, clear); err != nil {
			left, failed = append(left, id), errs.Also(failed, errs.Wrap(errs.Failed, "finish the purge of "+string(id), err))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.purged, r.unpurged = append(left, r.purged...), failed
	return failed
}

func (r *Records) finishPurge(ctx context.Context, id ipc.AppID, clear func(ipc.AppID) (gone bool, err error)) error {
	unopened := r.Contents.openAll() // nothing says which store has the app's contents: it may be one that cannot be opened
	if err := r.opt.Failpoint.At("finish purge"); err != nil {
		return err
	}
	if err := r.deleteRoots(id); err != nil {
		return err
	}
	gone, err := clear(id)
	if err = errs.Also(err, unopened); err != nil {
		r.WakeCollector() // of what is deleted, the space is freed now
		return err
	}
	return r.EndPurge(ctx, id, gone)
}

// PurgeContents deletes the contents of a purged app: its snapshots, also those that its drivers do not know or cannot delete at present, and its
// journal. The drivers must be closed.
func (r *Records) PurgeContents(rec store.App) error {
	if _, err := r.Contents.OfApp(rec); err != nil { // it is open from here on
		return err
	}
	return r.deleteRoots(rec.ID)
}

// deleteRoots deletes the roots of an app in the open stores.
func (r *Records) deleteRoots(id ipc.AppID) error {
	for _, s := range r.Contents.all() {
		if err := s.Delete(rootsOf(s, id)...); err != nil {
			return err
		}
	}
	return nil
}

// rootsOf returns the names of the roots that an app's drivers made. The second part of such a name is the app's id, or in the case of a volume
// begins with it.
func rootsOf(s *cas.Store, id ipc.AppID) (names []string) {
	for _, root := range s.Roots("") {
		parts := strings.Split(root.Name, "/")
		if len(parts) > 2 && parts[0] != "record" && (parts[1] == string(id) || strings.HasPrefix(parts[1], string(id)+".volume.")) {
			names = append(names, root.Name)
		}
	}
	return names
}

// EndPurge ends the purge of an app whose contents are deleted: the disposals of its snapshots were carried out and, if nothing of the app is left
// (gone), that of the app.
func (r *Records) EndPurge(ctx context.Context, id ipc.AppID, gone bool) error {
	all, err := r.Disposals(ctx)
	if err != nil {
		return err
	}
	r.WasDisposed(slices.DeleteFunc(all, func(o store.Disposal) bool {
		return o.AppID != id || o.Kind == store.DisposeApp && !gone || o.Kind == store.DisposePinned
	})...)
	return nil
}

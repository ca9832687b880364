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

// FinishPurges finishes the purges that an earlier process did not complete. It deletes the contents of the apps, and calls
// clear, which removes everything else of an app and reports whether nothing is left. Whatever cannot be removed now is tried
// again at the next start.
func (r *Records) FinishPurges(ctx context.Context, clear func(ipc.AppID) (gone bool, err error)) error {
	for len(r.purged) > 0 {
		id := r.purged[0]
		for _, s := range r.Contents.all() {
			if err := s.Delete(rootsOf(s, id)...); err != nil {
				return err
			}
		}
		gone, err := clear(id)
		if err != nil {
			return errs.Wrap(errs.Failed, "finish the purge of "+string(id), err)
		}
		if err := r.endPurge(ctx, id, gone); err != nil {
			return err
		}
		r.purged = r.purged[1:]
	}
	return nil
}

// rootsOf returns the names of the roots of an app's snapshots. The second part of such a name is the app's id.
func rootsOf(s *cas.Store, id ipc.AppID) (names []string) {
	for _, root := range s.Roots("") {
		if parts := strings.Split(root.Name, "/"); len(parts) > 2 && parts[1] == string(id) && parts[0] != "record" {
			names = append(names, root.Name)
		}
	}
	return names
}

// endPurge deletes the disposals of an app's snapshots and, if nothing of the app is left, that of the app.
func (r *Records) endPurge(ctx context.Context, id ipc.AppID, gone bool) error {
	all, err := r.Disposals(ctx)
	if err != nil {
		return err
	}
	done := slices.DeleteFunc(all, func(o store.Disposal) bool {
		return o.AppID != id || o.Kind == store.DisposeApp && !gone || o.Kind == store.DisposePinned
	})
	return r.endDescribed(ctx, done)
}

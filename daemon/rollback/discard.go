package rollback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// madeFile is a regular file that a checkpoint does not have, although its snapshot of the files would.
type madeFile struct {
	path string
	size int64 // the room that it takes on the disk
}

// made is a walk through a workspace that collects the files that a snapshot does not have.
type made struct {
	ctx    context.Context
	root   *beneath.Root
	lister snap.Lister
	target snap.SnapshotID
	files  []madeFile
}

// look collects the files at and below one path.
func (m *made) look(rel string) error {
	var st unix.Stat_t
	if err := atParent(m.root, rel, func(dir int, base string) error { return unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		now, err := m.lister.Names(m.ctx, "", path.Dir(rel))
		if err != nil || !slices.Contains(now, path.Base(rel)) { // it is excluded or another layer's, and nothing says since when it is there
			return err
		}
		then, err := m.lister.Names(m.ctx, m.target, path.Dir(rel))
		if err == nil && !slices.Contains(then, path.Base(rel)) {
			m.files = append(m.files, madeFile{rel, st.Blocks * 512})
		}
		return err
	case unix.S_IFDIR:
		return m.lookInto(rel)
	}
	return nil
}

func (m *made) lookInto(dir string) error {
	now, err := m.lister.Names(m.ctx, "", dir)
	if err != nil {
		return err
	}
	then, err := m.lister.Names(m.ctx, m.target, dir)
	if err != nil {
		return err
	}
	old := map[string]bool{}
	for _, name := range then {
		old[name] = true
	}
	for _, name := range now {
		rel := path.Join(dir, name)
		var st unix.Stat_t
		if err := atParent(m.root, rel, func(fd int, base string) error { return unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
			continue // it was deleted meanwhile
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if err := m.lookInto(rel); err != nil {
				return err
			}
		case unix.S_IFREG:
			if !old[name] {
				m.files = append(m.files, madeFile{rel, st.Blocks * 512})
			}
		}
	}
	return nil
}

// atParent calls f with the opened folder that rel is in.
func atParent(root *beneath.Root, rel string, f func(dir int, base string) error) error {
	if rel == "." {
		return f(root.FD(), ".")
	}
	dir, base, err := root.Parent(rel)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir.FD(), base)
}

// discard deletes for good, before anything else is done, the files made since the checkpoint that the
// request names: on a full disk there is no room for a copy of them in the safety checkpoint. It returns their paths.
func (d *Service) discard(ctx context.Context, who ipc.Caller, a *app.App, id ipc.CheckpointID, req ipc.RollbackRequest) (gone map[string]bool, err error) {
	if len(req.Discard) == 0 || req.DryRun {
		return nil, nil
	}
	turns.TrackerOf(a).CatchUp(ctx) // which files were made since depends on what there is to undo
	release, err := d.apps.Acquire(ctx, a, "discard", who)
	if err != nil {
		return nil, err
	}
	defer release()
	at := req
	aimed, err := d.resolveTarget(ctx, a, id, &at)
	if err != nil {
		return nil, err
	}
	at.DryRun = true // nothing else is done here
	r, err := d.newRollback(ctx, a, aimed, at, aimed != id)
	if err != nil {
		return nil, err
	}
	root, err := app.OpenWorkspace(a.Rec())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	doomed := map[string][]madeFile{}
	gone = map[string]bool{}
	for _, p := range req.Discard { // all of them, before the first is deleted
		if !filepath.IsLocal(p) {
			return nil, errs.New(errs.Invalid, "", "%q is not a path in the workspace", p).WithHint("name a path below it")
		}
		list, err := r.hints.madeSince(ctx, p)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, errs.New(errs.NotFound, "", "%q is no file, and has none below it, that was made after %s", p, aimed).
				WithHint("leave out --discard, or name what is to be deleted for good")
		}
		doomed[p] = list
		for _, f := range list {
			gone[f.path] = true
		}
	}
	if err := r.admitDiscard(ctx, req, gone); err != nil {
		return nil, err
	}
	if !r.hints.onStateDisk() { // where the state's own disk is full, they would be deleted in vain
		if err := d.store.HasFree(ctx, records.Reserve); err != nil {
			return nil, err
		}
	}
	// Once the disk has room again, a later undo must not take these for what somebody else deleted. On the full disk, noting that may fail:
	// this rollback goes by their paths.
	unmute := turns.TrackerOf(a).Mute(ctx)
	defer unmute(ctx)
	for _, p := range req.Discard {
		var err error
		for _, f := range doomed[p] {
			e := atParent(root, f.path, func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
			if !errors.Is(e, unix.ENOENT) { // named twice, or deleted meanwhile
				err = errs.Also(err, errs.Wrap(errs.Failed, "delete "+f.path, e))
			}
			if err != nil {
				break
			}
		}
		d.events.WriteAudit(ctx, a.Rec(), who, "discard", string(aimed), fmt.Sprintf("%.512q was deleted for good, to make room", p), err, nil)
		if err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// admitDiscard refuses to delete what another session wrote, and to delete anything for a rollback that would then be refused because of what others
// wrote: what is deleted for good cannot be had back.
func (r *rollback) admitDiscard(ctx context.Context, req ipc.RollbackRequest, doomed map[string]bool) error {
	o := r.others()
	o.req = req
	if owing := r.hints.owing; 0 < r.req.Turns && r.req.Turns <= len(owing) { // once there is room for its checkpoint, the undo goes to the begin of this turn
		turn := owing[r.req.Turns-1]
		o.target.CreatedAt, o.target.TurnID, o.target.ConversationID = turn.StartedAt, checkpoint.Optional(string(turn.ID)), checkpoint.Optional(turn.ConversationID)
		o.target.Snapshots = []store.Snapshot{{Layer: snap.Files, Position: string(turn.Start)}}
	}
	files := *o
	files.hasFiles, files.paths = true, slices.Sorted(maps.Keys(doomed))
	if what := files.sessionsTurns(ctx); what != "" {
		return errs.New(errs.Conflict, "", "it would delete for good what another session wrote: %s", what).
			WithHint("name with --discard only what your own session wrote, or add --force")
	}
	o.discarded = doomed
	if what := o.sessionsTurns(ctx); what != "" {
		return errs.New(errs.Conflict, "", "it would also undo %s", what).
			WithHint("`mulligan revert --conversation ID` undoes the writes of one session only; or add --force")
	}
	return o.spareUnannounced(ctx)
}

// mostDiscarded bounds how many files are named to be deleted.
const mostDiscarded = 5

// worthDiscarding returns the few largest files that take more than half of the room. If it takes many files to get there, it returns
// the deepest folder in which more than half of the room is taken. size is what was made there, in bytes.
func worthDiscarding(list []madeFile) (few []string, size int64) {
	below := map[string]int64{} // by folder
	for _, f := range list {
		for dir := path.Dir(f.path); ; dir = path.Dir(dir) {
			below[dir] += f.size
			if dir == "." {
				break
			}
		}
	}
	slices.SortFunc(list, func(a, b madeFile) int { return cmp.Compare(b.size, a.size) })
	for _, f := range list[:min(len(list), mostDiscarded)] {
		few = append(few, f.path)
		if size += f.size; size > below["."]/2 {
			return few, size
		}
	}
	deepest := "."
	for dir, size := range below { // of two with so much, one is in the other
		if size > below["."]/2 && (deepest == "." || len(dir) > len(deepest)) {
			deepest = dir
		}
	}
	if below[deepest] == 0 {
		return nil, 0
	}
	return []string{deepest}, below[deepest]
}

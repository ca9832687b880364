package rollback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/daemon/app"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// madeFile is a regular file that a checkpoint does not have.
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
// request names: on a full disk there is no room for a copy of them in the safety checkpoint.
func (d *Service) discard(ctx context.Context, who ipc.Caller, a *app.App, id ipc.CheckpointID, req ipc.RollbackRequest) error {
	if len(req.Discard) == 0 || req.DryRun {
		return nil
	}
	release, err := d.apps.Acquire(ctx, a, "discard", who)
	if err != nil {
		return err
	}
	defer release()
	at := req
	aimed, err := d.resolveTarget(ctx, a, id, &at)
	if err != nil {
		return err
	}
	at.DryRun = true // nothing else is done here
	r, err := d.newRollback(ctx, a, aimed, at, aimed != id)
	if err != nil {
		return err
	}
	root, err := app.OpenWorkspace(a.Rec())
	if err != nil {
		return err
	}
	defer root.Close()
	for _, p := range req.Discard { // all of them, before the first is deleted
		if !filepath.IsLocal(p) {
			return errs.New(errs.Invalid, "", "%q is not a path in the workspace", p).WithHint("name a path below it")
		}
		list, err := r.hints.madeSince(ctx, p)
		if err != nil {
			return err
		}
		if len(list) != 1 || list[0].path != path.Clean(p) {
			return errs.New(errs.NotFound, "", "%q is not a file that was made after %s", p, aimed).WithHint("leave out --discard, or name a file that is to be deleted for good")
		}
	}
	for _, p := range req.Discard {
		err := atParent(root, path.Clean(p), func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
		d.events.WriteAudit(ctx, a.Rec(), who, "discard", string(aimed), fmt.Sprintf("%.512q was deleted for good, to make room", p), err, nil)
		if err != nil {
			return errs.Wrap(errs.Failed, "delete "+p, err)
		}
	}
	return nil
}

// mostDiscarded bounds how many files are named to be deleted.
const mostDiscarded = 5

// worthDiscarding returns the few largest files that take more than half of the room, or nil if it
// takes many files to get there.
func worthDiscarding(list []madeFile) (few []madeFile) {
	var all, sum int64
	for _, f := range list {
		all += f.size
	}
	slices.SortFunc(list, func(a, b madeFile) int { return cmp.Compare(b.size, a.size) })
	for i, f := range list[:min(len(list), mostDiscarded)] {
		if sum += f.size; sum > all/2 {
			return list[:i+1]
		}
	}
	return nil
}

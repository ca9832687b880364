package files

import (
	"context"

	"mulligan/snap"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/merge"
	"mulligan/snap/files/relpath"
)

// The files of a git repository need each other: refs and the index name objects, and a ref without a file of its own is in
// packed-refs. Therefore a revert takes the writes to a repository back as a whole, or leaves the repository alone if others
// changed it too. Objects that were added stay: unused ones do no harm, and others may have begun to use them.

// repositories leaves the repositories alone that others changed, and keeps the objects that the writes added to repositories.
func (r *reverting) repositories(ctx context.Context) error {
	first := map[string]*journal.Run{} // by repository: the oldest run in it
	for p, k := range r.tracks {
		in, err := r.repository(p)
		if err != nil {
			return err
		}
		if run := &k.Runs[0]; in != "" && (first[in] == nil || run.Seq < first[in].Seq) {
			first[in] = run
		}
	}
	for _, in := range relpath.SortedKeys(first) {
		if err := r.wholly(ctx, in, first[in].Since); err != nil {
			return err
		}
	}
	return nil
}

// wholly keeps the objects that the writes added to the repository in, and leaves it alone if one of its paths is a conflict, or
// if others changed it. since is the state of the journal before the first of the writes to it.
func (r *reverting) wholly(ctx context.Context, in string, since snap.Hash) error {
	changes := false
	for p, e := range r.to {
		if !relpath.Within(p, in) {
			continue
		}
		kept, err := r.keepsObject(p)
		if err != nil {
			return err
		}
		if e == nil && kept {
			delete(r.to, p)
			continue
		}
		changes = true
	}
	for p, why := range r.left {
		if relpath.Within(p, in) && why != snap.Excluded {
			r.leaveRepository(in)
			return nil
		}
	}
	if !changes {
		return nil
	}
	then, err := r.state(ctx, since)
	if err != nil {
		return err
	}
	was, err := then.Find(in)
	if err != nil {
		return err
	}
	is, err := r.base.Find(in)
	if err != nil {
		return err
	}
	others, err := r.othersChanged(ctx, then, in, was, is)
	if others {
		r.leaveRepository(in)
	}
	return err
}

// othersChanged reports whether the entry at p, or one below it, differs from its state then, and not by the writes alone. Added
// objects do not count. was and is are the entries of p then and now.
func (r *reverting) othersChanged(ctx context.Context, then *manifest.Manifest, p string, was, is *manifest.Entry) (bool, error) {
	if r.d.ws.Exclude.Covers(p) || manifest.IsFolder(was) && merge.Alike(was, is) && was.Hash == is.Hash {
		return false, ctx.Err()
	}
	if k := r.tracks[p]; !merge.Alike(was, is) && (k == nil || len(k.Runs) > 1 || !merge.Alike(is, k.Runs[0].After)) {
		if kept, err := r.keepsObject(p); err != nil || was != nil || !kept {
			return true, err
		}
	}
	before, err := manifest.EntriesOf(then, was)
	if err != nil {
		return false, err
	}
	now, err := manifest.EntriesOf(r.base, is)
	if err != nil {
		return false, err
	}
	others := false
	err = manifest.Pairs(before, now, func(name string, x, y *manifest.Entry) (err error) {
		if !others {
			others, err = r.othersChanged(ctx, then, relpath.Join(p, name), x, y)
		}
		return err
	})
	return others, err
}

// leave leaves p as it is, for the reason why. If p is in a repository, all of the repository stays as it is.
func (r *reverting) leave(p string, why snap.ConflictReason) error {
	in, err := r.repository(p)
	if in != "" {
		r.leaveRepository(in)
		return err
	}
	delete(r.to, p)
	delete(r.merged, p)
	r.left[p] = why
	return err
}

// leaveRepository leaves all paths of the repository in as they are, and reports the repository in their place.
func (r *reverting) leaveRepository(in string) {
	for p := range r.to {
		if relpath.Within(p, in) {
			delete(r.to, p)
			delete(r.merged, p)
		}
	}
	for p := range r.left {
		if relpath.Within(p, in) {
			delete(r.left, p)
		}
	}
	r.left[in] = snap.Repository
}

// repository returns the outermost git repository, a .git or a bare repository, that p is or is in. It returns "" if there is
// none. A repository that the writes made or removed counts too.
func (r *reverting) repository(p string) (string, error) {
	for _, dir := range append(above(p), p) {
		is, err := r.isRepository(dir)
		if is || err != nil {
			return dir, err
		}
	}
	return "", nil
}

func (r *reverting) isRepository(dir string) (bool, error) {
	if is, known := r.known[dir]; known {
		return is, nil
	}
	is, err := r.hasParts(dir, func(p string, k *journal.Track) (*manifest.Entry, error) {
		if k != nil && k.Runs[0].Before != nil {
			return k.Runs[0].Before, nil
		}
		e, err := r.base.Find(p)
		if e == nil && k != nil {
			e = k.Runs[0].After
		}
		return e, err
	})
	r.known[dir] = is
	return is, err
}

// keepsObject reports whether p is below the objects of a repository that was there before the writes.
func (r *reverting) keepsObject(p string) (bool, error) {
	for _, dir := range above(p) {
		objects := relpath.Join(dir, "objects")
		if p == objects || !relpath.Within(p, objects) {
			continue
		}
		was, err := r.hasParts(dir, func(p string, k *journal.Track) (*manifest.Entry, error) {
			if k != nil {
				return k.Runs[0].Before, nil
			}
			return r.base.Find(p)
		})
		if was || err != nil {
			return was, err
		}
	}
	return false, nil
}

// hasParts reports whether dir has what makes a folder a repository, in the state of which entry returns the entries.
func (r *reverting) hasParts(dir string, entry func(p string, k *journal.Track) (*manifest.Entry, error)) (bool, error) {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		p := relpath.Join(dir, name)
		e, err := entry(p, r.tracks[p])
		if err != nil || e == nil || name != "HEAD" && !e.IsDir() {
			return false, err
		}
	}
	return true, nil
}

package files

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/workspace"
)

// change is a switch of the workspace from base to target or back.
type change struct {
	d  *Driver
	id snap.RestoreID

	mu       sync.Mutex
	plan     *plan
	base     *manifest.Manifest // nil until it is computed, as are
	target   *manifest.Manifest
	deltas   []diff.Delta // from base to target; nil until they are computed
	unsynced bool         // an apply was interrupted, so not all of its changes may be durable
}

// differences returns the deltas from base to target.
func (c *change) differences(ctx context.Context) ([]diff.Delta, error) {
	if c.deltas != nil {
		return c.deltas, nil
	}
	base, target, err := c.manifests(ctx)
	if err == nil {
		c.deltas, err = c.d.compare(ctx, base, target, c.plan.scope())
	}
	return c.deltas, err
}

// Changes lists the changes from target to base, which Commit reverts. After Commit it leaves out what had to stay.
func (c *change) Changes(limit int) ([]snap.Change, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	deltas, err := c.differences(context.Background())
	if err != nil {
		return nil, 0 // Commit will report the same error
	}
	back := slices.Clone(deltas)
	for i := range back {
		back[i].Old, back[i].New = back[i].New, back[i].Old
	}
	if c.plan.State == switched {
		if stayed, err := c.stayed(back); err == nil { // otherwise Check reports the same error
			back = slices.DeleteFunc(back, func(d diff.Delta) bool { return d.Mounted() || stayed[d.Path] })
		}
	}
	return diff.Changes(back, limit)
}

// Stale examines the workspace, and reads files that may have changed.
func (c *change) Stale(ctx context.Context) (bool, error) {
	const op = "compare files"
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.d.cfg.Store.Begin()
	defer b.Discard()
	now, err := c.d.present(ctx, op, b, c.plan.scope())
	if err != nil {
		return false, err
	}
	base, _, err := c.manifests(ctx)
	if err != nil {
		return false, workspace.Wrap(errs.Corrupt, op, err)
	}
	moved, err := c.moved(ctx, base, now.Manifest)
	return moved != "", workspace.Wrap(errs.Failed, op, err)
}

// moved returns a path at which live differs from the base, "" if there is none.
func (c *change) moved(ctx context.Context, base, live *manifest.Manifest) (string, error) {
	was, err := base.PartHash(c.plan.scope())
	if err != nil {
		return "", err
	}
	is, err := live.PartHash(c.plan.scope())
	if err != nil || was == is {
		return "", err
	}
	deltas, err := c.d.compare(ctx, base, live, c.plan.scope())
	if err != nil {
		return "", err
	}
	return diff.MostTelling(deltas), nil
}

// Commit makes the workspace, or the scope, the target. The first time the
// workspace must be the base; after that, anything between base and target. A folder that had to stay for the files of a database is tried again by the
// next Commit if these are gone by then.
func (c *change) Commit(ctx context.Context) error {
	const op = "restore files"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan.State == switched {
		if left, err := c.left(); err != nil || !left {
			return workspace.Wrap(errs.Failed, op, err)
		}
	}
	return c.converge(ctx, op, committing, switched)
}

// Left reports whether a folder that stayed for the files of a database has none any more, so that another Commit, or Undo, removes it.
func (c *change) Left(context.Context) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, err := c.left()
	return left, workspace.Wrap(errs.Failed, "look for folders that stayed", err)
}

func (c *change) left() (bool, error) {
	if len(c.plan.StayedFor) == 0 {
		return false, nil
	}
	root, err := c.d.ws.Open()
	if err != nil {
		return false, err
	}
	defer root.Close()
	for _, path := range c.plan.StayedFor {
		dir, err := root.OpenDir(string(path))
		if err != nil {
			return true, nil // the driver of the database removed it too
		}
		names, err := inode.List(dir.FD())
		if err := errors.Join(err, dir.Close()); err != nil {
			return false, err
		}
		if !slices.ContainsFunc(names, func(name string) bool { return c.d.ws.Exclude.Skips(relpath.Join(string(path), name)) }) {
			return true, nil
		}
	}
	return false, nil
}

// finish applies the deltas. The new state need not be stored, because a process that resumes the switch examines the workspace
// and finds nothing to do. New notes must be stored.
func (c *change) finish(a *apply.Job, op string, done state) error {
	c.unsynced = true
	err := a.Run()
	c.unsynced = err != nil
	said := c.plan.Stayed
	c.plan.Stayed, c.plan.StayedFor = a.Notes, a.ForDatabases
	if err != nil {
		return err
	}
	if !slices.Equal(said, a.Notes) {
		return workspace.Wrap(errs.Failed, op, c.set(done))
	}
	p := *c.plan
	p.State = done
	c.plan = &p
	return workspace.Wrap(errs.Failed, op, c.d.cfg.Failpoint.At(string(done)))
}

// Undo makes the workspace the base again from any state in between. If a path is neither as in the base nor as in the target,
// Undo first stores the whole present state under the root "files/<App>/late/<id>", and Check's notes say so. What a later Commit tries again, a later Undo
// does.
func (c *change) Undo(ctx context.Context) error {
	const op = "undo files"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.plan.State {
	case undone:
		if left, err := c.left(); err != nil || !left {
			return workspace.Wrap(errs.Failed, op, err)
		}
	case prepared: // Commit changed nothing
		if err := ctx.Err(); err != nil {
			return workspace.Wrap(errs.Unavailable, op, err)
		}
		return workspace.Wrap(errs.Failed, op, c.set(undone))
	}
	return c.converge(ctx, op, undoing, undone)
}

// converge reads the workspace and changes it to its goal.
func (c *change) converge(ctx context.Context, op string, going, done state) error {
	b := c.d.cfg.Store.Begin()
	defer b.Discard()
	base, target, err := c.manifests(ctx)
	if err != nil {
		return workspace.Wrap(errs.Corrupt, op, err)
	}
	goal := base
	if done == switched {
		goal = target
	}
	if err := c.sweepTemps(ctx); err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	var now *follow.View
	if done == undone { // the present state may have to be stored
		now, err = c.d.presentStored(ctx, op, b, c.plan.scope(), follow.CheckAll)
	} else { // Stale has just looked at everything
		now, err = c.d.read(ctx, op, b, c.plan.scope(), c.plan.scope(), follow.CheckNames, nil, nil)
	}
	if err != nil {
		return err
	}
	live := now.Manifest
	deltas, err := c.toGo(ctx, live, base, goal, done)
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	if err := c.adjustParents(deltas, base); err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	if err := c.mayReplace(ctx, op, live, deltas, base, target, done); err != nil {
		return err
	}
	if err := c.d.applier.CheckWays(op, deltas, c.d.applier.FileOwner(live.Root.Uid), goal); err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	if deltas, err = c.d.applier.WithRemade(ctx, deltas, live, goal, c.plan.scope()); err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	defer c.d.follower.Restoring()()
	a, err := c.d.applier.Begin(ctx, op, c.id, b, deltas, c.plan.scope(), c.unsynced)
	if err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	defer a.Close()
	if err := c.set(going); err != nil {
		return workspace.Wrap(errs.Failed, op, err)
	}
	return c.finish(a, op, done)
}

// toGo returns the deltas from the live state to the goal.
func (c *change) toGo(ctx context.Context, live, base, goal *manifest.Manifest, done state) ([]diff.Delta, error) {
	if done == switched && live.Hash == base.Hash && c.deltas != nil {
		return slices.Clone(c.deltas), nil // Prepare has computed them
	}
	return c.d.compare(ctx, live, goal, c.plan.scope())
}

// Check reads all changed files from the disk again, examines all others, and compares the result with the target. Of a large file it reads what does not
// share its blocks with a copy that was read (package reflink).
func (c *change) Check(ctx context.Context) (snap.Proof, error) {
	const op = "check files"
	c.mu.Lock()
	defer c.mu.Unlock()
	deltas, err := c.differences(ctx)
	if err != nil {
		return snap.Proof{}, workspace.Wrap(errs.Failed, op, err)
	}
	touched := map[string]bool{}
	for _, d := range deltas {
		touched[d.Path] = true
	}
	base, target, err := c.manifests(ctx)
	if err != nil {
		return snap.Proof{}, workspace.Wrap(errs.Corrupt, op, err)
	}
	want := target
	if c.plan.State == undoing || c.plan.State == undone {
		want = base
	}
	b := c.d.cfg.Store.Begin()
	defer b.Discard()
	now, err := c.d.presentFresh(ctx, op, b, c.plan.scope(), touched)
	if err != nil {
		return snap.Proof{}, err
	}
	return c.proof(ctx, op, base, want, now.Manifest)
}

func (c *change) proof(ctx context.Context, op string, base, want, live *manifest.Manifest) (p snap.Proof, err error) {
	hashes := make([]snap.Hash, 3)
	for i, m := range []*manifest.Manifest{base, want, live} {
		if hashes[i], err = m.PartHash(c.plan.scope()); err != nil {
			return p, workspace.Wrap(errs.Failed, op, err)
		}
	}
	p = snap.Proof{Pre: hashes[0], Want: hashes[1], Post: hashes[2], Match: hashes[1] == hashes[2]}
	p.Notes = slices.Concat(c.plan.Notes, c.plan.Stayed)
	if p.Match {
		return p, nil
	}
	deltas, err := c.d.compare(ctx, want, live, c.plan.scope())
	if err == nil {
		if p.Match, err = c.allBut(ctx, deltas, want, live); p.Match {
			p.Post = p.Want // without what had to stay, which the notes tell of
			return p, nil
		}
	}
	list, _ := diff.Changes(deltas, 5)
	for _, x := range list {
		p.Notes = append(p.Notes, fmt.Sprintf("%s is not as it should be: %s.", workspace.Shown(c.d.cfg.Dir, x.Path), x.Summary))
	}
	return p, workspace.Wrap(errs.Failed, op, err)
}

// allBut reports whether live is the goal want but for what had to stay because mulligan does not touch it: folders, for what they hold,
// excluded folders in the place of something else, and what is or was mounted. The other names of a file whose first name stays are a
// group without it. deltas are the differences from the goal to live.
func (c *change) allBut(ctx context.Context, deltas []diff.Delta, want, live *manifest.Manifest) (bool, error) {
	stayed, err := c.stayed(deltas)
	if err != nil {
		return false, err
	}
	var toWant, toLive manifest.Edits
	for _, d := range deltas {
		switch {
		case d.Mounted():
			is := d.Old
			if d.New != nil && d.New.Mount {
				is = d.New
			}
			toWant.Put(d.Path, is)
			toLive.Put(d.Path, is)
		case stayed[d.Path]:
			toWant.Put(d.Path, d.New)
		}
	}
	for _, names := range diff.Regrouped(deltas, stayed, func(d *diff.Delta) *manifest.Entry { return d.Old }) {
		for _, path := range names {
			e, err := want.Find(path)
			if err != nil {
				return false, err
			}
			x := *e
			if x.SetGroup(""); len(names) > 1 {
				x.SetGroup(names[0])
			}
			toWant.Put(path, &x)
		}
	}
	if want, err = want.Edit(ctx, &toWant); err != nil {
		return false, err
	}
	if live, err = live.Edit(ctx, &toLive); err != nil {
		return false, err
	}
	able, err := want.PartHash(c.plan.scope())
	if err != nil {
		return false, err
	}
	is, err := live.PartHash(c.plan.scope())
	return err == nil && is == able, err
}

// stayed returns the paths at which mulligan could not reach the goal because of excluded folders, or of folders for what they hold. deltas are the
// differences from the goal to another state.
func (c *change) stayed(deltas []diff.Delta) (map[string]bool, error) {
	root, err := c.d.ws.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	stayed := map[string]bool{}
	for _, d := range slices.Backward(deltas) { // the deepest first
		stays := false
		switch {
		case d.Mounted():
		case d.New == nil:
			stays, err = c.excludedFolder(root, d.Path)
		case d.New.IsDir() && !manifest.IsFolder(d.Old):
			stays, err = c.mustStay(root, d.Path, stayed)
		}
		if err != nil {
			return nil, err
		}
		if stays {
			stayed[d.Path] = true
		}
	}
	return stayed, nil
}

// excludedFolder reports whether there is a folder at the path that is excluded.
func (c *change) excludedFolder(root *beneath.Root, path string) (bool, error) {
	if !c.d.ws.Exclude.Excludes(path, true) {
		return false, nil
	}
	dir, err := root.OpenDir(path)
	if err != nil {
		return false, nil // it is something else, or nothing
	}
	return true, dir.Close()
}

// mustStay reports whether a folder holds excluded paths, mount points, or folders that stay, and nothing else.
func (c *change) mustStay(root *beneath.Root, path string, stayed map[string]bool) (bool, error) {
	dir, err := root.OpenDir(path)
	if err != nil {
		return false, nil // it is no folder, or gone
	}
	defer dir.Close()
	names, err := inode.List(dir.FD())
	for _, name := range names {
		st, err := inode.StatAt(dir.FD(), name)
		if p := relpath.Join(path, name); err != nil || !stayed[p] && !st.Mount && !c.d.ws.Exclude.Excludes(p, st.Kind() == manifest.DirKind) {
			return false, err
		}
	}
	return len(names) > 0, err
}

// Finish deletes the plan, and its references to base and target.
func (c *change) Finish(ctx context.Context) error {
	const op = "finish files"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return workspace.Wrap(errs.Unavailable, op, err)
	}
	base, target := c.d.switchRoots(c.id)
	return workspace.Wrap(errs.Failed, op, c.d.cfg.Store.Delete(c.d.planRoot(c.id), base, target))
}

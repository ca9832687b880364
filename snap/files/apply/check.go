package apply

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

// CheckAllowed checks everything except stored contents and free space. It returns the deltas with those paths that must be made anew because
// the owner of their folder changes.
func (p *Applier) CheckAllowed(ctx context.Context, op string, deltas []diff.Delta, fileOwner rights.FileOwner, base, target *manifest.Manifest, sc relpath.Scope) ([]diff.Delta, error) {
	if err := p.CheckWays(op, deltas, fileOwner, target); err != nil {
		return nil, err
	}
	deltas, err := p.WithRemade(ctx, deltas, base, target, sc)
	if err == nil {
		err = p.checkHeld(op, deltas)
	}
	if err == nil {
		err = p.checkGiven(op, deltas)
	}
	return deltas, err
}

// needsContent reports whether a change from or to e, which is c's old or new entry, writes e's content.
func needsContent(c *diff.Delta, e *manifest.Entry, fileOwner rights.FileOwner) bool {
	return e != nil && e.IsFile() && (c.Remake || c.Old == nil || c.New == nil || c.Old.Hash != c.New.Hash || !fileOwner.Keeps(c.Old, c.New))
}

// CheckPresent looks whether the contents that Commit writes are in the store. It does not read them.
func (p *Applier) CheckPresent(ctx context.Context, deltas []diff.Delta, fileOwner rights.FileOwner) error {
	for i := range deltas {
		c := &deltas[i]
		if !needsContent(c, c.New, fileOwner) {
			continue
		}
		if err := p.Store.CheckPresent(ctx, c.New.Hash); err != nil {
			return contentError(workspace.Shown(p.Walker.Workspace.Dir, c.Seen()), err)
		}
	}
	return nil
}

// checkContents reads the stored contents that a change to c's new or old entry needs. Of what is copied from one to the other it looks only whether the
// store has it.
func (p *Applier) checkContents(ctx context.Context, c *diff.Delta, fileOwner rights.FileOwner) error {
	both, err := inBoth(p.Store, c)
	for _, e := range []*manifest.Entry{c.New, c.Old} {
		if err != nil || !needsContent(c, e, fileOwner) {
			continue
		}
		var pieces []manifest.Piece
		if pieces, err = manifest.PiecesOf(p.Store, e); err != nil {
			break
		}
		err = parallel.InRuns(len(pieces), func() (func(int) error, func()) {
			return func(i int) error { return p.checkPiece(ctx, pieces[i], both) }, func() {}
		})
	}
	if err != nil {
		return contentError(workspace.Shown(p.Walker.Workspace.Dir, c.Seen()), err)
	}
	return ctx.Err()
}

func (p *Applier) checkPiece(ctx context.Context, piece manifest.Piece, both map[int64]manifest.Piece) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if both[piece.Off] == piece {
		return p.Store.CheckPresent(ctx, piece.Hash)
	}
	_, err := piece.Read(p.Store)
	return err
}

// contentError returns the error for the stored content of a file that cannot be read. It is always damage.
func contentError(path string, err error) error {
	if workspace.Cancelled(err) {
		return err
	}
	if k := errs.KindOf(err); k != errs.NotFound && k != errs.Corrupt && k != errs.Internal {
		return err
	}
	return &errs.Error{Kind: errs.Corrupt, Message: "the stored content of " + path, Err: err,
		Hint: "choose another checkpoint; `mulligan verify` says which are whole"}
}

// CheckRoom compares the bytes that Commit will write with the free space. A batch of new files exists beside the old ones
// until it replaces them; files that go are removed before anything is written. The error of a full disk wraps ENOSPC.
func (p *Applier) CheckRoom(op string, deltas []diff.Delta) error {
	var grows, writes int64
	var gone []string
	for _, c := range deltas {
		isFile := c.New != nil && c.New.IsFile()
		if isFile && (c.Old == nil || c.Old.Hash != c.New.Hash) {
			n := manifest.StoredSize(p.Store, c.New)
			grows, writes = grows+n, writes+n
		}
		switch {
		case c.Old == nil || !c.Old.IsFile():
		case c.Goes() && !isFile:
			gone = append(gone, c.Path)
		case !isFile || c.Old.Hash != c.New.Hash:
			grows -= manifest.StoredSize(p.Store, c.Old)
		}
	}
	root, err := p.Walker.Workspace.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(root.FD(), &fs); err != nil {
		return err
	}
	need, free := max(grows, 0)+min(writes, batchBytes), int64(fs.Bavail)*fs.Bsize
	if os.Geteuid() == 0 {
		free = int64(fs.Bfree) * fs.Bsize
	}
	if writes == 0 || need <= free || fs.Blocks == 0 { // without blocks, the filesystem does not report its size (ramfs)
		return nil
	}
	if free += freed(root, gone); need <= free {
		return nil
	}
	e := errs.New(errs.Failed, op, "the restore needs %s on the disk of %s, which has room for %s", diff.FormatSize(need), p.Walker.Workspace.Dir, diff.FormatSize(free)).
		WithHint("free some space there and try again")
	e.Err = unix.ENOSPC
	return e
}

// freed returns the bytes that are free once the files at paths are removed. A file with another name that stays takes its room on.
func freed(root *beneath.Root, paths []string) (n int64) {
	names := map[inode.ID]uint32{}
	for _, path := range paths {
		dir, base, err := root.Parent(path)
		if err != nil {
			continue // the path changed meanwhile, and frees nothing that is known
		}
		st, err := inode.StatAt(dir.FD(), base)
		_ = dir.Close() // it was only read
		if err != nil {
			continue
		}
		if names[st.ID]++; names[st.ID] == st.Nlink {
			n += st.Blocks * 512
		}
	}
	return n
}

// checkGiven refuses owners and attributes that only root can restore, in either direction.
func (p *Applier) checkGiven(op string, deltas []diff.Delta) error {
	g, err := rights.Self()
	if err != nil || g.Root {
		return err
	}
	why, path, more := "", "", 0
	for i := range deltas {
		c := &deltas[i]
		if c.Outside || c.Mounted() {
			continue
		}
		word := g.RefusesChange(c.Old, c.New)
		if word == "" {
			word = g.RefusesChange(c.New, c.Old) // Undo must be possible too
		}
		switch {
		case word == "":
		case why == "":
			why, path = word, c.Seen()
		default:
			more++
		}
	}
	if why == "" {
		return nil
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf(" (and %d more paths)", more)
	}
	return errs.New(errs.Denied, op, "%s %s: only root can restore that%s", workspace.Shown(p.Walker.Workspace.Dir, path), why, others).
		WithHint("chown or chgrp it to yourself, exclude it, or protect this app with the host daemon (root); a rollback with a scope that leaves it out works")
}

// Check checks everything that Commit and Undo will need: undamaged contents, the right to set owners, folders whose owner may
// change, and free space.
func (p *Applier) Check(ctx context.Context, op string, deltas []diff.Delta, base, target *manifest.Manifest, sc relpath.Scope) error {
	fileOwner := p.FileOwner(base.Root.Uid)
	deltas, err := p.CheckAllowed(ctx, op, deltas, fileOwner, base, target, sc)
	if err == nil {
		err = p.CheckRoom(op, deltas)
	}
	if err != nil {
		return err
	}
	return parallel.InRuns(len(deltas), func() (func(int) error, func()) {
		return func(i int) error { return p.checkContents(ctx, &deltas[i], fileOwner) }, func() {}
	})
}

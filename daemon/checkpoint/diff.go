package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

const (
	maxDiff       = 1000    // changes in one answer
	maxPatchFile  = 1 << 20 // bytes of a file, to be compared line by line
	maxPatchTotal = 4 << 20 // bytes of patches in one answer
)

// Diff returns what differs between a checkpoint and the present state, or another checkpoint.
func (svc *Service) Diff(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, q ipc.DiffQuery) (ipc.Diff, error) {
	const op = "diff"
	a, from, err := svc.FindCheckpoint(ctx, who, ref, id)
	if err != nil {
		return ipc.Diff{}, err
	}
	if err := svc.apps.EnsureOpen(ctx, a, op); err != nil {
		return ipc.Diff{}, err
	}
	res := ipc.Diff{From: id, To: ipc.AgainstNow, Changes: []ipc.DiffChange{}, Unknown: []string{}}
	var to store.Checkpoint // the zero Checkpoint is the present state
	if q.Against != "" && q.Against != ipc.AgainstNow {
		if to, err = svc.store.Checkpoint(ctx, a.Rec().ID, ipc.CheckpointID(q.Against)); err != nil {
			return ipc.Diff{}, err
		}
		res.To = q.Against
	}
	if q.Limit <= 0 || q.Limit > maxDiff {
		q.Limit = maxDiff
	}
	budget := maxPatchTotal
	for _, l := range a.Layers() {
		if len(q.Paths) > 0 && l.Name != snap.Files {
			continue
		}
		if err := svc.diffLayer(ctx, l, from, to, q, &res, &budget); err != nil {
			return ipc.Diff{}, errs.Wrap(errs.Failed, op, err)
		}
	}
	return res, nil
}

// diffLayer adds the changes of one layer that lie on the requested page.
func (svc *Service) diffLayer(ctx context.Context, l layer.Layer, from, to store.Checkpoint, q ipc.DiffQuery, res *ipc.Diff, budget *int) error {
	a, okA := from.Snapshot(l.Name)
	b, okB := to.Snapshot(l.Name)
	differ, can := l.Driver.(snap.Differ)
	if !okA || to.ID != "" && !okB || !can {
		res.Unknown = append(res.Unknown, string(l.Name))
		return nil
	}
	changes, err := differ.Diff(ctx, a.ID, b.ID, q.Paths)
	if err != nil && (to.ID == "" || a.Raw || b.Raw) && l.Name != snap.Files && layer.Unreadable(err) { // the other layers are compared all the same
		res.Unreadable = append(res.Unreadable, fmt.Sprintf("%s cannot be read, so its changes are not listed: %v", l.Name, err))
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range changes {
		at := res.Total
		res.Total++
		if at < q.Offset || len(res.Changes) >= q.Limit {
			continue
		}
		v := ipc.DiffChange{Layer: string(l.Name), Path: c.Path, Operation: string(c.Operation), Summary: c.Summary}
		if opener, ok := l.Driver.(snap.Opener); ok && q.Patch {
			if err := patch(ctx, opener, a.ID, b.ID, &v, budget); err != nil {
				return err
			}
		}
		res.Changes = append(res.Changes, v)
	}
	return nil
}

// patch sets the unified diff of a change, or the reason why it has none.
func patch(ctx context.Context, o snap.Opener, from, to snap.SnapshotID, v *ipc.DiffChange, budget *int) error {
	before, why, err := text(ctx, o, from, v.Path, v.Operation == string(snap.Create))
	if err != nil {
		return err
	}
	after, whyToo, err := text(ctx, o, to, v.Path, v.Operation == string(snap.Delete))
	if err != nil {
		return err
	}
	if why == "" {
		why = whyToo
	}
	if why != "" {
		v.NoPatch = why
		return nil
	}
	nameA, nameB := "a/"+v.Path, "b/"+v.Path
	switch snap.Operation(v.Operation) {
	case snap.Create:
		nameA = "/dev/null"
	case snap.Delete:
		nameB = "/dev/null"
	}
	p := udiff.Unified(nameA, nameB, before, after)
	if len(p) > *budget {
		v.NoPatch = "too large"
		return nil
	}
	*budget -= len(p)
	v.Patch = p
	return nil
}

// text reads a file for a comparison by lines. why is the reason why the file is not compared, or
// "".
func text(ctx context.Context, o snap.Opener, id snap.SnapshotID, path string, absent bool) (content, why string, err error) {
	if absent {
		return "", "", nil
	}
	r, size, err := o.OpenPath(ctx, id, path)
	switch errs.KindOf(err) {
	case errs.NotFound:
		return "", "", nil // a folder, a link, or deleted meanwhile
	case errs.Denied:
		return "", "the app's owner may not read this file", nil
	}
	if err != nil {
		return "", "", err
	}
	defer r.Close()
	if size > maxPatchFile {
		return "", "too large", nil
	}
	b, err := io.ReadAll(io.LimitReader(r, maxPatchFile+1))
	if err != nil {
		return "", "", err
	}
	if len(b) > maxPatchFile {
		return "", "too large", nil
	}
	if bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) {
		return "", "binary", nil
	}
	return strings.ToValidUTF8(string(b), "�"), "", nil
}

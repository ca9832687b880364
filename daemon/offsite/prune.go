package offsite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/retention"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote"
	"mulligan/snap"
)

// PruneRemote removes from a remote of the app called ref the checkpoints that the app's settings no longer keep there, and what no other one needs. With
// dry, it only says what would be removed.
func (s *Service) PruneRemote(ctx context.Context, who ipc.Caller, ref, name string, dry bool) (ipc.RemotePrune, error) {
	const op = "prune the remote"
	res := ipc.RemotePrune{Remote: name, DryRun: dry, Deleted: []ipc.PrunedCheckpoint{}, Left: []string{}}
	a, list, err := s.find(who, ref, name)
	if err != nil {
		return res, err
	}
	t := list[0]
	if err := t.lock(ctx); err != nil { // waits until nothing is sent
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer t.unlock()
	done, err := s.prune(ctx, a, t, dry)
	for _, c := range done.Gone {
		var about aboutText
		if json.Unmarshal(c.About, &about) == nil { // else it would have stayed
			res.Deleted = append(res.Deleted, ipc.PrunedCheckpoint{ID: ipc.CheckpointID(c.ID), CreatedAt: about.Checkpoint.CreatedAt})
		}
	}
	res.Kept, res.Packs, res.FreedBytes, res.MovedBytes = done.Stay, done.Packs, done.Freed, done.Moved
	res.Left = append(res.Left, done.Left...)
	if dry {
		if v := t.view(); err == nil && (v.Abilities.Lock || !v.Abilities.Delete) {
			notes := v.Abilities.Notes // the last note tells what the key may delete
			res.Left = append(res.Left, notes[max(0, len(notes)-1):]...)
		}
		return res, errs.Wrap(errs.Failed, op, err)
	}
	s.events.WriteAudit(ctx, a.Rec(), who, "remote-prune", name, fmt.Sprintf("%d checkpoints, %d bytes", len(res.Deleted), res.FreedBytes), err, res)
	s.noteProblems(a)
	return res, errs.Wrap(errs.Failed, op, err)
}

// prune prunes a remote. t is locked.
func (s *Service) prune(ctx context.Context, a *app.App, t *target, dry bool) (remote.Pruned, error) {
	if err := t.mayWrite(a); err != nil {
		return remote.Pruned{}, err
	}
	here, err := s.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return remote.Pruned{}, err
	}
	place, _, err := s.reach(a.Rec(), t)
	if err != nil {
		return remote.Pruned{}, err
	}
	contents, err := s.store.Contents.OfApp(a.Rec())
	if err != nil {
		return remote.Pruned{}, err
	}
	snap.Begin(ctx, "looking at what is on "+t.name)
	rules := a.Rec().Remoting
	done, err := place.Prune(ctx, contents, func(sent []remote.Sent) map[string]bool { return goes(rules, here, sent) }, dry)
	if dry {
		return done, err
	}
	return done, errs.Also(err, s.review(t)) // some of it may be done
}

// goes says which of the checkpoints that were sent go from a remote.
func goes(rules ipc.Remoting, here []store.Checkpoint, sent []remote.Sent) map[string]bool {
	var list []retention.Sent
	for _, c := range slices.Backward(sent) {
		var about aboutText
		if json.Unmarshal(c.About, &about) != nil {
			continue // nothing is known of it: it stays
		}
		item := retention.Sent{ID: ipc.CheckpointID(c.ID), CreatedAt: about.Checkpoint.CreatedAt, Pinned: about.Checkpoint.Pinned}
		item.Here = slices.ContainsFunc(here, func(cp store.Checkpoint) bool { return cp.ID == item.ID })
		list = append(list, item)
	}
	gone := map[string]bool{}
	for id := range retention.PlanRemote(rules, list) {
		gone[string(id)] = true
	}
	return gone
}

// mayWrite fails if this host does not write to the remote.
func (t *target) mayWrite(a *app.App) error {
	switch v := t.view(); v.State {
	case ipc.RemoteReadOnly:
		return errs.New(errs.Conflict, "", "%s was cloned from the remote %s, and this host does not write to it", a.Rec().Slug, t.name).
			WithHint("`mulligan push --take-over` makes this host the one that writes, and the other one stop")
	case ipc.RemoteLost:
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.status.Lost.Err()
	}
	return nil
}

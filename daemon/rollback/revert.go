package rollback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// revert is one revert under way. It works out which writes are undone; the rest is a rollback of the
// files to the live state without these writes, during which the app runs on.
type revert struct {
	d   *Service
	a   *app.App
	t   *turns.Tracker
	req ipc.RevertRequest

	chosen   map[*turns.WriteRange]bool // whose writes are undone
	calls    []ipc.CallID
	writes   []snap.Write                   // what is undone
	shared   map[string][]*turns.WriteRange // by path: calls that ran at the same time
	later    map[string][]*turns.WriteRange // by path: calls that wrote there afterwards
	warnings warnings
}

// Revert undoes what some calls wrote to files, and nothing else. The result says what was undone and
// what was left alone.
func (d *Service) Revert(ctx context.Context, who ipc.Caller, ref string, req ipc.RevertRequest) (ipc.RevertResult, error) {
	const op = "revert"
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return ipc.RevertResult{}, err
	}
	if err := checkRevert(req); err != nil {
		return ipc.RevertResult{}, err
	}
	ctx = context.WithoutCancel(ctx) // a client that leaves does not stop a revert
	release, err := d.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return ipc.RevertResult{}, err
	}
	defer release()
	v := &revert{d: d, a: a, t: turns.TrackerOf(a), req: req, chosen: map[*turns.WriteRange]bool{}, shared: map[string][]*turns.WriteRange{}, later: map[string][]*turns.WriteRange{}}
	res, err := v.run(ctx, accounts.Actor(who))
	err = errs.Wrap(errs.Failed, op, err)
	if !req.DryRun {
		d.events.WriteAudit(ctx, a.Rec(), who, "revert", target(req), req.Reason, err, res)
	}
	if err != nil {
		return ipc.RevertResult{}, err
	}
	d.events.Publish(a.Rec().ID, "revert", res)
	if res.SafetyCheckpoint != nil {
		d.checkpoints.PruneAfter(ctx, a, who, res.SafetyCheckpoint.ID)
	}
	return res, nil
}

func checkRevert(req ipc.RevertRequest) error {
	const op = "revert"
	if max(len(req.ConversationID), len(req.FromMessageID), len(req.ToMessageID), len(req.TurnID), len(req.CallID)) > turns.MaxName {
		return errs.New(errs.Invalid, op, "an id is longer than %d bytes", turns.MaxName)
	}
	messages := req.FromMessageID != "" || req.ToMessageID != ""
	switch {
	case req.ConversationID == "" && req.TurnID == "" && req.CallID == "":
		return errs.New(errs.Invalid, op, "the request does not say whose writes to undo").WithHint("name a call, a turn or a conversation")
	case messages && (req.TurnID != "" || req.CallID != ""):
		return errs.New(errs.Invalid, op, "the request names both a range of messages and a single turn or call").WithHint("name one of them")
	case messages && req.ConversationID == "":
		return errs.New(errs.Invalid, op, "the request names messages, but not their conversation").WithHint("name the conversation too")
	}
	return nil
}

// target says for people what a revert undoes.
func target(req ipc.RevertRequest) string {
	switch {
	case req.CallID != "":
		return "call " + string(req.CallID)
	case req.TurnID != "":
		return "turn " + string(req.TurnID)
	case req.FromMessageID != "" || req.ToMessageID != "":
		return fmt.Sprintf("messages %s…%s of conversation %s", req.FromMessageID, req.ToMessageID, req.ConversationID)
	}
	return "conversation " + req.ConversationID
}

func (v *revert) run(ctx context.Context, who string) (ipc.RevertResult, error) {
	if err := v.choose(ctx); err != nil {
		return ipc.RevertResult{}, err
	}
	how, err := v.preview(ctx)
	if err != nil {
		return ipc.RevertResult{}, err
	}
	if v.req.DryRun || len(how.Paths) == 0 {
		return v.result(how), nil
	}
	r, g := v.rollback(who)
	unmute := v.t.Mute(ctx)
	err = r.run(ctx)
	unmute(ctx)
	if err != nil {
		return ipc.RevertResult{}, err
	}
	res := v.result(g.how)
	res.Warnings = append(res.Warnings, r.warnings.list...)
	safety := v.d.checkpoints.ShowOrBare(ctx, v.a, r.safety)
	res.SafetyCheckpoint = &safety
	res.Next = fmt.Sprintf("To undo the revert: rollback_app(app_id='%s', checkpoint_id='%s')", v.a.Rec().Slug, safety.ID)
	return res, nil
}

// choose finds the calls that the request means, and works out which writes are theirs alone.
func (v *revert) choose(ctx context.Context) error {
	about, err := v.d.turns.TurnsOf(ctx, v.a, v.req)
	if err != nil {
		return err
	}
	if v.t == nil {
		return errs.New(errs.Conflict, "", "the writes in %s are not recorded: automatic checkpoints are off", v.a.Rec().Slug).
			WithHint("`mulligan app set auto=true --app %s` records what is written from then on", v.a.Rec().Slug)
	}
	if len(about) == 0 {
		v.warnings.add("the conversation has no message after its checkpoint")
		return nil
	}
	short, cancel := context.WithTimeout(ctx, turns.FlushLong)
	defer cancel()
	now, err := v.t.Flush(short)
	if err != nil {
		return err
	}
	all, err := v.ranges(ctx, about, now)
	if err != nil {
		return err
	}
	l, err := v.d.turns.Attribute(ctx, v.t, all, v.chosen)
	if err != nil {
		return err
	}
	return v.selectWrites(ctx, l, about[0], now)
}

// ranges lists the write ranges of the chosen calls and of the calls at the same time or later, and
// fills in chosen.
func (v *revert) ranges(ctx context.Context, about []store.Turn, now snap.Mark) (all []*turns.WriteRange, err error) {
	recs, err := v.d.store.Turns(ctx, v.a.Rec().ID, 0)
	if err != nil {
		return nil, err
	}
	for _, rec := range slices.Backward(recs) {
		mine := slices.ContainsFunc(about, func(t store.Turn) bool { return t.Seq == rec.Seq })
		if rec.EndedAt != nil && rec.EndedAt.Before(about[0].StartedAt) && !mine {
			continue
		}
		list, err := v.d.turns.WriteRanges(ctx, rec, now)
		if err != nil {
			return nil, err
		}
		if mine {
			v.chooseRanges(list)
		}
		all = append(all, list...)
	}
	if len(v.chosen) == 0 {
		return nil, errs.New(errs.Conflict, "", "the writes of %s were not recorded", target(v.req)).
			WithHint("automatic checkpoints were off then, or the daemon was not ready yet")
	}
	return all, nil
}

// chooseRanges adds to chosen, of one turn's write ranges, those of the call that the request names and
// of the calls within it, or all if it names none.
func (v *revert) chooseRanges(list []*turns.WriteRange) {
	for _, s := range list {
		if v.req.CallID == "" || s.Call.ID == v.req.CallID {
			v.chosen[s] = true
			v.calls = append(v.calls, turns.CallIDs([]*turns.WriteRange{s})...)
		}
	}
	for _, s := range list {
		for o := range v.chosen {
			if !v.chosen[s] && s.Within(o) {
				v.chosen[s] = true
				v.calls = append(v.calls, turns.CallIDs([]*turns.WriteRange{s})...)
			}
		}
	}
}

// selectWrites goes through all that was written since, and separates what is undone, what another call
// may have written, and what others wrote later to the same paths.
func (v *revert) selectWrites(ctx context.Context, l *turns.Attribution, first store.Turn, now snap.Mark) error {
	writes, err := l.Since(ctx, v.earliest(first), now)
	if err != nil {
		return err
	}
	undone := map[string]bool{}
	for _, w := range writes {
		by := l.Of(w)
		others := slices.DeleteFunc(slices.Clone(by), func(s *turns.WriteRange) bool { return v.chosen[s] })
		switch mine := len(others) < len(by); {
		case mine:
			v.writes, undone[w.Path] = append(v.writes, w), true
			if len(others) > 0 {
				v.shared[w.Path] = append(v.shared[w.Path], others...)
			}
		case undone[w.Path]:
			v.later[w.Path] = append(v.later[w.Path], others...)
		}
	}
	if !v.req.Force {
		v.writes = slices.DeleteFunc(v.writes, func(w snap.Write) bool { return v.shared[w.Path] != nil })
	}
	v.warnOfLater()
	return nil
}

// earliest returns the chosen write ranges of the first turn. One of them begins first.
func (v *revert) earliest(first store.Turn) (list []*turns.WriteRange) {
	for s := range v.chosen {
		if s.Turn.Seq == first.Seq {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		list = slices.Collect(maps.Keys(v.chosen))
	}
	return list
}

// warnOfLater warns of calls that may have built upon what is undone, and of calls whose end was not
// reported.
func (v *revert) warnOfLater() {
	paths := map[string][]string{}
	for _, path := range slices.Sorted(maps.Keys(v.later)) {
		by := v.later[path]
		path = v.redacted(path)
		for _, s := range by {
			if list := paths[s.Name()]; len(list) == 0 || list[len(list)-1] != path {
				paths[s.Name()] = append(list, path)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		v.warnings.add("%s wrote later to %s, and may have built upon what is undone", name, turns.Few(paths[name]))
	}
	for s := range v.chosen {
		if s.Loose && s.Call.ID != "" {
			v.warnings.add("the end of call %s was not reported: what was written until the next call began counts as its writes", s.Call.ID)
		}
	}
	slices.Sort(v.warnings.list)
}

// redacted returns path as the app's owner may see it.
func (v *revert) redacted(path string) string {
	list, err := v.a.RedactPaths([]string{path})
	if err != nil || len(list) != 1 {
		return "."
	}
	return list[0]
}

// preview works out what the revert would do, and changes nothing.
func (v *revert) preview(ctx context.Context) (how snap.Reverted, err error) {
	if len(v.writes) == 0 {
		return how, nil
	}
	l, r, err := v.layer()
	if err != nil {
		return how, err
	}
	op := ipc.OperationID(records.NewID("op-"))
	ids, made := checkpoint.Announced(v.a, []layer.Layer{l})
	made = append(made, store.Disposal{Kind: store.DisposeRestore, ID: string(op), AppID: v.a.Rec().ID, Cause: "a preview"})
	if err := v.d.store.PutDisposals(ctx, made...); err != nil {
		return how, err
	}
	s, _, err := v.d.checkpoints.CaptureLayerAs(ctx, l, ids[0], checkpoint.How{Paths: v.paths()})
	if err != nil {
		return how, err
	}
	sw, how, err := r.PrepareRevert(ctx, v.request(op, s.ID))
	if sw != nil {
		err = errors.Join(err, sw.Finish(ctx))
	}
	if err = errs.Also(err, l.Driver.Delete(ctx, s.ID)); err == nil {
		v.d.store.WasDisposed(made...)
	}
	return how, err
}

func (v *revert) layer() (layer.Layer, snap.Reverter, error) {
	l, ok := v.a.Layer(snap.Files)
	r, can := l.Driver.(snap.Reverter)
	if !ok || !can {
		return l, nil, errs.New(errs.Unsupported, "", "the files of %s cannot be reverted", v.a.Rec().Slug)
	}
	return l, r, nil
}

// paths lists the paths that the revert may change.
func (v *revert) paths() []string {
	list := make([]string, len(v.writes))
	for i, w := range v.writes {
		list[i] = w.Path
	}
	return list
}

func (v *revert) request(op ipc.OperationID, base snap.SnapshotID) snap.RevertRequest {
	return snap.RevertRequest{ID: snap.RestoreID(op), Base: base, Writes: v.writes, Force: v.req.Force}
}

// rollback returns the revert as a rollback of the files alone that does not stop the app.
func (v *revert) rollback(who string) (*rollback, *withoutWrites) {
	l, _ := v.a.Layer(snap.Files)
	g := &withoutWrites{v: v}
	r := v.d.newOperation(v.a, ipc.OperationID(records.NewID("op-")), ipc.RollbackRequest{}, g)
	g.r, r.parts.list, r.paths = r, []*part{{Layer: l}}, v.paths()
	r.plan = rollbackPlan{
		Phase: preparing, Revert: target(v.req), Begun: v.d.opt.Now().UTC(), Reason: v.req.Reason,
		Verify: true, Actor: who, Layers: []snap.Layer{snap.Files},
	}
	return r, g
}

// result says what the revert did, or would do.
func (v *revert) result(how snap.Reverted) ipc.RevertResult {
	res := ipc.RevertResult{
		RestoredPaths: append([]string{}, how.Paths...), MergedPaths: append([]string{}, how.Merged...),
		Conflicts: []ipc.RevertConflict{}, Calls: append([]ipc.CallID{}, v.calls...), Warnings: append([]string{}, v.warnings.list...), DryRun: v.req.DryRun,
	}
	for _, c := range how.Left {
		res.Conflicts = append(res.Conflicts, ipc.RevertConflict{
			Path: c.Path, Reason: string(c.Why), Message: c.Why.Words(), Calls: turns.CallIDs(v.later[c.Path]),
			Forcible: !v.req.Force && c.Why.Forcible(),
		})
	}
	if !v.req.Force {
		for _, path := range slices.Sorted(maps.Keys(v.shared)) {
			res.Conflicts = append(res.Conflicts, ipc.RevertConflict{
				Path: v.redacted(path), Reason: ipc.ReasonShared, Message: "another call ran at the same time and may have written it", Calls: turns.CallIDs(v.shared[path]),
				Forcible: true,
			})
		}
	}
	switch {
	case v.req.DryRun:
		res.Next = "nothing was changed; the same without dry_run does it"
	case len(res.RestoredPaths) == 0:
		res.Next = "nothing was changed"
	}
	return res
}

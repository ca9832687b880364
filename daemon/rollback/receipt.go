package rollback

import (
	"context"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"

	"mulligan/ipc"
	"mulligan/snap"
)

// receipt tells what a rollback did; err is why it failed, if it did.
func (r *rollback) receipt(ctx context.Context, err error) ipc.RollbackResult {
	res := ipc.RollbackResult{
		RolledBack: err == nil || r.plan.Phase == switched && !r.recovered,
		Stages:     r.allStages(), Recovered: r.recovered,
		Scope: r.req.Scope, StayedBehind: r.plan.Behind, ChangesReverted: []ipc.Change{}, Warnings: append([]string{}, r.warnings.list...),
	}
	to := r.d.checkpoints.ShowOrBare(ctx, r.a, r.target)
	res.RolledBackTo, res.RestoredTo = &to, &to
	if r.safety.ID != "" {
		safety := r.d.checkpoints.ShowOrBare(ctx, r.a, r.safety)
		res.SafetyCheckpoint = &safety
	}
	if res.RolledBack || r.req.DryRun {
		res.ChangesReverted, res.ChangesTotal = r.listed()
		res.Warnings = append(res.Warnings, r.orphans()...)
		res.Verification = r.verification()
	}
	res.PutBack = r.putBackWords
	for _, p := range r.parts {
		if p.proof != nil {
			res.Warnings = append(res.Warnings, p.proof.Notes...)
		}
	}
	r.advise(&res, err)
	return res
}

// allStages is the six stages in order: those that ran as they went, the others
// as skipped. Where a later one ran, an earlier daemon did the missing one.
func (r *rollback) allStages() []ipc.Stage {
	var stages []ipc.Stage
	ran := 0
	for _, name := range ipc.Stages {
		i := slices.IndexFunc(r.stages.ran, func(s ipc.Stage) bool { return s.Stage == name })
		if i >= 0 {
			stages = append(stages, r.stages.ran[i])
			ran++
			continue
		}
		s := ipc.Stage{Stage: name, Status: ipc.StageSkipped, TS: r.d.opt.Now().UTC(), Notes: "not reached"}
		if ran < len(r.stages.ran) {
			s.Status, s.TS, s.Notes = ipc.StageOK, r.plan.Begun, "done before the daemon was restarted"
		}
		stages = append(stages, s)
	}
	return stages
}

// shownChange is a change as clients see it; a change of another layer than
// files names that layer.
func shownChange(p part, c snap.Change) ipc.Change {
	path := c.Path
	if p.Name != snap.Files {
		path = string(p.Name) + ":" + path
	}
	return ipc.Change{Path: path, Operation: string(c.Operation), Summary: c.Summary}
}

// orphans warns of things that were made since the checkpoint and are gone now.
func (r *rollback) orphans() []string {
	n, example := 0, ""
	for _, p := range r.parts {
		for _, c := range p.list {
			if c.Operation != snap.Create {
				continue
			}
			if n++; n == 1 {
				example = shownChange(p, c).Path
			}
		}
	}
	if n == 0 {
		return nil
	}
	more := ""
	if n > 1 {
		more = fmt.Sprintf(" and %d more", n-1)
	}
	return []string{fmt.Sprintf("made since the checkpoint and removed: %q%s (the safety checkpoint has them)", example, more)}
}

// verification is the proof per layer and over all; nil where nothing was checked.
func (r *rollback) verification() *ipc.Verification {
	v := ipc.Verification{Layers: map[string]ipc.LayerVerification{}}
	v.Match = true
	pre, post, want := blake3.New(), blake3.New(), blake3.New()
	for _, p := range r.parts {
		if p.proof == nil {
			continue
		}
		v.Layers[string(p.Name)] = ipc.LayerVerification{
			PreStateHash: p.proof.Pre.String(), PostStateHash: p.proof.Post.String(),
			CheckpointHash: p.proof.Want.String(), Match: p.proof.Match,
		}
		v.Match = v.Match && p.proof.Match
		for h, sum := range map[*blake3.Hasher]snap.Hash{pre: p.proof.Pre, post: p.proof.Post, want: p.proof.Want} {
			h.Write([]byte(p.Name))
			h.Write([]byte{0})
			h.Write(sum[:])
		}
	}
	if len(v.Layers) == 0 {
		return nil
	}
	v.PreStateHash, v.PostStateHash, v.CheckpointHash = sum(pre).String(), sum(post).String(), sum(want).String()
	return &v
}

func sum(h *blake3.Hasher) (s snap.Hash) {
	h.Sum(s[:0])
	return s
}

// advise fills in how sure the receipt is and what to do next.
func (r *rollback) advise(res *ipc.RollbackResult, err error) {
	res.NextActions, res.EvidenceAnchors, res.Assumptions = []string{}, []string{}, []string{}
	slug := r.a.Rec().Slug
	if err != nil {
		body := ipc.Body(err)
		res.Error = &body
	}
	v := r.verdict(res.RolledBack, err)
	res.Confidence = v.confidence()
	if v.done && v.compared < v.layers {
		res.Assumptions = append(res.Assumptions, "the restored state is the checkpoint's: not every layer was read back and compared")
	}
	if !r.plan.Verify {
		res.Warnings = append(res.Warnings, "verification was skipped on request")
	}
	if r.safety.ID != "" {
		res.Next = fmt.Sprintf("To roll FORWARD (undo the rollback): rollback_app(app_id='%s', checkpoint_id='%s')", slug, r.safety.ID)
	}
	res.EvidenceAnchors = r.evidence()
	switch {
	case res.RolledBack && err == nil:
		res.NextActions = append(res.NextActions, "verify: check that the app does what it should", "plan: find out why the change failed before trying it again")
	case res.RolledBack:
		res.NextActions = append(res.NextActions, "investigate: the app was restored and its health check fails")
	case res.Recovered:
		res.NextActions = append(res.NextActions, "retry: the app is as it was before; mend the cause and roll back again")
		res.Next = "the app is back where it was before the rollback"
	default:
		res.NextActions = append(res.NextActions, "investigate: see error")
	}
}

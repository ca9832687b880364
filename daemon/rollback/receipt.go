package rollback

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/snap"
)

// receipt tells what a rollback did, as far as it got: its stages, changes, proof and advice.
type receipt struct {
	slug      string
	req       ipc.RollbackRequest
	plan      rollbackPlan
	target    store.Checkpoint
	safety    store.Checkpoint // without an ID if there is none
	parts     []*part
	ran       []ipc.Stage // the stages that ended
	warnings  []string
	putBack   []string       // what an undo did, a line per layer
	recovered bool           // the app is back where it was before the rollback
	down      *time.Duration // how long the app was down
	now       time.Time
	err       error // why the rollback failed, if it did
}

// receipt returns what the rollback did; err is why it failed, if it did.
func (r *rollback) receipt(ctx context.Context, err error) ipc.RollbackResult {
	c := receipt{
		slug: r.a.Rec().Slug, req: r.req, plan: r.plan, target: r.target, safety: r.safety, parts: r.parts.list,
		ran: r.stages.ran, warnings: r.warnings.list, putBack: r.putBackNotes, recovered: r.recovered, down: r.unit.down,
		now: r.d.opt.Now(), err: err,
	}
	show := func(cp store.Checkpoint) *ipc.Checkpoint {
		shown := r.d.checkpoints.ShowOrBare(ctx, r.a, cp)
		return &shown
	}
	return c.result(show)
}

// result returns the receipt as clients get it. show returns a checkpoint as clients see it.
func (c *receipt) result(show func(store.Checkpoint) *ipc.Checkpoint) ipc.RollbackResult {
	res := ipc.RollbackResult{
		RolledBack: c.err == nil || c.plan.Phase == switched && !c.recovered,
		Stages:     c.allStages(), Recovered: c.recovered, PutBack: c.putBack,
		Scope: c.req.Scope, StayedBehind: c.plan.Behind, ChangesReverted: []ipc.Change{}, Warnings: append([]string{}, c.warnings...),
	}
	if c.down != nil {
		ms := c.down.Milliseconds()
		res.DowntimeMS = &ms
	}
	to := show(c.target)
	res.RolledBackTo, res.RestoredTo = to, to
	if c.safety.ID != "" {
		res.SafetyCheckpoint = show(c.safety)
	}
	if res.RolledBack || c.req.DryRun {
		res.ChangesReverted, res.ChangesTotal = c.listed()
		res.Warnings = append(res.Warnings, c.orphans()...)
		res.Verification = c.verification()
	}
	for _, p := range c.parts {
		if p.proof != nil {
			res.Warnings = append(res.Warnings, p.proof.Notes...)
		}
	}
	c.advise(&res)
	return res
}

// allStages returns the six stages in order: those that ran as they went, the others as skipped. If
// a later stage ran, an earlier daemon ran the missing one.
func (c *receipt) allStages() []ipc.Stage {
	var stages []ipc.Stage
	ran := 0
	for _, name := range ipc.Stages {
		i := slices.IndexFunc(c.ran, func(s ipc.Stage) bool { return s.Stage == name })
		if i >= 0 {
			stages = append(stages, c.ran[i])
			ran++
			continue
		}
		s := ipc.Stage{Stage: name, Status: ipc.StageSkipped, TS: c.now.UTC(), Notes: "not reached"}
		if ran < len(c.ran) {
			s.Status, s.TS, s.Notes = ipc.StageOK, c.plan.Begun, "done before the daemon was restarted"
		}
		stages = append(stages, s)
	}
	return stages
}

// shownChange returns a change as clients see it. The path of a change in another layer than files
// begins with the layer's name.
func shownChange(p *part, c snap.Change) ipc.Change {
	path := c.Path
	if p.Name != snap.Files {
		path = string(p.Name) + ":" + path
	}
	return ipc.Change{Path: path, Operation: string(c.Operation), Summary: c.Summary}
}

// orphans returns a warning of what was made since the checkpoint and is gone now, if there is any.
func (c *receipt) orphans() []string {
	n, example := 0, ""
	for _, p := range c.parts {
		for _, change := range p.list {
			if change.Operation != snap.Create {
				continue
			}
			if n++; n == 1 {
				example = shownChange(p, change).Path
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

// verification returns the proof per layer and over all, or nil if nothing was checked.
func (c *receipt) verification() *ipc.Verification {
	v := ipc.Verification{Layers: map[string]ipc.LayerVerification{}}
	v.Match = true
	pre, post, want := blake3.New(), blake3.New(), blake3.New()
	for _, p := range c.parts {
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

// verdict gathers what the confidence rests on. done says that the app is at the target.
func (c *receipt) verdict(done bool) verdict {
	v := verdict{done: done, layers: len(c.parts), unwell: c.err != nil}
	for _, p := range c.parts {
		if p.proof != nil && p.proof.Match && !p.proof.Shallow {
			v.compared++
		}
	}
	return v
}

// evidence names what was measured: how each stage went, and the hash of each layer that was read
// back.
func (c *receipt) evidence() []string {
	list := []string{}
	for _, s := range c.ran {
		list = append(list, fmt.Sprintf("stage:%s:%s", s.Stage, s.Status))
	}
	for _, p := range c.parts {
		if p.proof != nil && !p.proof.Post.IsZero() && !p.proof.Shallow {
			list = append(list, fmt.Sprintf("hash:%s:%s", p.Name, p.proof.Post))
		}
	}
	return list
}

// maxOfDatabases is how many of the listed changes are kept for other layers than files, if there are
// more changes than a receipt lists.
const maxOfDatabases = maxChanges / 2

// listed returns the changes that the receipt lists, the files before the other layers, and how many
// changes there are in all.
func (c *receipt) listed() (list []ipc.Change, total int) {
	rest := 0
	for _, p := range c.parts {
		total += p.total
		if p.Name != snap.Files {
			rest += len(p.list)
		}
	}
	list = []ipc.Change{}
	for _, p := range c.parts {
		room := maxChanges - len(list)
		if p.Name == snap.Files {
			room = maxChanges - min(rest, maxOfDatabases)
		}
		for _, change := range p.list[:min(len(p.list), room)] {
			list = append(list, shownChange(p, change))
		}
	}
	return list, total
}

// advise fills in the confidence, what it rests on, and what to do next.
func (c *receipt) advise(res *ipc.RollbackResult) {
	res.NextActions, res.EvidenceAnchors, res.Assumptions = []string{}, []string{}, []string{}
	if c.err != nil {
		body := ipc.Body(c.err)
		res.Error = &body
	}
	v := c.verdict(res.RolledBack)
	res.Confidence = v.confidence()
	if v.done && v.compared < v.layers {
		res.Assumptions = append(res.Assumptions, "the restored state is the checkpoint's: not every layer was read back and compared")
	}
	if !c.plan.Verify {
		res.Warnings = append(res.Warnings, "verification was skipped on request")
	}
	if c.safety.ID != "" {
		res.Next = fmt.Sprintf("To roll FORWARD (undo the rollback): rollback_app(app_id='%s', checkpoint_id='%s')", c.slug, c.safety.ID)
	}
	res.EvidenceAnchors = c.evidence()
	switch {
	case res.RolledBack && c.err == nil:
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

package rollback

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
)

// part is one layer of a rollback.
type part struct {
	layer.Layer
	target snap.SnapshotID
	base   snap.SnapshotID
	sw     snap.Switch
	proof  *snap.Proof
	list   []snap.Change
	total  int
	// touched: its commit was begun, by this process or, as far as this one knows, by
	// another.
	touched bool
}

// maxChanges is how many changes a receipt lists.
const maxChanges = 100

// foreseen refuses what the layers can tell now that their Prepare would refuse.
func (r *rollback) foreseen(ctx context.Context) error {
	for _, p := range r.parts {
		f, ok := p.Driver.(snap.Prechecker)
		if !ok {
			continue
		}
		var paths []string
		if p.Name == snap.Files {
			paths = r.scope
		}
		if err := f.Precheck(ctx, p.target, paths); err != nil {
			return r.stored(p, err)
		}
	}
	return nil
}

// stored says of damage in what is stored where it is and what to do.
func (r *rollback) stored(p part, err error) error {
	if errs.KindOf(err) != errs.Corrupt {
		return err
	}
	return r.orWithout(&layer.Error{Layer: p.Layer, Err: &errs.Error{Kind: errs.Corrupt, Op: fmt.Sprintf("check %s of %s", p.Name, r.target.ID), Err: err,
		Hint: "nothing was changed; mulligan verify tells which checkpoints are whole"}})
}

// selectParts works out which layers take part, from the request's scope.
func (r *rollback) selectParts() error {
	wanted := map[snap.Layer]bool{}
	for _, s := range r.req.Scope {
		name, isLayer := strings.CutPrefix(s, "layer:")
		switch {
		case !isLayer && s == "":
			return errs.New(errs.Invalid, "", "an empty path in scope").WithHint("name paths below the workspace, or layer:NAME")
		case !isLayer:
			r.scope = append(r.scope, s)
			wanted[snap.Files] = true
		case !r.markWanted(wanted, name):
			return errs.New(errs.Invalid, "", "%s has no layer %.64q", r.a.Rec().Slug, name).WithHint("its layers are %s", r.layerNames())
		}
	}
	if slices.Contains(r.req.Scope, "layer:"+string(snap.Files)) {
		r.scope = nil // all of it
	}
	left, err := r.withoutLayers()
	if err != nil {
		return err
	}
	for _, l := range r.a.Layers() {
		if len(r.req.Scope) > 0 && !wanted[l.Name] {
			continue
		}
		s, ok := r.target.Snapshot(l.Name)
		switch {
		case left[l.Name]:
			r.warnings.add("%s stays as it is, as requested: it may not agree with what is restored", l.Name)
			r.plan.Without = append(r.plan.Without, string(l.Name))
		case !ok:
			r.warnings.add("%s does not hold %s, which stays as it is", r.target.ID, l.Name)
		}
		if left[l.Name] || !ok {
			r.plan.Behind = append(r.plan.Behind, string(l.Name))
			continue
		}
		r.parts = append(r.parts, part{Layer: l, target: s.ID})
	}
	for _, s := range r.target.Snapshots {
		if _, ok := r.a.Layer(s.Layer); !ok {
			r.warnings.add("the app no longer has %s, which %s holds", s.Layer, r.target.ID)
		}
	}
	if len(r.parts) == 0 {
		return errs.New(errs.Conflict, "", "%s holds nothing that could be restored", r.target.ID).WithHint("choose another checkpoint, or a wider scope")
	}
	if len(r.req.Scope) > 0 && len(r.parts)+len(r.plan.Behind) < len(r.a.Layers()) {
		r.warnings.add("only %s restored: layers outside the scope stay as they are and may not agree", r.partNames())
	}
	return nil
}

// markWanted marks the layers that a layer's name in a scope stands for: "db"
// is every database, and a database may be called by its own name.
func (r *rollback) markWanted(wanted map[snap.Layer]bool, name string) (found bool) {
	for _, l := range r.a.Layers() {
		if string(l.Name) == name || l.IsDB() && (name == "db" || snap.DB(name) == l.Name) {
			wanted[l.Name], found = true, true
		}
	}
	return found
}

func (r *rollback) layerNames() string {
	var names []string
	for _, l := range r.a.Layers() {
		names = append(names, string(l.Name))
	}
	return strings.Join(names, ", ")
}

func (r *rollback) partNames() string {
	var names []string
	for _, p := range r.parts {
		names = append(names, string(p.Name))
	}
	return strings.Join(names, ", ")
}

// prepare prepares the parts whose base is not the safety checkpoint's present
// snapshot of their layer.
func (r *rollback) prepare(ctx context.Context, only map[snap.Layer]bool) error {
	for i := range r.parts {
		p := &r.parts[i]
		if only != nil && !only[p.Name] {
			continue
		}
		s, ok := r.safety.Snapshot(p.Name)
		if !ok {
			return errs.New(errs.Internal, "", "the safety checkpoint lacks %s", p.Name)
		}
		p.base = s.ID
		if err := r.preparePart(ctx, p); err != nil {
			return err
		}
		p.list, p.total = r.goal.changes(*p, p.sw)
	}
	return nil
}

func (r *rollback) preparePart(ctx context.Context, p *part) error {
	if err := r.d.opt.Failpoint.At("prepare " + string(p.Name)); err != nil {
		return err
	}
	return r.goal.prepare(ctx, p)
}

// prepareTarget prepares a layer's way to its snapshot in the target.
func (r *rollback) prepareTarget(ctx context.Context, p *part) (err error) {
	req := snap.RestoreRequest{ID: snap.RestoreID(r.op), Target: p.target, Base: p.base}
	if p.Name == snap.Files && len(r.scope) > 0 {
		scoped, ok := p.Driver.(snap.ScopedPreparer)
		if !ok {
			return errs.New(errs.Unsupported, "", "%s cannot restore single paths", p.About)
		}
		p.sw, err = scoped.PrepareScoped(ctx, req, r.scope)
	} else {
		p.sw, err = p.Driver.Prepare(ctx, req)
	}
	if err != nil {
		r.a.RequestRecovery(nil) // it may have left something where it cannot reach it now
	}
	return r.stored(*p, err)
}

// warm has the layers do ahead what would lengthen the time that the app is down,
// now that everything is prepared. It only saves time: what goes on failing is told
// when it is needed.
func (r *rollback) warm(ctx context.Context) {
	for _, p := range r.parts {
		if w, ok := p.sw.(snap.Warmer); ok {
			_ = w.Warm(ctx)
		}
	}
}

func (r *rollback) stale(ctx context.Context) (map[snap.Layer]bool, error) {
	stale := map[snap.Layer]bool{}
	for _, p := range r.parts {
		is, err := p.sw.Stale(ctx)
		if _, kept := snap.SalvagerOf(p.Driver); err != nil && kept && layer.Unreadable(err) {
			is, err = true, nil // it could be read when it was captured
		}
		if err != nil {
			return nil, r.orWithout(&layer.Error{Layer: p.Layer, Err: err})
		}
		if is {
			stale[p.Name] = true
		}
	}
	return stale, nil
}

func layerList(set map[snap.Layer]bool) []string {
	var names []string
	for l := range set {
		names = append(names, string(l))
	}
	slices.Sort(names)
	return names
}

// topUp replaces the safety checkpoint's snapshots of some layers with fresh
// ones, and prepares these layers again.
func (r *rollback) topUp(ctx context.Context, stale map[snap.Layer]bool) error {
	cp := r.safety
	cp.Snapshots = slices.Clone(cp.Snapshots)
	var old, fresh []store.Snapshot
	var raw []snap.Layer
	for i, s := range cp.Snapshots {
		if !stale[s.Layer] {
			continue
		}
		l, _ := r.a.Layer(s.Layer)
		n, warnings, err := r.d.checkpoints.CaptureLayer(ctx, r.a, l, checkpoint.How{Still: checkpoint.Stillness{All: r.stops()}, Revive: true, Salvage: true})
		if err != nil {
			return errs.Also(err, r.d.checkpoints.Drop(ctx, r.a, fresh))
		}
		if n.Raw && !s.Raw {
			for _, w := range warnings {
				cp.Warnings = append(cp.Warnings, string(l.Name)+": "+w)
			}
			raw = append(raw, l.Name)
		}
		old, fresh = append(old, s), append(fresh, n)
		cp.Snapshots[i] = n
	}
	cp.Ref = app.HeadOf(r.a.Rec())
	if err := r.d.store.PutCheckpoint(ctx, cp, ""); err != nil {
		return errs.Also(err, r.d.checkpoints.Drop(ctx, r.a, fresh))
	}
	r.safety = cp
	if len(raw) > 0 {
		r.noteRaw(raw...)
	}
	if err := r.prepare(ctx, stale); err != nil {
		return err
	}
	return r.d.checkpoints.Drop(ctx, r.a, old)
}

// check proves that the part is what it should be.
func (p *part) check(ctx context.Context) error {
	proof, err := p.sw.Check(ctx)
	if err != nil {
		return err
	}
	p.proof = &proof
	if !proof.Match {
		return errs.New(errs.Failed, "verify "+string(p.Name), "the restored state has hash %s and should have %s", proof.Post, proof.Want).
			WithHint("something else writes to it, or the disk is at fault")
	}
	return nil
}

// back says what an undo did to the part.
func (p *part) back() string {
	switch {
	case !p.touched:
		return string(p.Name) + ": was not changed"
	case p.proof == nil:
		return string(p.Name) + ": put back, and not compared"
	case !p.proof.Match:
		return string(p.Name) + ": put back, and others have written to it"
	}
	return string(p.Name) + ": put back, and compared with the state before"
}

// foreign reports whether an undo that was tried before may end although a part
// is not what it was: what the rollback changed is back, so it must be others who
// wrote, and nothing that is tried again would change that. The safety checkpoint
// still holds what there was.
func (r *rollback) foreign(p *part) bool {
	if !r.again || p.proof == nil || p.proof.Match {
		return false
	}
	r.d.opt.Log.Warn("a rollback is undone, and others have written meanwhile", "app", r.a.Rec().Slug, "layer", string(p.Name), "before", r.safety.ID)
	r.warnings.add("Others have written to %s meanwhile. Its state before that is in %s.", p.Name, r.safety.ID)
	return true
}

func (r *rollback) finishParts(ctx context.Context) error {
	for _, p := range r.parts {
		if p.sw == nil {
			continue
		}
		if err := r.d.opt.Failpoint.At("finish " + string(p.Name)); err != nil {
			return err
		}
		if err := p.sw.Finish(ctx); err != nil {
			r.a.RequestRecovery(err)
			return err
		}
	}
	return nil
}

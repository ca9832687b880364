package rollback

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// previewer looks, for a dry run, at what a rollback would do: what changes in each layer, what stays
// as it is, and how long the app would be down. It changes nothing but the parts' lists of changes.
type previewer struct {
	a        *app.App
	store    *records.Records
	target   store.Checkpoint
	paths    []string // the scope, when it is some of the files
	without  []string // the layers that the request leaves as they are
	parts    *parts
	unit     *unit
	hints    *hints
	warnings *warnings
}

// preview returns what the rollback would do, and does none of it.
func (r *rollback) preview(ctx context.Context) (ipc.RollbackResult, error) {
	v := previewer{
		a: r.a, store: r.d.store, target: r.target, paths: r.paths, without: r.plan.Without,
		parts: r.parts, unit: r.unit, hints: r.hints, warnings: r.warnings,
	}
	p, err := v.preview(ctx)
	if err != nil {
		return ipc.RollbackResult{}, err
	}
	res := r.receipt(ctx, nil)
	r.d.checkpoints.Entitle(ctx, r.a, res.RestoredTo)
	res.RolledBack, res.DryRun, res.Confidence, res.Preview = false, true, 0, p
	for i := range res.Stages {
		res.Stages[i].Notes = "dry run"
	}
	res.NextActions, res.EvidenceAnchors, res.Assumptions = []string{}, []string{}, []string{}
	res.Next = fmt.Sprintf("rollback_app(app_id='%s', checkpoint_id='%s') does it", r.a.Rec().Slug, r.target.ID)
	return res, nil
}

// preview returns the preview that the receipt of a dry run contains.
func (v *previewer) preview(ctx context.Context) (*ipc.Preview, error) {
	view := &ipc.Preview{Layers: []ipc.LayerPreview{}}
	for _, p := range v.parts.list {
		l, err := v.layer(ctx, p)
		if err != nil {
			return nil, err
		}
		view.Layers = append(view.Layers, l)
	}
	view.NotCovered = v.notCovered()
	if err := v.downtime(ctx, view); err != nil {
		return nil, err
	}
	return view, nil
}

// layer compares the live state of one layer with the target's.
func (v *previewer) layer(ctx context.Context, p *part) (ipc.LayerPreview, error) {
	l := ipc.LayerPreview{Layer: string(p.Name), Changes: []ipc.Change{}}
	differ, ok := p.Driver.(snap.Differ)
	if !ok {
		v.warnings.add("%s: its changes cannot be listed beforehand", p.Name)
		return l, nil
	}
	var paths []string
	if p.Name == snap.Files {
		paths = v.paths
	}
	list, err := differ.Diff(ctx, p.target, "", paths)
	if err != nil && layer.Unreadable(err) {
		return v.unreadable(l, p, err), nil
	}
	if err != nil {
		return l, err
	}
	p.list, p.total = list, len(list)
	if p.Name == snap.Files {
		p.list, p.total = checkpoint.FoldRepository(list, app.HeadOf(v.a.Rec()), v.target.Ref)
	}
	for _, c := range p.list {
		switch c.Operation {
		case snap.Create:
			l.Create++
		case snap.Delete:
			l.Delete++
		default:
			l.Modify++
		}
	}
	for _, c := range p.list[:min(len(p.list), maxChanges)] {
		l.Changes = append(l.Changes, shownChange(p, c))
	}
	return l, nil
}

// unreadable says in a warning what the rollback would do about a layer whose live state cannot be read.
func (v *previewer) unreadable(l ipc.LayerPreview, p *part, why error) ipc.LayerPreview {
	if _, kept := snap.SalvagerOf(p.Driver); kept {
		v.warnings.add("%s cannot be read (%v): its raw bytes would be kept, and it would be restored", p.Name, why)
		return l
	}
	v.warnings.add("%s cannot be read (%v), and the rollback would be refused: %s", p.Name, why, cmp.Or(errs.HintOf(v.hints.orWithout(&layer.Error{Layer: p.Layer, Err: why})), "nothing else would be restored"))
	return l
}

// notCovered lists what the rollback would leave as it is, whatever was done to it since the target.
func (v *previewer) notCovered() []string {
	list := []string{}
	for _, l := range v.a.Layers() {
		if _, ok := v.target.Snapshot(l.Name); !ok {
			list = append(list, fmt.Sprintf("%s: %s does not hold it", l.Name, v.target.ID))
		} else if slices.Contains(v.without, string(l.Name)) {
			list = append(list, fmt.Sprintf("%s: left out on request", l.Name))
		} else if !v.parts.has(l.Name) {
			list = append(list, fmt.Sprintf("%s: outside the scope", l.Name))
		}
	}
	for _, s := range v.paths {
		list = append(list, fmt.Sprintf("files: all but %s, outside the scope", s))
	}
	for _, pattern := range v.a.Rec().Exclude {
		list = append(list, fmt.Sprintf("files that match %s: excluded", pattern))
	}
	list = append(list, v.target.Warnings...)
	for _, word := range app.RepositoryWarnings(v.a.Rec()) {
		if !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	if v.a.Rec().Domain == "" {
		list = append(list, "anything outside the workspace and the registered databases: no VM disk is registered")
	}
	return list
}

// downtime estimates how long the app would be down: as long as at its last rollback.
func (v *previewer) downtime(ctx context.Context, view *ipc.Preview) error {
	now, err := v.unit.status(ctx)
	if err != nil || now.Down() {
		zero := int64(0)
		view.DowntimeMS, view.DowntimeFrom = &zero, "the app is not running as a unit"
		return err
	}
	view.StopsUnit, view.DowntimeFrom = true, "not known before a first rollback"
	const look = 200 // entries back
	entries, err := v.store.AuditTrail(ctx, v.a.Rec().ID, look)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var res ipc.RollbackResult
		if e.Action != "rollback" || e.Result != "ok" || json.Unmarshal(e.Detail, &res) != nil || !res.RolledBack {
			continue
		}
		ms := downtimeOf(res)
		view.DowntimeMS, view.DowntimeFrom = &ms, "as at the rollback of "+e.At.Format("2006-01-02 15:04:05")+" UTC"
		return nil
	}
	return nil
}

// downtimeOf returns how long a rollback had the app down, in milliseconds.
func downtimeOf(res ipc.RollbackResult) (ms int64) {
	if res.DowntimeMS != nil {
		return *res.DowntimeMS
	}
	for _, s := range res.Stages {
		switch s.Stage {
		case ipc.StageStop, ipc.StageVM, ipc.StageDB, ipc.StageStart:
			ms += s.DurationMS
		}
	}
	return ms
}

package rollback

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// preview says what a rollback would do, and does none of it.
func (r *rollback) preview(ctx context.Context) (ipc.RollbackResult, error) {
	p := &ipc.Preview{Layers: []ipc.LayerPreview{}}
	for i := range r.parts {
		l, err := r.foresee(ctx, &r.parts[i])
		if err != nil {
			return ipc.RollbackResult{}, err
		}
		p.Layers = append(p.Layers, l)
	}
	p.NotCovered = r.notCovered()
	if err := r.foreseeDowntime(ctx, p); err != nil {
		return ipc.RollbackResult{}, err
	}
	res := r.receipt(ctx, nil)
	res.RolledBack, res.DryRun, res.Confidence, res.Preview = false, true, 0, p
	for i := range res.Stages {
		res.Stages[i].Notes = "dry run"
	}
	res.NextActions, res.EvidenceAnchors, res.Assumptions = []string{}, []string{}, []string{}
	res.Next = fmt.Sprintf("rollback_app(app_id='%s', checkpoint_id='%s') does it", r.a.Rec().Slug, r.target.ID)
	return res, nil
}

// foresee compares a layer's present with what it would become.
func (r *rollback) foresee(ctx context.Context, p *part) (ipc.LayerPreview, error) {
	v := ipc.LayerPreview{Layer: string(p.Name), Changes: []ipc.Change{}}
	differ, ok := p.Driver.(snap.Differ)
	if !ok {
		r.warnings.add("%s: its changes cannot be listed beforehand", p.Name)
		return v, nil
	}
	var paths []string
	if p.Name == snap.Files {
		paths = r.scope
	}
	list, err := differ.Diff(ctx, p.target, "", paths)
	if err != nil && layer.Unreadable(err) {
		return r.foreseeUnreadable(v, p, err), nil
	}
	if err != nil {
		return v, err
	}
	p.list, p.total = list, len(list)
	if p.Name == snap.Files {
		p.list, p.total = r.fold(list)
	}
	for _, c := range list {
		switch c.Operation {
		case snap.Create:
			v.Create++
		case snap.Delete:
			v.Delete++
		default:
			v.Modify++
		}
	}
	for _, c := range p.list[:min(len(p.list), maxChanges)] {
		v.Changes = append(v.Changes, shownChange(*p, c))
	}
	return v, nil
}

// foreseeUnreadable says what would become of a layer whose present cannot be read.
func (r *rollback) foreseeUnreadable(v ipc.LayerPreview, p *part, why error) ipc.LayerPreview {
	if _, kept := snap.SalvagerOf(p.Driver); kept {
		r.warnings.add("%s cannot be read (%v): its raw bytes would be kept, and it would be restored", p.Name, why)
		return v
	}
	r.warnings.add("%s cannot be read (%v), and the rollback would be refused: %s", p.Name, why, cmp.Or(errs.HintOf(r.orWithout(&layer.Error{Layer: p.Layer, Err: why})), "nothing else would be restored"))
	return v
}

// notCovered lists what would stay as it is, whatever was done to it since.
func (r *rollback) notCovered() []string {
	list := []string{}
	for _, l := range r.a.Layers() {
		if _, ok := r.target.Snapshot(l.Name); !ok {
			list = append(list, fmt.Sprintf("%s: %s does not hold it", l.Name, r.target.ID))
		} else if slices.Contains(r.plan.Without, string(l.Name)) {
			list = append(list, fmt.Sprintf("%s: left out on request", l.Name))
		} else if !r.has(l.Name) {
			list = append(list, fmt.Sprintf("%s: outside the scope", l.Name))
		}
	}
	for _, s := range r.scope {
		list = append(list, fmt.Sprintf("files: all but %s, outside the scope", s))
	}
	for _, pattern := range r.a.Rec().Exclude {
		list = append(list, fmt.Sprintf("files that match %s: excluded", pattern))
	}
	list = append(list, r.target.Warnings...)
	for _, word := range app.RepositoryWarnings(r.a.Rec()) {
		if !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	if r.a.Rec().Domain == "" {
		list = append(list, "anything outside the workspace and the registered databases: no VM disk is registered")
	}
	return list
}

func (r *rollback) has(name snap.Layer) bool {
	for _, p := range r.parts {
		if p.Name == name {
			return true
		}
	}
	return false
}

// foreseeDowntime tells how long the app would be down: as long as at its last rollback.
func (r *rollback) foreseeDowntime(ctx context.Context, p *ipc.Preview) error {
	now, err := r.status(ctx)
	if err != nil || now.Down() {
		zero := int64(0)
		p.DowntimeMS, p.DowntimeFrom = &zero, "the app is not running as a unit"
		return err
	}
	p.StopsUnit, p.DowntimeFrom = true, "not known before a first rollback"
	const look = 200 // entries back
	entries, err := r.d.store.AuditTrail(ctx, r.a.Rec().ID, look)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var res ipc.RollbackResult
		if e.Action != "rollback" || e.Result != "ok" || json.Unmarshal(e.Detail, &res) != nil || !res.RolledBack {
			continue
		}
		ms := downtime(res)
		p.DowntimeMS, p.DowntimeFrom = &ms, "as at the rollback of "+e.At.Format("2006-01-02 15:04:05")+" UTC"
		return nil
	}
	return nil
}

// downtime is how long a rollback had the app down, in milliseconds.
func downtime(res ipc.RollbackResult) (ms int64) {
	for _, s := range res.Stages {
		switch s.Stage {
		case ipc.StageStop, ipc.StageVM, ipc.StageDB, ipc.StageStart:
			ms += s.DurationMS
		}
	}
	return ms
}

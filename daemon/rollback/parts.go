package rollback

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
)

// parts are the layers that take part in an operation. They go together from one step of their
// switches to the next: prepare, commit, finish. A shared pointer, because the list grows while the
// operation is set up.
type parts struct {
	list   []*part
	a      *app.App
	goal   goal
	opt    *settings.Options
	events *events.Events
}

// part is one layer that takes part in an operation.
type part struct {
	layer.Layer
	target  snap.SnapshotID
	base    snap.SnapshotID
	sw      snap.Switch   // nil until the layer is prepared
	proof   *snap.Proof   // nil until the layer is checked
	list    []snap.Change // the first of what the switch changes
	total   int           // how many changes there are
	touched bool          // its commit was begun, by this process or, as far as this one knows, by an earlier one
}

// maxChanges is how many changes a receipt lists.
const maxChanges = 100

// has reports whether the layer called name takes part.
func (ps *parts) has(name snap.Layer) bool { return ps.find(name) != nil }

// find returns the part that is the layer called name, or nil.
func (ps *parts) find(name snap.Layer) *part {
	for _, p := range ps.list {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// layers returns the layers that take part. The safety checkpoint holds these: the others stay as
// they are, and are not read.
func (ps *parts) layers() (list []layer.Layer) {
	for _, p := range ps.list {
		list = append(list, p.Layer)
	}
	return list
}

// names lists the parts for people.
func (ps *parts) names() string {
	var names []string
	for _, p := range ps.list {
		names = append(names, string(p.Name))
	}
	return strings.Join(names, ", ")
}

// prepare prepares the layers in only, or all of them if only is nil. Each goes back to its snapshot
// in safety if the operation is undone.
func (ps *parts) prepare(ctx context.Context, safety store.Checkpoint, only map[snap.Layer]bool) error {
	for _, p := range ps.list {
		if only != nil && !only[p.Name] {
			continue
		}
		s, ok := safety.Snapshot(p.Name)
		if !ok {
			return errs.New(errs.Internal, "", "the safety checkpoint lacks %s", p.Name)
		}
		p.base = s.ID
		if err := ps.opt.Failpoint.At("prepare " + string(p.Name)); err != nil {
			return err
		}
		if err := ps.goal.prepare(ctx, p); err != nil {
			return err
		}
		p.list, p.total = ps.goal.changes(p)
	}
	return nil
}

// warm does ahead, once everything is prepared, what would lengthen the time that the app is down.
// A failure is ignored: the commit fails too if its cause lasts.
func (ps *parts) warm(ctx context.Context) {
	for _, p := range ps.list {
		if w, ok := p.sw.(snap.Warmer); ok {
			_ = w.Warm(ctx)
		}
	}
}

// stale returns the layers whose live state is no longer their base. An error is a *layer.Error.
func (ps *parts) stale(ctx context.Context) (map[snap.Layer]bool, error) {
	stale := map[snap.Layer]bool{}
	for _, p := range ps.list {
		is, err := p.sw.Stale(ctx)
		if _, kept := snap.SalvagerOf(p.Driver); err != nil && kept && layer.Unreadable(err) {
			is, err = true, nil // the layer could be read when it was captured
		}
		if err != nil {
			return nil, &layer.Error{Layer: p.Layer, Err: err}
		}
		if is {
			stale[p.Name] = true
		}
	}
	return stale, nil
}

// layerList lists the layers of a set in the order of their names.
func layerList(set map[snap.Layer]bool) []string {
	var names []string
	for l := range set {
		names = append(names, string(l))
	}
	slices.Sort(names)
	return names
}

// commit makes the databases the target, or all other layers if dbs is false. With verify, each
// layer is checked as soon as it is committed. The error of a layer that cannot be switched is a *layer.Error.
func (ps *parts) commit(ctx context.Context, dbs, verify bool) (string, error) {
	var notes []string
	for _, p := range ps.list {
		if p.IsDB() != dbs {
			continue
		}
		began := time.Now()
		note, err := ps.commitPart(ctx, p, verify)
		ps.events.Restores.WithLabelValues(p.Family, events.ResultOf(err)).Observe(events.Since(began))
		if err != nil {
			return "", err
		}
		notes = append(notes, note)
	}
	if len(notes) == 0 {
		return "nothing of this kind to restore", errSkipped
	}
	return strings.Join(notes, "; "), nil
}

func (ps *parts) commitPart(ctx context.Context, p *part, verify bool) (note string, err error) {
	if err := ps.opt.Failpoint.At("commit " + string(p.Name)); err != nil {
		return "", err
	}
	p.touched = true
	if err := p.sw.Commit(ctx); err != nil {
		return "", &layer.Error{Layer: p.Layer, Err: err}
	}
	p.list, p.total = ps.goal.changes(p) // without what could not be changed
	note = fmt.Sprintf("%s: %d changed, snap=%s", p.Name, p.total, p.target)
	if verify {
		if err := p.check(ctx); err != nil {
			return "", err
		}
		note += ", verified"
		if p.proof.Shallow {
			note = strings.TrimSuffix(note, "verified") + "compared without its contents"
		}
	}
	return note, nil
}

// rewordPatience is how long a receipt waits for the words of what changed in databases.
const rewordPatience = 5 * time.Second

// rewordDatabases replaces the changes of databases by those that a dry run lists: rows, and DDL. If
// that takes long, the changes stay as the driver worded them for its switch.
func (ps *parts) rewordDatabases(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, rewordPatience)
	defer cancel()
	for _, p := range ps.list {
		differ, ok := p.Driver.(snap.Differ)
		if !ok || !p.IsDB() || p.ReplaysLog() || p.base == "" || p.target == "" {
			continue
		}
		if list, err := differ.Diff(ctx, p.target, p.base, nil); err == nil && (len(list) > 0) == (p.total > 0) {
			p.list, p.total = list, len(list)
		}
	}
}

// unwritten reports whether every layer is certainly as the operation left it.
func (ps *parts) unwritten(ctx context.Context) bool {
	for _, p := range ps.list {
		if p.sw == nil {
			return false
		}
		if proof, err := p.sw.Check(ctx); err != nil || !proof.Match {
			return false
		}
	}
	return true
}

// finish drops what the switches kept for an undo.
func (ps *parts) finish(ctx context.Context) error {
	for _, p := range ps.list {
		if p.sw == nil {
			continue
		}
		if err := ps.opt.Failpoint.At("finish " + string(p.Name)); err != nil {
			return err
		}
		if err := p.sw.Finish(ctx); err != nil {
			ps.a.RequestRecovery(err)
			return err
		}
	}
	return nil
}

// check reads the live state of the part again and compares it with what the switch made of it.
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

// left reports whether the part has a folder that had to stay for the files of a database, which are gone now.
func (p *part) left(ctx context.Context) (bool, error) {
	l, ok := p.sw.(snap.Leaver)
	if !ok {
		return false, nil
	}
	return l.Left(ctx)
}

// undoNote says, for people, what an undo did to the part.
func (p *part) undoNote() string {
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

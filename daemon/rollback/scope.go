package rollback

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/tomlfile"
)

// checkScope makes the paths of a rollback's scope clean, and refuses one that leaves
// the workspace, or that is neither in it now nor in the target. The latter is fine where
// the scope was not asked for, but follows from what is undone.
func (r *rollback) checkScope(ctx context.Context, follows bool) error {
	for i, s := range r.scope {
		p := filepath.Clean(s)
		if filepath.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
			return errs.New(errs.Invalid, "", "scope %.200q is not in the workspace", s).
				WithHint("name paths below %s, or layer:NAME", r.a.Rec().Workspace)
		}
		r.scope[i] = p
		if p == "." {
			r.scope = nil // all of it
			return nil
		}
	}
	l, ok := r.a.Layer(snap.Files)
	lister, can := l.Driver.(snap.Lister)
	target, held := r.target.Snapshot(snap.Files)
	if !ok || !can || !held || follows {
		return nil
	}
	for _, p := range r.scope {
		if err := r.checkPath(ctx, sides{lister, target.ID}, p); err != nil {
			return err
		}
	}
	return nil
}

// sides are the two states that a path of a scope may lie in: the live one and the
// target.
type sides struct {
	l      snap.Lister
	target snap.SnapshotID
}

// names lists what either side has in a folder. What cannot be looked at is an error.
func (s sides) names(ctx context.Context, dir string) ([]string, error) {
	now, err := s.l.Names(ctx, "", dir)
	if err != nil {
		return nil, err
	}
	then, err := s.l.Names(ctx, s.target, dir)
	return append(now, then...), err
}

// checkPath refuses a path that neither side has. Where that cannot be told, the path
// is taken.
func (r *rollback) checkPath(ctx context.Context, s sides, p string) error {
	if db, ok := r.databaseAt(p); ok {
		return errs.New(errs.Invalid, "", "%q belongs to a database, not to the files", p).WithHint("use --scope layer:%s", db)
	}
	dir := "."
	for _, name := range strings.Split(p, "/") {
		names, err := s.names(ctx, dir)
		if err != nil {
			return nil
		}
		if !slices.Contains(names, name) {
			return r.noSuchPath(p, dir, name, names)
		}
		dir = path.Join(dir, name)
	}
	return nil
}

// databaseAt is the layer of the database that a path in the workspace belongs to.
func (r *rollback) databaseAt(p string) (snap.Layer, bool) {
	for _, db := range r.a.Rec().Databases {
		if slices.Contains(layer.FilesOf(r.a.Rec().Workspace, db), p) {
			return layer.DbLayer(db), true
		}
	}
	return "", false
}

// noSuchPath says of a path that it is nowhere, from its component name in dir on, and
// what was probably meant.
func (r *rollback) noSuchPath(p, dir, name string, names []string) error {
	e := errs.New(errs.NotFound, "", "scope %.200q is neither in the workspace now nor in %s", p, r.target.ID)
	if near := tomlfile.Nearest(name, names); near != "" {
		return e.WithHint("did you mean %q?", path.Join(dir, near))
	}
	for _, l := range r.a.Layers() {
		if string(l.Name) == p || l.IsDB() && snap.DB(p) == l.Name {
			return e.WithHint("did you mean layer:%s?", l.Name)
		}
	}
	return e.WithHint("name paths below the workspace, or layer:NAME (%s); what is excluded is in no checkpoint", r.layerNames())
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
		r.parts.list = append(r.parts.list, &part{Layer: l, target: s.ID})
	}
	for _, s := range r.target.Snapshots {
		if _, ok := r.a.Layer(s.Layer); !ok {
			r.warnings.add("the app no longer has %s, which %s holds", s.Layer, r.target.ID)
		}
	}
	if len(r.parts.list) == 0 {
		return errs.New(errs.Conflict, "", "%s holds nothing that could be restored", r.target.ID).WithHint("choose another checkpoint, or a wider scope")
	}
	if len(r.req.Scope) > 0 && len(r.parts.list)+len(r.plan.Behind) < len(r.a.Layers()) {
		r.warnings.add("only %s restored: layers outside the scope stay as they are and may not agree", r.parts.names())
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

package rollback

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/nearest"
	"mulligan/snap"
)

// scope works out, from the request of a rollback, which layers and paths it is of, and refuses a
// scope that names nothing.
type scope struct {
	a        *app.App
	asked    []string         // the request's: paths, and layer:NAME
	omit     []string         // the names of the layers that the request leaves as they are
	target   store.Checkpoint // what the rollback goes to
	warnings *warnings

	paths   []string // found by choose: the paths, if only some of the files are asked for
	without []string // found by choose: the layers that the request leaves as they are
	behind  []string // found by choose: these, and the layers in scope that the target lacks
}

// CheckScope refuses a scope of a rollback of the app to the state of its fork that names nothing.
func CheckScope(ctx context.Context, a, fork *app.App, asked []string) error {
	s := &scope{a: a, asked: asked}
	if _, err := s.wanted(); err != nil {
		return err
	}
	if err := s.clean(); err != nil {
		return err
	}
	both := sides{name: "the fork " + fork.Rec().Fork.Name}
	mine, ok := a.Layer(snap.Files)
	theirs, there := fork.Layer(snap.Files)
	if both.live, _ = mine.Driver.(snap.Lister); !ok || both.live == nil {
		return nil
	}
	if both.other, _ = theirs.Driver.(snap.Lister); !there || both.other == nil {
		return nil
	}
	return s.checkPaths(ctx, both)
}

// wanted returns the layers that the request names, by themselves or by a path in them, and fills in
// the paths.
func (s *scope) wanted() (map[snap.Layer]bool, error) {
	wanted := map[snap.Layer]bool{}
	for _, asked := range s.asked {
		name, isLayer := strings.CutPrefix(asked, "layer:")
		switch {
		case !isLayer && asked == "":
			return nil, errs.New(errs.Invalid, "", "an empty path in scope").WithHint("name paths below the workspace, or layer:NAME")
		case !isLayer:
			s.paths = append(s.paths, asked)
			wanted[snap.Files] = true
		case !s.markWanted(wanted, name):
			return nil, errs.New(errs.Invalid, "", "%s has no layer %.64q", s.a.Rec().Slug, name).WithHint("its layers are %s", s.layerNames())
		}
	}
	if slices.Contains(s.asked, "layer:"+string(snap.Files)) {
		s.paths = nil // all of it
	}
	return wanted, nil
}

// choose returns the layers that take part, each with its snapshot in the target, and fills in what
// choose finds.
func (s *scope) choose() ([]*part, error) {
	wanted, err := s.wanted()
	if err != nil {
		return nil, err
	}
	left, err := s.omitted()
	if err != nil {
		return nil, err
	}
	var chosen []*part
	for _, l := range s.a.Layers() {
		if len(s.asked) > 0 && !wanted[l.Name] {
			continue
		}
		held, ok := s.target.Snapshot(l.Name)
		switch {
		case left[l.Name]:
			s.warnings.add("%s stays as it is, as requested: it may not agree with what is restored", l.Name)
			s.without = append(s.without, string(l.Name))
		case !ok:
			s.warnings.add("%s does not hold %s, which stays as it is", s.target.ID, l.Name)
		}
		if left[l.Name] || !ok {
			s.behind = append(s.behind, string(l.Name))
			continue
		}
		chosen = append(chosen, &part{Layer: l, target: held.ID})
	}
	for _, held := range s.target.Snapshots {
		if _, ok := s.a.Layer(held.Layer); !ok {
			s.warnings.add("the app no longer has %s, which %s holds", held.Layer, s.target.ID)
		}
	}
	if len(chosen) == 0 {
		return nil, errs.New(errs.Conflict, "", "%s holds nothing that could be restored", s.target.ID).WithHint("choose another checkpoint, or a wider scope")
	}
	if len(s.asked) > 0 && len(chosen)+len(s.behind) < len(s.a.Layers()) {
		s.warnings.add("only %s restored: layers outside the scope stay as they are and may not agree", (&parts{list: chosen}).names())
	}
	return chosen, nil
}

// markWanted marks in wanted the layers that name stands for in a request, and reports whether there
// are any. "db" is every database, and a database may be called by its own name.
func (s *scope) markWanted(wanted map[snap.Layer]bool, name string) (found bool) {
	for _, l := range s.a.Layers() {
		if string(l.Name) == name || l.IsDB() && (name == "db" || snap.DB(name) == l.Name) {
			wanted[l.Name], found = true, true
		}
	}
	return found
}

func (s *scope) layerNames() string {
	var names []string
	for _, l := range s.a.Layers() {
		names = append(names, string(l.Name))
	}
	return strings.Join(names, ", ")
}

// omitted returns the layers that the request leaves as they are.
func (s *scope) omitted() (map[snap.Layer]bool, error) {
	left := map[snap.Layer]bool{}
	for _, name := range s.omit {
		name = strings.TrimPrefix(name, "layer:")
		if s.markWanted(left, name) {
			continue
		}
		e := errs.New(errs.Invalid, "", "%s has no layer %.64q to leave out", s.a.Rec().Slug, name)
		var known []string
		for _, l := range s.a.Layers() {
			known = append(known, string(l.Name), strings.TrimPrefix(string(l.Name), "db:"))
		}
		if near := nearest.Word(name, known); near != "" {
			for _, l := range s.a.Layers() {
				if string(l.Name) == near || l.IsDB() && snap.DB(near) == l.Name {
					return nil, e.WithHint("did you mean --without %s?", l.Name)
				}
			}
		}
		return nil, e.WithHint("its layers are %s", s.layerNames())
	}
	return left, nil
}

// check cleans the paths, and refuses a path that leaves the workspace, or that is neither in the
// workspace now nor in the target. With follows, the scope was not asked for but follows from what is
// undone, and such a path is accepted.
func (s *scope) check(ctx context.Context, follows bool) error {
	if err := s.clean(); err != nil {
		return err
	}
	l, ok := s.a.Layer(snap.Files)
	lister, can := l.Driver.(snap.Lister)
	target, held := s.target.Snapshot(snap.Files)
	if !ok || !can || !held || follows {
		return nil
	}
	return s.checkPaths(ctx, sides{live: lister, other: lister, at: target.ID, name: string(s.target.ID)})
}

// clean cleans the paths, makes them relative to the workspace, and refuses one that leaves the workspace.
func (s *scope) clean() error {
	for i, asked := range s.paths {
		p := filepath.Clean(asked)
		if rel, err := filepath.Rel(s.a.Rec().Workspace, p); err == nil { // p is absolute, as in the commands that errors name
			p = rel
		}
		if filepath.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
			return errs.New(errs.Invalid, "", "scope %.200q is not in the workspace", asked).
				WithHint("name paths below %s, or layer:NAME", s.a.Rec().Workspace)
		}
		s.paths[i] = p
		if p == "." {
			s.paths = nil // all of it
			return nil
		}
	}
	return nil
}

// checkPaths refuses a path that neither side has.
func (s *scope) checkPaths(ctx context.Context, both sides) error {
	for _, p := range s.paths {
		if err := s.checkPath(ctx, both, p); err != nil {
			return err
		}
	}
	return nil
}

// sides are the two states that a path of a scope may lie in: the live one of the app, and the one that it goes to.
type sides struct {
	live  snap.Lister
	other snap.Lister
	at    snap.SnapshotID // of other; "": its live state
	name  string          // what other is, for people
}

// names lists the entries that either side has in a folder.
func (both sides) names(ctx context.Context, dir string) ([]string, error) {
	now, err := both.live.Names(ctx, "", dir)
	if err != nil {
		return nil, err
	}
	then, err := both.other.Names(ctx, both.at, dir)
	return append(now, then...), err
}

// checkPath refuses a path that neither side has. A path below a folder that cannot be listed is
// accepted.
func (s *scope) checkPath(ctx context.Context, both sides, p string) error {
	if db, ok := s.databaseAt(p); ok {
		return errs.New(errs.Invalid, "", "%q belongs to a database, not to the files", p).WithHint("use --scope layer:%s", db)
	}
	dir := "."
	for _, name := range strings.Split(p, "/") {
		names, err := both.names(ctx, dir)
		if err != nil {
			return nil
		}
		if !slices.Contains(names, name) {
			return s.noSuchPath(p, both.name, dir, name, names)
		}
		dir = path.Join(dir, name)
	}
	return nil
}

// databaseAt returns the layer of the database that a path in the workspace belongs to.
func (s *scope) databaseAt(p string) (snap.Layer, bool) {
	for _, db := range s.a.Rec().Databases {
		if slices.Contains(layer.FilesOf(s.a.Rec().Workspace, db), p) {
			return layer.DbLayer(db), true
		}
	}
	return "", false
}

// noSuchPath returns the error for a path that neither side has: dir exists, and name is not in it.
// names is what dir has, and other is what the other side is. The hint says what was probably meant.
func (s *scope) noSuchPath(p, other, dir, name string, names []string) error {
	e := errs.New(errs.NotFound, "", "scope %.200q is neither in the workspace now nor in %s", p, other)
	if meant := layerMeant(path.Base(p), s.a.Layers()); meant != "" {
		return e.WithHint("did you mean %s?", meant)
	}
	if file, is := strings.CutPrefix(path.Base(p), "files:"); is {
		return e.WithHint("a path stands alone: did you mean %q?", path.Join(path.Dir(p), file))
	}
	if near := nearest.Word(name, names); near != "" {
		return e.WithHint("did you mean %q?", path.Join(dir, near))
	}
	return e.WithHint("name paths below the workspace, or layer:NAME (%s); what is excluded is in no checkpoint", s.layerNames())
}

// layerMeant returns, as a scope has them, the layers that a path was probably meant to be, or "".
func layerMeant(name string, layers []layer.Layer) string {
	var databases []string
	for _, l := range layers {
		if l.IsDB() {
			databases = append(databases, "layer:"+string(l.Name))
		}
	}
	switch name {
	case "db", "dbs", "database", "databases":
		if len(databases) > 1 {
			return "layer:db, all of " + strings.Join(databases, ", ")
		}
		return strings.Join(databases, "")
	case "vm", "disks":
		name = string(snap.Disk)
	case "file":
		name = string(snap.Files)
	}
	for _, l := range layers {
		if string(l.Name) == name || l.IsDB() && snap.DB(name) == l.Name {
			return "layer:" + string(l.Name)
		}
	}
	if strings.HasPrefix(name, "db:") {
		return strings.Join(databases, " or ")
	}
	return ""
}

// Package database has the parts that all database drivers share. A [Driver] runs the steps of captures and switches in order,
// and makes the plan durable before each step. An [Engine] does the engine-specific work of a step. A driver whose snapshots
// are not in the content store uses only a [Switcher], which runs the steps of switches. [Records] are the roots of a
// database's snapshots, and of the targets and bases of its switches, in the content store, and the plans of these switches on
// disk.
//
//	<driver>/<app>/<database>/snap/<snapshot>              root of a snapshot
//	<driver>/<app>/<database>/switch/<restore>/<snapshot>  root of a switch's target or base
//	<state folder>/switches/<restore>/plan.json            its plan; a driver may keep more beside it
//
// A switch has roots of its own, because its snapshots may be deleted while it needs them. A switch exists if and only if its
// plan exists: the plan becomes Prepared last, and is removed first.
package database

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Config names the database and says where its records are.
type Config struct {
	Driver    string
	Noun      string // the name of the kind of database in messages; "" means "database"
	App, Name string // without slashes, not beginning with a dot
	Store     *cas.Store
	StateDir  string         // an absolute path of a folder of the daemon, for this database alone
	Failpoint failpoint.Hook // for tests
}

// Records are the roots and plans of one database. See the package comment.
type Records struct {
	*Plans
	store  *cas.Store
	driver string
	prefix string // prefix of the names of the database's roots
}

// Open returns the records of the database. It creates the folder of the plans if needed.
func Open(c Config) (*Records, error) {
	const op = "open the records of a database"
	for _, name := range []string{c.App, c.Name} {
		if !ValidName(name) {
			return nil, errs.New(errs.Invalid, op, "%q is not a name", name)
		}
	}
	if c.Store == nil || !filepath.IsAbs(c.StateDir) {
		return nil, errs.New(errs.Invalid, op, "a store and an absolute state folder are needed")
	}
	r := &Records{
		Plans: &Plans{dir: filepath.Join(c.StateDir, "switches"), noun: cmp.Or(c.Noun, "database"), name: c.Name, failpoint: c.Failpoint},
		store: c.Store, driver: c.Driver, prefix: c.Driver + "/" + c.App + "/" + c.Name + "/",
	}
	return r, errs.Wrap(errs.Failed, op, os.MkdirAll(r.dir, 0o700))
}

// ValidName reports whether s can be part of a root's name and a file name.
func ValidName(s string) bool {
	return s != "" && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// SnapshotRoot returns the name of a snapshot's root.
func (r *Records) SnapshotRoot(id snap.SnapshotID) string { return r.prefix + "snap/" + string(id) }

// Snapshots returns the roots of all snapshots.
func (r *Records) Snapshots() []cas.Root { return r.store.Roots(r.prefix + "snap/") }

// All returns the roots of all snapshots and switches.
func (r *Records) All() []cas.Root { return r.store.Roots(r.prefix) }

// Snapshot returns a snapshot's root. The error is of kind errs.NotFound if there is no such snapshot.
func (r *Records) Snapshot(op string, id snap.SnapshotID) (cas.Root, error) {
	root, err := r.store.Root(r.SnapshotRoot(id))
	if errs.KindOf(err) == errs.NotFound {
		return root, errs.New(errs.NotFound, op, "no snapshot %s of database %s", id, r.name).
			WithHint("list the checkpoints to see which there are")
	}
	return root, errs.Wrap(errs.Failed, op, err)
}

// Size returns the bytes that deleting exactly these snapshots together would free.
func (r *Records) Size(ids ...snap.SnapshotID) (int64, error) {
	const op = "measure database snapshots"
	var names []string
	for _, id := range ids {
		root, err := r.Snapshot(op, id)
		if err != nil {
			return 0, err
		}
		names = append(names, root.Name)
	}
	slices.Sort(names)
	n, err := r.store.Unique(slices.Compact(names)...)
	return n, errs.Wrap(errs.Failed, op, err)
}

func (r *Records) Delete(id snap.SnapshotID) error {
	return errs.Wrap(errs.Failed, "delete database snapshot", r.store.Delete(r.SnapshotRoot(id)))
}

// Sweep drops the roots of the snapshots and switches that gone names.
func (r *Records) Sweep(gone snap.Gone) error {
	return errs.Wrap(errs.Failed, "sweep database snapshots", r.drop(r.All(), func(name string) bool {
		kind, id, _ := strings.Cut(strings.TrimPrefix(name, r.prefix), "/")
		return !(kind == "snap" && slices.Contains(gone.Snapshots, snap.SnapshotID(id)) ||
			kind == "switch" && slices.Contains(gone.Restores, snap.RestoreID(filepath.Dir(id))))
	}))
}

// drop drops the roots for which keep returns false.
func (r *Records) drop(roots []cas.Root, keep func(name string) bool) error {
	var names []string
	for _, root := range roots {
		if !keep(root.Name) {
			names = append(names, root.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return r.store.Delete(names...)
}

func (r *Records) endRoot(id snap.RestoreID, of snap.SnapshotID) string {
	return r.prefix + "switch/" + string(id) + "/" + string(of)
}

// Intact checks that every part of a snapshot is in the store.
func (r *Records) Intact(ctx context.Context, root cas.Root) error {
	return r.store.Check(ctx, root.Name, false)
}

// Hold keeps target and base in the store under the switch's name.
func (r *Records) Hold(p *Plan, target, base cas.Root) error {
	b := r.store.Begin()
	defer b.Discard()
	return b.Commit(
		cas.Root{Name: r.endRoot(p.ID, p.Target), Hash: target.Hash, Meta: target.Meta},
		cas.Root{Name: r.endRoot(p.ID, p.Base), Hash: base.Hash, Meta: base.Meta},
	)
}

// Held returns the roots that Hold made. The error is of kind errs.Corrupt if one is missing.
func (r *Records) Held(p *Plan) (target, base cas.Root, err error) {
	if target, err = r.store.Root(r.endRoot(p.ID, p.Target)); err == nil {
		base, err = r.store.Root(r.endRoot(p.ID, p.Base))
	}
	return target, base, Damaged(err)
}

// Damaged returns an errs.Corrupt error for an errs.NotFound error, which means a missing object. It returns other errors
// unchanged.
func Damaged(err error) error {
	if errs.KindOf(err) == errs.NotFound {
		return &errs.Error{Kind: errs.Corrupt, Message: "a part is missing", Hint: "use another checkpoint", Err: err}
	}
	return err
}

// Release drops the roots of a switch, except those of the snapshots in keep.
func (r *Records) Release(id snap.RestoreID, keep ...snap.SnapshotID) error {
	return r.drop(r.store.Roots(r.endRoot(id, "")), func(name string) bool {
		return slices.ContainsFunc(keep, func(s snap.SnapshotID) bool { return name == r.endRoot(id, s) })
	})
}

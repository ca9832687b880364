// Package files is the driver of the workspace: it captures a folder with
// everything in it and puts it back exactly, down to modes, owners, times,
// links, holes and attributes, touching only what differs. DESIGN.md beside
// the code says how and why.
package files

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/follow"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/reflink"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/walk"
	"mulligan/snap/files/watch"
	"mulligan/snap/files/workspace"
)

// Config describes a workspace and its storage.
type Config struct {
	App      string     // prefix of the names of roots: "files/<App>/<snapshot id>"
	Dir      string     // the workspace: absolute, no symbolic links in it
	StateDir string     // a folder of the daemon's own for this app's switches and cache
	Store    *cas.Store // may serve several apps

	Exclude []string // gitignore syntax; never captured, never touched by a restore
	Skip    []string // paths below Dir that belong to other drivers; treated as excluded

	// Below is the StateDir of the pinned copy over which Dir is mounted ([Pinned]); empty: Dir has all files itself.
	Below string

	MaxFiles, MaxBytes int64  // a larger tree is refused; 0: DefaultMaxFiles, DefaultMaxBytes
	Owner              int    // uid that Dir must belong to; -1: not checked
	Reader             Reader // the user who sees names and contents

	// Watch adjusts how the workspace is watched, for tests; nil means the default.
	Watch func(*watch.Options)
	Log   *slog.Logger // for messages of the watcher; nil: none

	Failpoint failpoint.Hook // for tests: called ahead of each step that lasts
}

// Reader is the user who sees names and contents.
type Reader = rights.Reader

// CheckRoot returns an error if dir cannot be a workspace.
func CheckRoot(dir string) error { return workspace.CheckRoot(dir) }

// The default limits of a workspace.
const (
	DefaultMaxFiles = 2_000_000
	DefaultMaxBytes = 200 << 30
)

// Driver captures and restores one workspace.
type Driver struct {
	cfg     Config
	ws      *workspace.Workspace
	walker  *walk.Walker
	history *journal.Journal

	follower *follow.Follower
	applier  *apply.Applier
	lacking  lacking
	names    sync.Mutex // held while the root of a snapshot is replaced or deleted
}

var (
	_ snap.Driver         = (*Driver)(nil)
	_ snap.Differ         = (*Driver)(nil)
	_ snap.ScopedPreparer = (*Driver)(nil)
	_ snap.Warmer         = (*Driver)(nil)
)

// New returns the driver of a workspace. Every operation opens the folder and checks its owner again.
func New(c Config) (*Driver, error) {
	const op = "protect files"
	switch {
	case !relpath.ValidName(c.App):
		return nil, errs.New(errs.Invalid, op, "%q cannot name an app", c.App)
	case c.Store == nil:
		return nil, errs.New(errs.Invalid, op, "no content store given")
	case !filepath.IsAbs(c.StateDir):
		return nil, errs.New(errs.Invalid, op, "state folder %q is not an absolute path", c.StateDir)
	case workspace.Within(c.StateDir, c.Dir):
		return nil, errs.New(errs.Invalid, op, "%s holds mulligan's own state (%s)", c.Dir, c.StateDir).
			WithHint("move the state folder out of the workspace")
	}
	if err := workspace.CheckRoot(c.Dir); err != nil {
		return nil, err
	}
	for i, p := range c.Skip {
		c.Skip[i] = strings.TrimPrefix(filepath.Clean(p), "./")
		if !relpath.Valid(c.Skip[i]) {
			return nil, errs.New(errs.Invalid, op, "%q is not a path in the workspace", p)
		}
	}
	if c.MaxFiles == 0 {
		c.MaxFiles = DefaultMaxFiles
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	ws, err := workspace.New(c.Dir, c.StateDir, c.Owner, c.Exclude, c.Skip)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: c, ws: ws, walker: &walk.Walker{Workspace: ws, Cache: walk.LoadCache(c.StateDir), MaxFiles: c.MaxFiles, MaxBytes: c.MaxBytes,
		Copies: reflink.New(c.StateDir)}}
	if c.Below != "" {
		d.walker.Cache.Under(c.Below)
	}
	d.walker.Shown = func(path string) string { return shown(d, path) }
	d.history = journal.Open(c.Store, d.prefix()+"journal/")
	d.follower = &follow.Follower{Walker: d.walker, Store: c.Store, Journal: d.history, StateDir: c.StateDir, AtRest: d.tidy,
		Watch: c.Watch, Log: c.Log, Failpoint: c.Failpoint}
	d.applier = &apply.Applier{Walker: d.walker, Store: c.Store, Reader: c.Reader, Owner: c.Owner, Memory: d.follower.Memory, Failpoint: c.Failpoint}
	return d, nil
}

// The names of roots in the store.
func (d *Driver) prefix() string                     { return "files/" + d.cfg.App + "/" }
func (d *Driver) rootName(id snap.SnapshotID) string { return d.prefix() + string(id) }
func (d *Driver) warmName() string                   { return d.prefix() + "warm" }

// lateName returns an unused name for the state that an Undo stores. A repeated Undo must not replace the state that an
// interrupted one has stored.
func (d *Driver) lateName(id snap.RestoreID) (string, error) {
	name := d.prefix() + "late/" + string(id)
	for n := 2; ; n++ {
		_, err := d.cfg.Store.Root(name)
		if errs.KindOf(err) == errs.NotFound {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		name = fmt.Sprintf("%slate/%s.%d", d.prefix(), id, n)
	}
}

func (d *Driver) switchRoots(id snap.RestoreID) (base, target string) {
	p := d.prefix() + "switch/" + string(id)
	return p + "/base", p + "/target"
}

// checkID refuses an id that cannot be part of a file's and a root's name.
func checkID(op, id string) error {
	if relpath.ValidName(id) && id != "warm" && id[0] != '.' && len(id) <= 100 {
		return nil
	}
	return errs.New(errs.Invalid, op, "%q cannot be an id", id)
}

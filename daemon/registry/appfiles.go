package registry

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/errs"
)

// appFiles has the state of the app files.
type appFiles struct {
	busy sync.Mutex // locked while the files are read

	mu        sync.Mutex
	files     map[string]appFile
	unwatched string // why the folder is not watched; "" if it is
}

type appFile struct {
	stamp   stamp
	problem string // "" if the app is registered as the file says
	again   bool   // the problem may go away by itself
}

// stamp identifies a version of a file.
type stamp struct {
	ino         uint64
	size        int64
	mtime, ctim unix.Timespec
}

func (f *appFiles) problems() (list []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unwatched != "" {
		list = append(list, f.unwatched)
	}
	for path, file := range f.files {
		if file.problem != "" {
			list = append(list, path+": "+file.problem)
		}
	}
	slices.Sort(list)
	return list
}

// FileProblems returns the problems of app files.
func (svc *Service) FileProblems() []string { return svc.files.problems() }

// WatchFiles registers the apps of the *.toml files in a folder with root's rights, and updates registered apps from their
// files. It repeats this whenever a file changes, until the daemon is closed. An invalid file does not affect other apps;
// Status reports it, and also if the folder cannot be watched, which is tried again. An app whose file is removed stays registered.
func (svc *Service) WatchFiles(ctx context.Context, dir string) {
	w := svc.files.watch(dir, svc.opt.Log)
	svc.apps.AtStart(ctx, func() { // an app may not be ready yet
		var rest <-chan time.Time
		if svc.registerFiles(svc.run, dir) || w == nil {
			rest = time.After(fileRetry)
		}
		svc.apps.Background(func() { svc.followFiles(svc.run, w, dir, rest) })
	})
}

// watch watches the folder, and the folder above it, because the folder may be missing at first. It returns nil if that is not possible now, as
// when root's programs have as many inotify instances as they may.
func (f *appFiles) watch(dir string, log *slog.Logger) *fsnotify.Watcher {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = errors.Join(ignoreAbsent(w.Add(filepath.Dir(dir))), ignoreAbsent(w.Add(dir))); err != nil {
			err = errors.Join(err, w.Close())
		}
	}
	problem := ""
	if err != nil {
		w, problem = nil, dir+" is not watched for app files, and is tried again: "+errs.Words(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if problem != "" && problem != f.unwatched {
		log.Error("app files are not watched", "dir", dir, "err", err)
	}
	f.unwatched = problem
	return w
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// fileRest is how long a folder must be unchanged before its files are read, because editors write a file in several steps.
const fileRest = 200 * time.Millisecond

// fileRetry is the pause before a file whose app was busy or out of reach is tried again.
const fileRetry = 5 * time.Second

func (svc *Service) followFiles(ctx context.Context, w *fsnotify.Watcher, dir string, rest <-chan time.Time) {
	defer func() {
		if w != nil {
			w.Close()
		}
	}()
	for {
		var events chan fsnotify.Event
		var failures chan error
		if w != nil {
			events, failures = w.Events, w.Errors
		}
		select {
		case <-ctx.Done():
			return
		case err := <-failures:
			svc.opt.Log.Warn("watching app files", "dir", dir, "err", err)
			rest = time.After(fileRest) // events may have been lost
		case ev := <-events:
			if ev.Name == dir && ev.Has(fsnotify.Create) {
				if err := ignoreAbsent(w.Add(dir)); err != nil {
					svc.opt.Log.Error("app files are not watched", "dir", dir, "err", err)
				}
			}
			if ev.Name == dir || filepath.Dir(ev.Name) == dir {
				rest = time.After(fileRest)
			}
		case <-rest:
			if w == nil {
				w = svc.files.watch(dir, svc.opt.Log)
			}
			if rest = nil; svc.registerFiles(ctx, dir) || w == nil {
				rest = time.After(fileRetry)
			}
		}
	}
}

// registerFiles reads all files that are new or changed. It returns true if some of them should be tried again later.
func (svc *Service) registerFiles(ctx context.Context, dir string) (again bool) {
	svc.files.busy.Lock()
	defer svc.files.busy.Unlock()
	paths, err := filepath.Glob(filepath.Join(dir, "*.toml"))
	if err != nil {
		return false // the pattern is valid
	}
	slices.Sort(paths)
	now := map[string]appFile{}
	for _, path := range paths {
		now[path] = svc.tryFile(ctx, path)
		again = again || now[path].again
	}
	svc.files.mu.Lock()
	defer svc.files.mu.Unlock()
	svc.files.files = now
	return again
}

// tryFile registers the app of a file, unless this version of the file was registered before.
func (svc *Service) tryFile(ctx context.Context, path string) appFile {
	at, err := trusted(path)
	svc.files.mu.Lock()
	before, known := svc.files.files[path]
	svc.files.mu.Unlock()
	if known && err == nil && before.stamp == at && before.problem == "" {
		return before
	}
	if err == nil {
		err = svc.registerFile(ctx, path)
	}
	if err == nil {
		return appFile{stamp: at}
	}
	problem := errs.Words(err)
	if problem != before.problem {
		svc.opt.Log.Error("app file not registered", "file", path, "err", err)
	}
	return appFile{stamp: at, problem: problem, again: slices.Contains([]errs.Kind{errs.Busy, errs.Unavailable}, errs.KindOf(err))}
}

// trusted checks that only the daemon's user may write to a file, because the file is applied with root's rights.
func trusted(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, errs.Wrap(errs.Invalid, "read app file", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	at := stamp{st.Ino, st.Size, st.Mtim, st.Ctim}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return at, errs.New(errs.Denied, "read app file", "users other than its owner and root may write to it").WithHint("run chown root: and chmod go-w on it")
	}
	return at, nil
}

func (svc *Service) registerFile(ctx context.Context, path string) error {
	spec, err := appfile.Load(path)
	if err != nil {
		return err
	}
	who := accounts.Self()
	owner, uid, err := svc.owners.OwnerOf(who, spec)
	if err != nil {
		return err
	}
	a := svc.apps.Named(owner, uid, spec.Slug)
	if a == nil {
		app, err := svc.AddApp(ctx, who, spec)
		svc.logNotes(spec.Slug, app.Notes)
		return err
	}
	if a.Rec().Workspace != spec.Workspace || spec.Owner != "" && spec.Owner != a.Rec().Owner {
		return errs.New(errs.Conflict, "register app", "%s is registered with another workspace or owner", spec.Slug).
			WithHint("remove it first: `mulligan app remove %s`", spec.Slug)
	}
	if a.Rec().Fork != nil {
		return errs.New(errs.Conflict, "register app", "%s is a fork, and no app file describes one", spec.Slug).
			WithHint("give the file's app another name, or drop the fork: `mulligan drop %s`", spec.Slug)
	}
	release, err := svc.apps.Acquire(ctx, a, "change app", who)
	if err != nil {
		return err
	}
	defer release()
	rec := a.Rec()
	spec.ID, spec.Owner, spec.CreatedAt = rec.ID, rec.Owner, rec.CreatedAt
	if spec.Unit == "" {
		spec.Unit = rec.Unit
	}
	sameContainers(&spec, rec.App)
	rec.App = spec
	notes, err := svc.change(ctx, who, a, rec)
	svc.logNotes(a.Rec().Slug, notes)
	return err
}

// logNotes logs what the registration of a file changed outside of mulligan, because there is no caller to tell.
func (svc *Service) logNotes(slug string, notes []string) {
	for _, n := range notes {
		svc.opt.Log.Info(n, "app", slug)
	}
}

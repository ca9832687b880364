// Package place is where paths are relative to: to the current folder on the command line, and to an app's workspace in the API.
package place

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

// Place is what the paths of a command are relative to.
type Place struct {
	Workspace string // of the app, or of its fork that the current folder is in
	base      string // the current folder, where that is in the workspace, else the workspace
}

// Here returns the current folder without symbolic links; where it was, if it is gone.
func Here() (string, error) {
	dir, err := os.Getwd()
	if err == nil {
		var plain string
		if plain, err = filepath.EvalSymlinks(dir); err == nil {
			return plain, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return dir, nil // whoever needs the folder says what is wrong with it
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// Not from $PWD, which a process that changed its folder without a shell may have left as it was: it may lead to another app.
	dir, err = os.Readlink("/proc/self/cwd")
	return strings.TrimSuffix(dir, " (deleted)"), err
}

// Of returns the place of a command about the app ref. The current folder may also be in the workspace of that app's fork, if the
// command is about one.
func Of(ctx context.Context, client *ipc.Client, ref, fork string) (Place, error) {
	app, err := client.App(ctx, ref)
	if err != nil {
		return Place{}, err
	}
	workspaces := []string{app.Workspace}
	if fork != "" {
		list, err := client.Forks(ctx, ref)
		if err != nil {
			return Place{}, err
		}
		for _, f := range list.Forks {
			if f.Fork.Name == fork || f.Slug == fork {
				workspaces = append(workspaces, f.Workspace)
			}
		}
	}
	here, err := Here()
	p := Place{app.Workspace, app.Workspace}
	for _, w := range workspaces {
		if rel, relErr := filepath.Rel(w, here); err == nil && relErr == nil && filepath.IsLocal(rel) {
			p = Place{w, here}
		}
	}
	return p, nil
}

// Scope returns the scope of the operation op on the app ref with its paths, which are relative to the current folder, made relative to
// the workspace. fork is the name of the fork that the operation is about, or "".
func Scope(ctx context.Context, client *ipc.Client, op, ref, fork string, scope []string) ([]string, error) {
	if len(scope) == 0 {
		return nil, nil
	}
	at, err := Of(ctx, client, ref, fork)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range scope {
		if strings.HasPrefix(s, "layer:") || s == "" {
			all = append(all, s)
			continue
		}
		rel, ok := at.InWorkspace(s)
		if !ok {
			return nil, errs.New(errs.Invalid, op, "--scope %s is not in the workspace %s", s, at.Workspace).
				WithHint("name paths below it, or layer:NAME")
		}
		if strings.HasPrefix(rel, "layer:") { // a file of that name, and no layer
			rel = "./" + rel
		}
		all = append(all, rel)
	}
	return all, nil
}

// Discard returns the paths of --discard of the operation op on the app ref, which are relative to the current folder, made relative to
// the workspace. An empty path is none of the current folder: the daemon refuses it.
func Discard(ctx context.Context, client *ipc.Client, op, ref string, paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	at, err := Of(ctx, client, ref, "")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, typed := range paths {
		rel, ok := at.InWorkspace(typed)
		switch {
		case typed == "":
			rel = ""
		case !ok:
			return nil, errs.New(errs.Invalid, op, "--discard %s is not in the workspace %s", typed, at.Workspace).WithHint("name paths below it")
		}
		all = append(all, rel)
	}
	return all, nil
}

// InWorkspace returns a path that a person typed, relative to the workspace, and reports whether it is in there.
func (p Place) InWorkspace(typed string) (string, bool) {
	path := typed
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.base, path)
	}
	rel, err := filepath.Rel(p.Workspace, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// Shown returns a path of the workspace as a person in the current folder types it.
func (p Place) Shown(path string) string {
	rel, err := filepath.Rel(p.base, filepath.Join(p.Workspace, path))
	if err != nil {
		return path
	}
	return rel
}

// Absent reports whether a path of the workspace is not there now.
func (p Place) Absent(path string) bool {
	_, err := os.Lstat(filepath.Join(p.Workspace, path))
	return os.IsNotExist(err)
}

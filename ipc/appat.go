package ipc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mulligan/errs"
)

// AppAt returns the app whose workspace contains the folder dir; of nested workspaces, the innermost. The error is of kind
// errs.NotFound if there is no such app, and errs.Conflict if two apps have this workspace.
func (c *Client) AppAt(ctx context.Context, dir string) (App, error) {
	const op = "find the app"
	dir, err := resolve(dir)
	if err != nil {
		return App{}, &errs.Error{Kind: errs.Invalid, Op: op, Hint: "name an app with --app", Err: err}
	}
	apps, err := c.Apps(ctx)
	if err != nil {
		return App{}, err
	}
	var found []App
	for _, a := range apps {
		switch ws := filepath.Clean(a.Workspace); {
		case !holds(ws, dir):
		case len(found) == 0 || len(ws) > len(filepath.Clean(found[0].Workspace)):
			found = []App{a}
		case len(ws) == len(filepath.Clean(found[0].Workspace)):
			found = append(found, a)
		}
	}
	switch len(found) {
	case 0:
		return App{}, errs.New(errs.NotFound, op, "%s is in no app's workspace", dir).
			WithHint("register it with `mulligan init`, or name an app with --app")
	case 1:
		return found[0], nil
	}
	slugs := make([]string, len(found))
	for i, a := range found {
		slugs[i] = a.Slug
	}
	return App{}, errs.New(errs.Conflict, op, "%s belongs to %s", dir, strings.Join(slugs, " and ")).
		WithHint("name one with --app")
}

// resolve returns dir as an absolute path without symbolic links. A folder that is gone is where it was: it belongs to the app from which
// it may come back.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) { // a link that leads nowhere stays an error: what it meant is not known
		return filepath.EvalSymlinks(dir)
	}
	parent, err := resolve(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// holds reports whether dir is the folder ws or below it. Both must be clean paths.
func holds(ws, dir string) bool {
	return dir == ws || ws == "/" || strings.HasPrefix(dir, ws+"/")
}

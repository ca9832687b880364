package ipc

import (
	"context"
	"path/filepath"
	"strings"

	"mulligan/errs"
)

// AppAt is the app whose workspace holds the folder dir: the innermost one. No
// such app is errs.NotFound; two apps of one workspace are errs.Conflict.
func (c *Client) AppAt(ctx context.Context, dir string) (App, error) {
	const op = "find the app"
	dir, err := resolve(dir)
	if err != nil {
		return App{}, errs.Wrap(errs.Invalid, op, err)
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

// resolve makes dir absolute and free of symbolic links.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// holds tells whether dir is the folder ws or below it. Both are clean.
func holds(ws, dir string) bool {
	return dir == ws || ws == "/" || strings.HasPrefix(dir, ws+"/")
}

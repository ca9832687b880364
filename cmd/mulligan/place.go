package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

// place is what the paths of a command are relative to.
type place struct {
	workspace string // of the app, or of its fork that the current folder is in
	base      string // the current folder, where that is in the workspace, else the workspace
}

// placeOf returns the place of a command about the app ref. The current folder may also be in the workspace of that app's fork, if the
// command is about one.
func placeOf(ctx context.Context, client *ipc.Client, ref, fork string) (place, error) {
	app, err := client.App(ctx, ref)
	if err != nil {
		return place{}, err
	}
	workspaces := []string{app.Workspace}
	if fork != "" {
		list, err := client.Forks(ctx, ref)
		if err != nil {
			return place{}, err
		}
		for _, f := range list.Forks {
			if f.Fork.Name == fork || f.Slug == fork {
				workspaces = append(workspaces, f.Workspace)
			}
		}
	}
	here, err := os.Getwd()
	if err == nil {
		here, err = filepath.EvalSymlinks(here)
	}
	p := place{app.Workspace, app.Workspace}
	for _, w := range workspaces {
		if rel, relErr := filepath.Rel(w, here); err == nil && relErr == nil && filepath.IsLocal(rel) {
			p = place{w, here}
		}
	}
	return p, nil
}

// scopeHere returns scope with its paths made relative to the workspace.
func scopeHere(ctx context.Context, client *ipc.Client, op, ref, fork string, scope []string) ([]string, error) {
	if len(scope) == 0 {
		return nil, nil
	}
	at, err := placeOf(ctx, client, ref, fork)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range scope {
		if strings.HasPrefix(s, "layer:") || s == "" {
			all = append(all, s)
			continue
		}
		rel, ok := at.inWorkspace(s)
		if !ok {
			return nil, errs.New(errs.Invalid, op, "--scope %s is not in the workspace %s", s, at.workspace).
				WithHint("name paths below it, or layer:NAME")
		}
		if strings.HasPrefix(rel, "layer:") { // a file of that name, and no layer
			rel = "./" + rel
		}
		all = append(all, rel)
	}
	return all, nil
}

// inWorkspace returns a path that a person typed, relative to the workspace, and reports whether it is in there.
func (p place) inWorkspace(typed string) (string, bool) {
	path := typed
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.base, path)
	}
	rel, err := filepath.Rel(p.workspace, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// shown returns a path of the workspace as a person in the current folder types it.
func (p place) shown(path string) string {
	rel, err := filepath.Rel(p.base, filepath.Join(p.workspace, path))
	if err != nil {
		return path
	}
	return rel
}

// absent reports whether a path of the workspace is not there now.
func (p place) absent(path string) bool {
	_, err := os.Lstat(filepath.Join(p.workspace, path))
	return os.IsNotExist(err)
}

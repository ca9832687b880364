package files

import (
	"slices"

	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

// asSeen returns the outcome in a form that the reader may see.
func (r *reverting) asSeen(how snap.Reverted) (snap.Reverted, error) {
	if r.d.cfg.Reader.All() {
		return how, nil
	}
	var err error
	for _, list := range []*[]string{&how.Paths, &how.Merged} {
		for i, p := range *list {
			if (*list)[i], err = r.seen(p); err != nil {
				return how, err
			}
		}
		*list = slices.Compact(*list)
	}
	for i := range how.Left {
		if how.Left[i].Path, err = r.seen(how.Left[i].Path); err != nil {
			return how, err
		}
	}
	how.Left = slices.Compact(how.Left)
	return how, nil
}

// seen returns p, or the outermost folder above it that the reader may not look into, now or after the revert.
func (r *reverting) seen(p string) (string, error) {
	for _, dir := range above(p) {
		is, err := r.base.Find(dir)
		if err != nil {
			return "", err
		}
		to, err := r.at(dir)
		if err != nil {
			return "", err
		}
		for _, e := range []*manifest.Entry{is, to} {
			if manifest.IsFolder(e) && !r.d.cfg.Reader.SeesInto(e) {
				return dir, nil
			}
		}
	}
	return p, nil
}

// above returns the folders above p, outermost first.
func above(p string) []string {
	dirs := []string{"."}
	for i := range len(p) {
		if p[i] == '/' {
			dirs = append(dirs, p[:i])
		}
	}
	return dirs
}

var _ snap.PathRedactor = (*Driver)(nil)

// RedactPaths returns paths in the form that the app's owner may see at present.
func (d *Driver) RedactPaths(paths []string) ([]string, error) {
	if d.cfg.Reader.All() || len(paths) == 0 {
		return paths, nil
	}
	root, err := d.ws.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	known := map[string]bool{} // whether the reader may look into a folder
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		for _, dir := range above(p) {
			sees, ok := known[dir]
			if !ok {
				sees = d.seesNow(root, dir)
				known[dir] = sees
			}
			if !sees {
				p = dir
				break
			}
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// shown returns path as the app's owner may see it in a warning or an error: absolute, on one line, and without names from folders that the owner may not
// look into.
func shown(d *Driver, path string) string {
	seen, err := d.RedactPaths([]string{path})
	if err != nil { // the workspace cannot be opened: then it is all that is named
		seen = []string{"."}
	}
	if seen[0] == path {
		return workspace.Shown(d.cfg.Dir, path)
	}
	return "something in " + workspace.Shown(d.cfg.Dir, seen[0])
}

// seesNow reports whether the reader may look into the folder dir, if it exists.
func (d *Driver) seesNow(root *beneath.Root, dir string) bool {
	in, err := root.OpenDir(dir)
	if err != nil {
		return true
	}
	defer in.Close()
	e, _, err := rights.ReadEntry(in.FD())
	return err == nil && d.cfg.Reader.SeesInto(e)
}

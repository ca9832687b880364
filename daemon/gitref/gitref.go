// Package gitref reads the current commit of a workspace's git repository. It does not run git, because git would follow the
// configuration of a hostile workspace. The formats are those of gitrepository-layout(5) and git-pack-refs(1). Repositories
// with another format of refs (reftable) are not supported.
package gitref

import (
	"bufio"
	"encoding/hex"
	"io"
	"path"
	"strings"

	"mulligan/snap/beneath"
)

const (
	maxRef    = 4 << 10  // bytes of a file that holds one ref, or one path
	maxPacked = 64 << 20 // bytes of packed-refs
	maxDepth  = 5        // depth of symbolic refs, the same as git's
)

// Head returns the commit of the workspace's HEAD in lower-case hex: 40 digits, or 64 in a SHA-256 repository. ok is false if
// there is no repository, if the repository is outside of the workspace or cannot be read, or if the branch has no commit.
func Head(root *beneath.Root) (sha string, ok bool) {
	repo, ok := find(root)
	if !ok {
		return "", false
	}
	return repo.resolve("HEAD", 0)
}

// repository has the paths of the refs of one worktree, beneath root.
type repository struct {
	root   *beneath.Root
	own    string // the folder of this worktree's own refs: HEAD
	common string // the folder of the refs that all worktrees share: the branches
}

func find(root *beneath.Root) (repository, bool) {
	own := ".git"
	if text, ok := read(root, own); ok { // a file, as in a submodule or another worktree
		target, found := strings.CutPrefix(text, "gitdir:")
		if !found {
			return repository{}, false
		}
		if own, ok = inside(root, ".", strings.TrimSpace(target)); !ok {
			return repository{}, false
		}
	}
	r := repository{root: root, own: own, common: own}
	if text, ok := read(root, path.Join(own, "commondir")); ok {
		if r.common, ok = inside(root, own, strings.TrimSpace(text)); !ok {
			return repository{}, false
		}
	}
	return r, true
}

// inside returns target, which is relative to the folder from, as a path beneath root. ok is false if target is outside of
// root.
func inside(root *beneath.Root, from, target string) (string, bool) {
	if path.IsAbs(target) {
		rest, ok := strings.CutPrefix(path.Clean(target), path.Clean(root.Name())+"/")
		return rest, ok
	}
	rel := path.Join(from, target)
	return rel, target != "" && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (r repository) resolve(ref string, depth int) (string, bool) {
	if depth > maxDepth {
		return "", false
	}
	text, ok := read(r.root, path.Join(r.own, ref))
	if !ok && r.common != r.own && ref != "HEAD" {
		text, ok = read(r.root, path.Join(r.common, ref))
	}
	if !ok {
		return r.packed(ref)
	}
	if next, symbolic := strings.CutPrefix(text, "ref:"); symbolic {
		next = strings.TrimSpace(next)
		if !isRef(next) {
			return "", false
		}
		return r.resolve(next, depth+1)
	}
	return digest(text)
}

// packed looks up ref in packed-refs. A line has a digest, a space and a ref; lines that begin with # or ^ have other meanings.
func (r repository) packed(ref string) (string, bool) {
	f, _, err := r.root.OpenRegular(path.Join(r.common, "packed-refs"))
	if err != nil {
		return "", false
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxPacked))
	lines.Buffer(make([]byte, maxRef), maxRef)
	for lines.Scan() {
		sha, name, found := strings.Cut(lines.Text(), " ")
		if found && name == ref {
			return digest(sha)
		}
	}
	return "", false
}

// isRef reports whether name is a valid name of a ref, which cannot lead out of the repository. It checks the necessary part of
// git-check-ref-format(1).
func isRef(name string) bool {
	return strings.HasPrefix(name, "refs/") && path.Clean(name) == name && !strings.ContainsAny(name, "\x00\n\r\\ ~^:?*[")
}

// digest returns the object name at the beginning of text. As in git, white space may follow.
func digest(text string) (string, bool) {
	fields := strings.Fields(text)
	if len(fields) == 0 || !strings.HasPrefix(text, fields[0]) {
		return "", false
	}
	sha := strings.ToLower(fields[0])
	if _, err := hex.DecodeString(sha); err != nil || len(sha) != 40 && len(sha) != 64 {
		return "", false
	}
	return sha, strings.Trim(sha, "0") != ""
}

// read returns the text of a small regular file.
func read(root *beneath.Root, rel string) (string, bool) {
	data, _, err := root.ReadFile(rel, maxRef)
	return string(data), err == nil
}

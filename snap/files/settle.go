package files

import (
	"context"
	"fmt"
	"os"
	"path"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
)

// settler makes a manifest from another host one that this workspace's owner could have: whoever wrote it may have written anything, and
// users have other numbers there. All entries become the owner's, without rights that only root can give. In root's own workspaces
// nothing is changed.
type settler struct {
	ctx    context.Context
	m      *manifest.Manifest
	b      *cas.Batch
	owner  rights.FileOwner
	groups []uint32 // of the owner; the first is its own
	done   map[snap.Hash]snap.Hash

	foreign int    // entries that lost an owner other than the workspace's, or rights
	first   string // path of one of them
}

// settleOwner returns the hash of the settled manifest, with warnings about what was changed. It adds new nodes to b.
func settleOwner(ctx context.Context, cfg *Config, b *cas.Batch, m *manifest.Manifest) (h snap.Hash, warnings []string, err error) {
	r := cfg.Reader
	if os.Geteuid() == 0 && r.UID <= 0 {
		return m.Hash, nil, nil
	}
	s := &settler{ctx: ctx, m: m, b: b, owner: rights.FileOwnerOf(r, cfg.Owner, 0), done: map[snap.Hash]snap.Hash{}}
	if s.groups, err = groupsOf(r); err != nil {
		return h, nil, err
	}
	root := m.Root
	if root.Hash, err = s.folder(root.Hash, ""); err != nil {
		return h, nil, err
	}
	if err := s.entry(&root, "."); err != nil {
		return h, nil, err
	}
	if h, err = b.Node(manifest.EncodeNode(manifest.SortTop, []*manifest.Entry{&root})); err != nil {
		return h, nil, err
	}
	if s.foreign > 0 {
		warnings = append(warnings, fmt.Sprintf("files: %d files and folders, %.200q among them, belonged to another user there or had rights that only root can give; here they are the app's owner's own", s.foreign, s.first))
	}
	return h, warnings, nil
}

// groupsOf returns the groups of a reader, or of this process if that is not root. The first is the own one.
func groupsOf(r Reader) (list []uint32, err error) {
	gid, groups := r.GID, r.Groups
	if os.Geteuid() != 0 {
		gid = os.Getegid()
		if groups, err = os.Getgroups(); err != nil {
			return nil, err
		}
	}
	if gid < 0 {
		gid = int(noGroup)
	}
	list = []uint32{uint32(gid)}
	for _, g := range groups {
		list = append(list, uint32(g))
	}
	return list, nil
}

const noGroup = 65534 // nobody's

// folder settles the entries of a folder, and returns its new hash.
func (s *settler) folder(h snap.Hash, dir string) (snap.Hash, error) {
	if to, ok := s.done[h]; ok {
		return to, nil
	}
	entries, err := s.m.Folder(h)
	if err == nil {
		err = s.ctx.Err()
	}
	if err != nil {
		return h, err
	}
	list := make([]*manifest.Entry, len(entries))
	for i := range entries {
		e := entries[i]
		list[i] = &e
		if e.IsDir() {
			if e.Hash, err = s.folder(e.Hash, path.Join(dir, e.Name)); err != nil {
				return h, err
			}
		}
		if err := s.entry(&e, path.Join(dir, e.Name)); err != nil {
			return h, err
		}
	}
	to, err := s.b.Node(manifest.EncodeNode(manifest.SortFolder, list))
	if err == nil {
		s.done[h] = to
	}
	return to, err
}

// entry settles one entry.
func (s *settler) entry(e *manifest.Entry, path string) error {
	if e.Mount {
		return nil
	}
	if e.Device() {
		return errs.New(errs.Unsupported, "", "the checkpoint has a device (%.200q), which only root can make", path).WithHint("have root do this")
	}
	was := *e
	e.Uid = uint32(s.owner)
	if !s.in(e.Gid) {
		e.Gid = s.groups[0]
	}
	if !s.owner.Plain(e) {
		e.Mode &^= 0o7000
		e.SetXattrs(rights.Unprivileged(e.Xattrs()))
	}
	if was.Uid != s.m.Root.Uid || was.Mode != e.Mode || len(was.Xattrs()) != len(e.Xattrs()) {
		if s.foreign++; s.first == "" {
			s.first = path
		}
	}
	return nil
}

func (s *settler) in(gid uint32) bool {
	for _, g := range s.groups {
		if g == gid {
			return true
		}
	}
	return false
}

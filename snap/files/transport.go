package files

import (
	"context"
	"encoding/json"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/workspace"
)

// Export returns what a snapshot consists of. A marker is exported as a manifest, because the journal to which it belongs stays
// here. See [snap.Transporter].
func (d *Driver) Export(ctx context.Context, id snap.SnapshotID) (p snap.Portable, release func(), err error) {
	const op = "export files"
	root, about, err := d.root(op, id)
	if err != nil {
		return p, nil, err
	}
	b := d.cfg.Store.Begin()
	hash, err := saveManifest(ctx, d.cfg.Store, b, root.Hash)
	if err != nil {
		b.Discard()
		return p, nil, workspace.Wrap(errs.Failed, op, err)
	}
	about.Mark, about.Place = "", ""
	data, err := json.Marshal(about)
	if err != nil {
		b.Discard()
		return p, nil, errs.Wrap(errs.Internal, op, err)
	}
	return snap.Portable{Driver: "files", Object: hash, Meta: data}, b.Discard, nil
}

// Import stores a snapshot that Export returned, perhaps on another host. Unless the workspace is root's own, all files become its
// owner's, without rights that only root can give. See [snap.Transporter].
func (d *Driver) Import(ctx context.Context, p snap.Portable, as snap.SnapshotID) (s snap.Snapshot, err error) {
	const op = "import files"
	if err := checkID(op, string(as)); err != nil {
		return s, err
	}
	if p.Driver != "files" {
		return s, errs.New(errs.Unsupported, op, "the snapshot is of %q and not of files", p.Driver)
	}
	var about meta
	if err := json.Unmarshal(p.Meta, &about); err != nil {
		return s, manifest.Damaged(p.Object, err)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	if !b.Keep(p.Object) {
		return s, errs.New(errs.Corrupt, op, "the contents of %s are not in the content store", as)
	}
	m, err := manifest.Load(d.cfg.Store, p.Object)
	if err != nil {
		return s, workspace.Wrap(errs.Corrupt, op, err)
	}
	size := sizer{ctx, &d.cfg, m, map[sized]extent{}}
	if _, err := size.folder(m.Root.Hash, 0); err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	hash, changed, err := settleOwner(ctx, &d.cfg, b, m)
	if err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	about.Warnings = append(about.Warnings, changed...)
	if s, err = d.put(op, b, as, hash, about); err == nil {
		s.Warnings = changed
	}
	return s, err
}

// sizer checks that a manifest from another host is within the limits of a workspace. Whoever wrote it may have put the same folder into it any
// number of times: each is read once, and counted each time.
type sizer struct {
	ctx   context.Context
	cfg   *Config
	m     *manifest.Manifest
	known map[sized]extent // of folders and of large files
}

// sized is an object as an entry describes it, which may be false: as a file with a size, or as a folder (-1).
type sized struct {
	hash snap.Hash
	size int64
}

// extent is what is in a folder and below it, or in a file.
type extent struct {
	files, bytes int64
	longest      int // the length of the longest path in the folder
}

// folder returns the extent of a folder, or an error if it exceeds the limits. above is the length of the folder's path with a slash.
func (s *sizer) folder(h snap.Hash, above int) (x extent, err error) {
	entries, err := s.m.Folder(h)
	if err == nil {
		err = s.ctx.Err()
	}
	for i := 0; err == nil && i < len(entries); i++ {
		e := &entries[i]
		length := len(e.Name)
		as := sized{e.Hash, e.Size}
		if e.IsDir() {
			as.size = -1
		}
		in, ok := s.known[as]
		switch {
		case above+length > manifest.MaxPath: // this bounds the recursion
		case ok:
		case e.IsDir():
			if in, err = s.folder(e.Hash, above+length+1); err != nil {
				return x, err
			}
		case e.IsFile():
			if in.bytes = manifest.StoredSize(s.cfg.Store, e); e.Size > cas.ChunkSize {
				s.known[as] = in
			}
		}
		if in.longest > 0 {
			length += 1 + in.longest
		}
		if above+length > manifest.MaxPath {
			return x, errs.New(errs.Invalid, "", "the checkpoint has a path of more than %d bytes", manifest.MaxPath).
				WithHint("exclude that folder on the host that made the checkpoint, and make another")
		}
		if in.files >= s.cfg.MaxFiles-x.files || in.bytes > s.cfg.MaxBytes-x.bytes {
			return x, errs.New(errs.Invalid, "", "the checkpoint has more than the %d files or %d bytes that are allowed", s.cfg.MaxFiles, s.cfg.MaxBytes).
				WithHint("raise [limits] in mulligand.toml if you trust whoever made it")
		}
		x = extent{x.files + 1 + in.files, x.bytes + in.bytes, max(x.longest, length)}
	}
	if err == nil {
		s.known[sized{h, -1}] = x
	}
	return x, err
}

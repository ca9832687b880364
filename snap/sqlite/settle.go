package sqlite

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
)

// Import stores a snapshot that Export returned, perhaps on another host. Unless root named the database, its file becomes its owner's,
// without rights that only root can give: whoever wrote the snapshot may have written anything. See [snap.Transporter].
func (d *Driver) Import(ctx context.Context, p snap.Portable, as snap.SnapshotID) (s snap.Snapshot, err error) {
	const op = "import database"
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		if d.cfg.Owner == 0 {
			return d.Driver.Import(ctx, p, as)
		}
		uid, gid = d.cfg.Owner, d.cfg.Group
	}
	if p.Driver != driverName {
		return d.Driver.Import(ctx, p, as) // which refuses it
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	if !b.Keep(p.Object) {
		return d.Driver.Import(ctx, p, as)
	}
	from, err := load(d.cfg.Store, p.Object)
	if err != nil {
		return s, errs.Wrap(errs.Corrupt, op, err)
	}
	if from.Raw != nil {
		return s, errs.New(errs.Unsupported, op, "the snapshot %s has raw bytes, which stay on the host where they were kept", as).WithHint("use another checkpoint")
	}
	var m meta
	if err := json.Unmarshal(p.Meta, &m); err != nil {
		return s, errs.New(errs.Corrupt, op, "the description of %s is damaged", as)
	}
	r := from.record
	if !r.State.Absent {
		r.State.UID, r.State.GID = uint32(uid), uint32(gid)
		r.State.Mode &= 0o777
		for name := range r.State.Xattrs {
			if strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "security.") {
				delete(r.State.Xattrs, name)
			}
		}
	}
	for i := range r.Folders {
		r.Folders[i] = folder{r.Folders[i].Mode & 0o777, uint32(uid), uint32(gid)}
	}
	chunks, err := from.chunks()
	if err != nil {
		return s, errs.Wrap(errs.Corrupt, op, err)
	}
	node, err := storeRecord(b, r, chunks)
	if err != nil {
		return s, errs.Wrap(errs.Failed, op, err)
	}
	m.Hash = r.State.hash().String()
	if p.Meta, err = json.Marshal(m); err != nil {
		return s, errs.Wrap(errs.Internal, op, err)
	}
	p.Object = node
	return d.Driver.Import(ctx, p, as)
}

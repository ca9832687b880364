package disk

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// domain finds the record's domain in libvirt, reads its definition and changes it. The caller of each method holds the
// driver's lock.
type domain struct {
	*record
	*guest.Domain
	owner *owner // QEMU's user, once it is known
}

// owner is the user that QEMU runs as, by what a connection to libvirt says.
type owner struct {
	conn     virt.Hypervisor
	uid, gid int
}

// machine connects to libvirt and finds the domain. The caller frees it.
func (d *domain) machine(op string) (virt.Machine, error) {
	uuid := ""
	if d.tree != nil {
		uuid = d.tree.UUID
	}
	return d.Machine(op, uuid)
}

// define writes a layer's images into the persistent definition.
func (d *domain) define(op string, m virt.Machine, id layertree.ID) error {
	return d.Define(op, m, d.tree.Layers[id].Paths(), d.tree.Disks)
}

// definePersistent calls define unless the definition already has these images. During a live snapshot, libvirt also writes the
// backing chain into the persistent definition. That chain must be removed, because a start of the domain would require images
// that may have been merged since.
func (d *domain) definePersistent(op string, m virt.Machine, id layertree.ID) error {
	text, err := m.XML(false)
	if err != nil {
		return err
	}
	want, err := virt.Redirect(text, d.tree.Layers[id].Paths())
	if err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	if want == text {
		return nil
	}
	return d.define(op, m, id)
}

// giveToQEMU makes QEMU's user the owner of a file. libvirt does this itself for images that it opens for writing, but it
// cannot do it for immutable images.
func (d *domain) giveToQEMU(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if d.owner == nil || d.owner.conn != d.Conn {
		uid, gid, ok := d.Conn.Owner()
		if !ok {
			return nil
		}
		d.owner = &owner{d.Conn, uid, gid}
	}
	return os.Chown(path, d.owner.uid, d.owner.gid)
}

// trusted refuses a folder in which another user could replace an image by a link, because the daemon changes owners and flags
// there by path.
func (d *domain) trusted(op, dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	qemu := -1
	if uid, _, ok := d.Conn.Owner(); ok {
		qemu = uid
	}
	for at := real; ; at = filepath.Dir(at) {
		var s unix.Stat_t
		if err := unix.Stat(at, &s); err != nil {
			return errs.Wrap(errs.Failed, op, &os.PathError{Op: "stat", Path: at, Err: err})
		}
		ours := s.Uid == 0 || int(s.Uid) == os.Geteuid() || int(s.Uid) == qemu
		open := s.Mode&unix.S_IWOTH != 0 && s.Mode&unix.S_ISVTX == 0
		if !ours || open {
			return errs.New(errs.Denied, op, "disk images below %s: users other than root can replace files there", at).
				WithHint("move the images to a folder of root's, like /var/lib/libvirt/images")
		}
		if at == "/" {
			return nil
		}
	}
}

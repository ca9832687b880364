package disk

import (
	"os"

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

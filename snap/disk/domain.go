package disk

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// domain finds the record's domain in libvirt, reads its definition and changes it. The caller of each method holds the
// driver's lock.
type domain struct {
	*record
	dial  func(uri string) (virt.Hypervisor, error)
	conn  virt.Hypervisor // nil: not connected
	owner *owner          // QEMU's user, once it is known
}

// owner is the user that QEMU runs as.
type owner struct{ uid, gid int }

// machine connects to libvirt and finds the domain. The caller frees it.
func (d *domain) machine(op string) (virt.Machine, error) {
	m, err := d.lookup()
	if errs.KindOf(err) == errs.Unavailable && d.conn != nil {
		// libvirtd was restarted: a lost connection is noticed only when it is used.
		_ = d.conn.Close()
		d.conn = nil
		m, err = d.lookup()
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if err := d.sameDomain(op, m); err != nil {
		m.Free()
		return nil, err
	}
	return m, nil
}

func (d *domain) lookup() (virt.Machine, error) {
	if d.conn == nil {
		conn, err := d.dial(d.cfg.URI)
		if err != nil {
			return nil, err
		}
		d.conn, d.owner = conn, nil
	}
	uuid := ""
	if d.tree != nil {
		uuid = d.tree.UUID
	}
	m, err := d.conn.Lookup(d.cfg.Domain, uuid)
	if uuid == "" || errs.KindOf(err) != errs.NotFound {
		return m, err
	}
	other, e := d.conn.Lookup(d.cfg.Domain, "")
	if e != nil {
		return nil, err
	}
	defer other.Free()
	now, e := other.UUID()
	if e != nil {
		return nil, e
	}
	return nil, errs.New(errs.Conflict, "", "domain %s was defined anew: its UUID is %s, and was %s", d.cfg.Domain, now, uuid).
		WithHint("nothing is lost: virsh undefine it, and define it with <uuid>%s</uuid>; or app remove --purge and app add, which starts a new history", uuid)
}

// sameDomain returns an error if the domain has another name now.
func (d *domain) sameDomain(op string, m virt.Machine) error {
	name, err := m.Name()
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if name != d.cfg.Domain {
		return errs.New(errs.Conflict, op, "domain %s is called %s now", d.cfg.Domain, name).
			WithHint("`mulligan app set domain=%s`, or virsh domrename it back", name)
	}
	return nil
}

// surveyOf inspects a definition; up is whether the domain runs.
func (d *domain) surveyOf(op string, m virt.Machine, live bool) (s virt.Survey, up bool, err error) {
	p, err := m.Power()
	if err != nil {
		return s, false, err
	}
	if live && !p.Up() {
		return s, false, nil
	}
	text, err := m.XML(live)
	if err != nil {
		return s, false, err
	}
	s, err = virt.Inspect(op, text)
	return s, p.Up(), err
}

// define writes a layer's images into the persistent definition.
func (d *domain) define(op string, m virt.Machine, id layertree.ID) error {
	text, err := m.XML(false)
	if err != nil {
		return err
	}
	want := d.tree.Layers[id].Paths()
	text, err = virt.Redirect(text, want)
	if err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	if err := d.conn.Define(text); err != nil {
		return err
	}
	s, _, err := d.surveyOf(op, m, false)
	if err == nil && !layertree.SamePaths(s.Sources, want, d.tree.Disks) {
		err = errs.New(errs.Failed, op, "libvirt did not keep the definition of %s", d.cfg.Domain)
	}
	return err
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
	if d.owner == nil {
		uid, gid, ok := d.conn.Owner()
		if !ok {
			return nil
		}
		d.owner = &owner{uid, gid}
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
	if uid, _, ok := d.conn.Owner(); ok {
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

// jobTick is the pause between two questions whether libvirt has finished.
const jobTick = 50 * time.Millisecond

// awaitJobs waits until libvirt has finished the work that a killed process had requested, because libvirt continues a switch
// or a start whose caller is gone. While libvirt writes a guest's memory, it answers whether it has finished. Other work is
// waited for by measuring a disk: libvirt and QEMU answer that after all earlier requests.
func (d *domain) awaitJobs(ctx context.Context, m virt.Machine, p virt.Power) (virt.Power, error) {
	tick := time.NewTicker(jobTick)
	defer tick.Stop()
	for p.Up() {
		idle, err := m.Idle()
		if err == nil && idle {
			_, err = m.Capacity(d.tree.Disks[0])
		}
		now, e := m.Power()
		if e != nil || !now.Up() { // it was switched off in the meantime
			return now, e
		}
		if err != nil || idle {
			return now, err
		}
		select {
		case <-ctx.Done():
			return now, errs.Wrap(errs.Unavailable, "wait for libvirt", ctx.Err())
		case <-tick.C:
		}
	}
	return p, nil
}

// Package guest is what the drivers of a domain's disks have in common, whatever keeps the contents of the disks: finding the domain,
// replacing the images in its definition, holding its guest still for a moment, starting it and shutting it down.
package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/disk/virt"
)

// Domain finds a domain in libvirt and changes its definition. Its methods are called by one goroutine at a time, except State and Close.
type Domain struct {
	Name, URI string
	Conn      virt.Hypervisor // nil: not connected

	look struct { // used by State, which does not wait for other methods
		sync.Mutex
		conn virt.Hypervisor
	}
}

// OnCeph reports whether the definition of a domain says that its disks are RBD images. It is false if libvirt cannot be asked, or the
// domain cannot be captured.
func OnCeph(uri, name string) bool {
	d := Domain{Name: name, URI: uri}
	defer d.Close() // only read
	m, err := d.Machine("", "")
	if err != nil {
		return false
	}
	defer m.Free()
	s, _, err := d.Survey("", m, false)
	return err == nil && s.OnCeph()
}

// Machine connects to libvirt and finds the domain by its UUID, or by its name if uuid is "". It returns an error if the domain that has
// the UUID has another name now, or the one that has the name another UUID. The caller frees the machine.
func (d *Domain) Machine(op, uuid string) (virt.Machine, error) {
	m, err := d.lookup(uuid)
	if errs.KindOf(err) == errs.Unavailable && d.Conn != nil {
		// libvirtd was restarted: a lost connection is noticed only when it is used.
		_ = d.Conn.Close()
		d.Conn = nil
		m, err = d.lookup(uuid)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if err := d.sameName(op, m); err != nil {
		m.Free()
		return nil, err
	}
	return m, nil
}

func (d *Domain) lookup(uuid string) (virt.Machine, error) {
	if d.Conn == nil {
		conn, err := virt.Dial(d.URI)
		if err != nil {
			return nil, err
		}
		d.Conn = conn
	}
	m, err := d.Conn.Lookup(d.Name, uuid)
	if uuid == "" || errs.KindOf(err) != errs.NotFound {
		return m, err
	}
	other, e := d.Conn.Lookup(d.Name, "")
	if e != nil {
		return nil, err
	}
	defer other.Free()
	now, e := other.UUID()
	if e != nil {
		return nil, e
	}
	return nil, errs.New(errs.Conflict, "", "domain %s was defined anew: its UUID is %s, and was %s", d.Name, now, uuid).
		WithHint("nothing is lost: virsh undefine it, and define it with <uuid>%s</uuid>; or app remove --purge and app add, which starts a new history", uuid)
}

// sameName returns an error if the domain has another name now.
func (d *Domain) sameName(op string, m virt.Machine) error {
	name, err := m.Name()
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if name != d.Name {
		return errs.New(errs.Conflict, op, "domain %s is called %s now", d.Name, name).
			WithHint("`mulligan app set domain=%s`, or virsh domrename it back", name)
	}
	return nil
}

// Adoptable returns the domain's persistent definition and its UUID. It returns an error for a domain that has no such definition.
func (d *Domain) Adoptable(op string, m virt.Machine) (s virt.Survey, uuid string, err error) {
	persistent, err := m.Persistent()
	if err != nil {
		return s, "", err
	}
	if !persistent {
		return s, "", errs.New(errs.Unsupported, op, "domain %s is transient", d.Name).WithHint("define it: virsh define")
	}
	if s, _, err = d.Survey(op, m, false); err != nil {
		return s, "", err
	}
	uuid, err = m.UUID()
	return s, uuid, err
}

// Survey inspects the live or the persistent definition; up is whether the domain runs.
func (d *Domain) Survey(op string, m virt.Machine, live bool) (s virt.Survey, up bool, err error) {
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

// Both inspects both definitions. The live one of a domain that is off is its persistent one. It returns an error for a domain with
// snapshots or saved memory of libvirt's own.
func (d *Domain) Both(op string, m virt.Machine) (kept, live virt.Survey, err error) {
	foreign, err := m.Foreign()
	if err != nil {
		return kept, live, err
	}
	if foreign != "" {
		return kept, live, errs.New(errs.Conflict, op, "domain %s has %s", d.Name, foreign).
			WithHint("start it if its memory was saved (managedsave-remove would lose that), else remove that with virsh; mulligan and libvirt's own snapshots do not mix")
	}
	if kept, _, err = d.Survey(op, m, false); err != nil {
		return kept, live, err
	}
	live, up, err := d.Survey(op, m, true)
	if err == nil && !up {
		live = kept
	}
	return kept, live, err
}

// Define writes images of disks into the persistent definition, and checks that libvirt has kept them. devs are all disks that are to
// agree with images.
func (d *Domain) Define(op string, m virt.Machine, images map[string]string, devs []string) error {
	text, err := m.XML(false)
	if err != nil {
		return err
	}
	text, err = virt.Redirect(text, images)
	if err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	if err := d.Conn.Define(text); err != nil {
		return err
	}
	s, _, err := d.Survey(op, m, false)
	for _, dev := range devs {
		if err == nil && s.Sources[dev] != images[dev] {
			err = errs.New(errs.Failed, op, "libvirt did not keep the definition of %s", d.Name)
		}
	}
	return err
}

// jobTick is the pause between two questions whether libvirt has finished.
const jobTick = 50 * time.Millisecond

// AwaitJobs waits until libvirt has finished the work that a killed process had requested, because libvirt continues a switch
// or a start whose caller is gone. While libvirt writes a guest's memory, it answers whether it has finished. Other work is
// waited for by measuring the disk dev: libvirt and QEMU answer that after all earlier requests.
func (d *Domain) AwaitJobs(ctx context.Context, m virt.Machine, p virt.Power, dev string) (virt.Power, error) {
	tick := time.NewTicker(jobTick)
	defer tick.Stop()
	for p.Up() {
		idle, err := m.Idle()
		if err == nil && idle {
			_, err = m.Capacity(dev)
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

// Trusted refuses a folder in which another user could replace a file of the domain's by a link, because the daemon reads, writes and changes
// owners and flags there by path. what names the domain's files.
func (d *Domain) Trusted(op, what, dir string) error {
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
			return errs.New(errs.Denied, op, "the %s below %s: users other than root can replace files there", what, at).
				WithHint("move the %s to a folder of root's, like those below /var/lib/libvirt", what)
		}
		if at == "/" {
			return nil
		}
	}
}

// TrustedNVRAM refuses an NVRAM that another user could replace. path may be "", and the NVRAM need not be there yet.
func (d *Domain) TrustedNVRAM(op, path string) error {
	if path == "" {
		return nil
	}
	err := d.Trusted(op, "NVRAM", filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Close ends the connections to libvirt.
func (d *Domain) Close() error {
	d.look.Lock()
	eye := d.look.conn
	d.look.conn = nil
	d.look.Unlock()
	conn := d.Conn
	d.Conn = nil
	var all []error
	for _, c := range []virt.Hypervisor{conn, eye} {
		if c != nil {
			all = append(all, c.Close())
		}
	}
	return errors.Join(all...)
}

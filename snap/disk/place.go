package disk

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
)

// trusted refuses a folder in which somebody else could put a link in the place
// of an image: the daemon changes owners and flags there by path.
func (d *Driver) trusted(op, dir string) error {
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
			return errs.New(errs.Denied, op, "disk images below %s: users other than root can exchange what is there", at).
				WithHint("move the images to a folder of root's, like /var/lib/libvirt/images")
		}
		if at == "/" {
			return nil
		}
	}
}

// Places lists what belongs to the domain's disks: its images, and the folders
// that the driver keeps layers in.
func (d *Driver) Places(ctx context.Context) (list []string, err error) {
	const op = "look at the domain"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	for _, l := range d.tree.Layers {
		for _, f := range l.all() {
			list = append(list, f.Path)
		}
	}
	for _, dev := range d.tree.Disks {
		list = append(list, d.pool(d.tree, dev))
	}
	s, _, err := d.surveyOf(op, m, false)
	if s.NVRAM != "" {
		list = append(list, s.NVRAM)
	}
	return list, err
}

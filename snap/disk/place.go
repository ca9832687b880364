package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/layertree"
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
			return errs.New(errs.Denied, op, "disk images below %s: users other than root can replace files there", at).
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
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	list = d.placesOf(d.tree)
	s, _, err := d.surveyOf(op, m, false)
	if s.NVRAM != "" {
		list = append(list, s.NVRAM)
	}
	if err == nil {
		err = d.recordPlaces(list)
	}
	return list, errs.Wrap(errs.Failed, op, err)
}

// placesFile returns the path of the file in which the driver keeps the last result of Places.
func (d *Driver) placesFile() string { return filepath.Join(d.cfg.StateDir, "places.json") }

// recordPlaces writes down what Places found, where the record says something else.
func (d *Driver) recordPlaces(list []string) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if was, err := os.ReadFile(d.placesFile()); err == nil && bytes.Equal(was, data) {
		return nil
	}
	return durable.WriteFile(d.placesFile(), data, 0o600)
}

// RecordedPlaces is what Places found last, and where the layers are that were made since:
// it reads the driver's records alone. Without records it returns errs.NotFound.
func (d *Driver) RecordedPlaces() ([]string, error) {
	const op = "read where the disks are"
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	data, err := os.ReadFile(d.placesFile())
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if damaged := d.load(op); damaged == nil && d.tree != nil {
		list = append(list, d.placesOf(d.tree)...)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // an older version made no such record
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.NotFound, op, "nothing is known of the disks of domain %s", d.cfg.Domain)
	}
	return list, errs.Wrap(errs.Failed, op, err)
}

// places lists the images of all layers, and the folders that drivers keep layers in. Beside the
// images that is the folder of all apps' pools: it is made with the first capture.
func (d *Driver) placesOf(t *layertree.Tree) (list []string) {
	for _, l := range t.Layers {
		for _, f := range l.All() {
			list = append(list, f.Path)
		}
	}
	for _, dev := range t.Disks {
		pool := d.pool(t, dev)
		if d.cfg.PoolDir == "" {
			pool = filepath.Dir(pool)
		}
		list = append(list, pool)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/layertree"
)

// Places lists the paths of the domain's disks: its images, and the driver's folders of layers.
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
	list = d.pools().Places(d.tree)
	s, _, err := d.dom.Survey(op, m, false)
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

// recordPlaces records the result of Places if it has changed.
func (d *Driver) recordPlaces(list []string) error {
	var was []string
	if err := durable.ReadJSON(d.placesFile(), &was); err == nil && slices.Equal(was, list) {
		return nil
	}
	return durable.WriteJSON(d.placesFile(), list)
}

// RecordedPlaces returns the last result of Places, with the layers that were made since. It reads only the driver's records.
// Without records, the error is of kind errs.NotFound.
func (d *Driver) RecordedPlaces() ([]string, error) {
	const op = "read where the disks are"
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	err := durable.ReadJSON(d.placesFile(), &list)
	if damaged := d.load(op); damaged == nil && d.tree != nil {
		list = append(list, d.pools().Places(d.tree)...)
		if errors.Is(err, os.ErrNotExist) || errs.KindOf(err) == errs.Corrupt {
			err = nil // an older version of the driver made no such record; what a damaged one had more is the NVRAM
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.NotFound, op, "there is no record of the disks of domain %s", d.cfg.Domain)
	}
	return list, errs.Wrap(errs.Failed, op, err)
}

// Claim is the set of images on the host that belong to a domain's disks.
type Claim = layertree.Claim

// Claim returns the claim of the domain. It does not wait for other methods.
func (d *Driver) Claim() Claim { return d.claimed() }

// Holds reports whether the folder has the records of a driver of this package.
func Holds(stateDir string) bool { return layertree.Holds(stateDir) }

// Recorded returns the claim of a driver that is not open, from its records in stateDir.
func Recorded(stateDir string) (Claim, error) {
	r := &record{cfg: Config{StateDir: stateDir}}
	err := r.load("read the records of disks")
	return r.claimed(), err
}

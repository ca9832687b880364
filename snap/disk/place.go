package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/layertree"
)

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
	list = d.pools().Places(d.tree)
	s, _, err := d.dom.surveyOf(op, m, false)
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
		list = append(list, d.pools().Places(d.tree)...)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // an older version made no such record
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.NotFound, op, "there is no record of the disks of domain %s", d.cfg.Domain)
	}
	return list, errs.Wrap(errs.Failed, op, err)
}

// Claim is which images on the host belong to a domain's disks.
type Claim = layertree.Claim

// Claim is the claim of the domain. It waits for nobody's work.
func (d *Driver) Claim() Claim { return d.claimed() }

// Recorded is the claim of a driver that is not open, as far as its records in stateDir tell.
func Recorded(stateDir string) (Claim, error) {
	r := &record{cfg: Config{StateDir: stateDir}}
	err := r.load("read the records of disks")
	return r.claimed(), err
}

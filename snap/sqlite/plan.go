package sqlite

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/ipc/errs"
	"mulligan/snap"
)

// phase is how far a switch got. Each is on disk before the work that it names begins.
type phase string

const (
	prepared   phase = "prepared" // the live state was not touched
	committing phase = "committing"
	committed  phase = "committed"
	undoing    phase = "undoing"
	undone     phase = "undone"
)

// plan is what is kept of a switch, in the file plan.json of its folder, beside
// the target's content. The roots of target and base are kept under its name.
type plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	BaseIdentity identity // of the live files when the base was captured
	Phase        phase
	Changes      []snap.Change
}

func (d *Driver) switchDir(id snap.RestoreID) string {
	return filepath.Join(d.cfg.StateDir, "switches", string(id))
}

func (d *Driver) switchRoot(id snap.RestoreID, of snap.SnapshotID) string {
	return d.prefix + "switch/" + string(id) + "/" + string(of)
}

// loadPlan reads the plan of a switch; without one there is no switch.
func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	missing := errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, d.cfg.Name)
	if !validName(string(id)) || strings.HasPrefix(string(id), ".") {
		return nil, missing
	}
	data, err := os.ReadFile(filepath.Join(d.switchDir(id), "plan.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	p := &plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	return p, nil
}

// savePlan writes p into the folder dir, durably.
func savePlan(dir string, p *plan) error {
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, "plan.new")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, "plan.json")); err != nil {
		return err
	}
	return syncDir(dir)
}

// advance takes the switch to the phase, durably.
func (d *Driver) advance(p *plan, to phase) error {
	next := *p
	next.Phase = to
	if err := savePlan(d.switchDir(p.ID), &next); err != nil {
		return err
	}
	*p = next
	return d.seam("phase: " + string(to))
}

// installPlan makes the folder staged the switch's folder, in the place of an older one.
func (d *Driver) installPlan(id snap.RestoreID, staged string) error {
	dir := d.switchDir(id)
	old := filepath.Join(filepath.Dir(dir), ".old-"+string(id))
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(staged, dir); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Dir(dir)), os.RemoveAll(old))
}

// dropSwitch removes what is kept of a switch: the plan first, so that a
// switch that is half gone is gone.
func (d *Driver) dropSwitch(name string) error {
	dir := filepath.Join(d.cfg.StateDir, "switches", name)
	if err := os.Remove(filepath.Join(dir, "plan.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(dir), syncDir(filepath.Dir(dir)))
}

// dropRoots drops the roots of a switch but for those of keep.
func (d *Driver) dropRoots(id snap.RestoreID, keep ...snap.SnapshotID) error {
	var names []string
	for _, root := range d.cfg.Store.Roots(d.prefix + "switch/" + string(id) + "/") {
		if !slices.ContainsFunc(keep, func(s snap.SnapshotID) bool { return root.Name == d.switchRoot(id, s) }) {
			names = append(names, root.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return d.cfg.Store.Delete(names...)
}

// sweepSwitches removes the folders of the switches that are not in keep, and
// those that were never finished or are half gone.
func (d *Driver) sweepSwitches(keep []snap.RestoreID) error {
	entries, err := os.ReadDir(filepath.Join(d.cfg.StateDir, "switches"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.Contains(keep, snap.RestoreID(e.Name())) {
			continue
		}
		err := d.removeTemp(snap.RestoreID(e.Name()))
		if err := errors.Join(err, d.dropSwitch(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

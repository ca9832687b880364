package redis

import (
	"context"
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
	prepared   phase = "prepared"   // the live state was not touched
	committing phase = "committing" // the server may hold base or target
	committed  phase = "committed"
	undoing    phase = "undoing"
	undone     phase = "undone"
)

// plan is what is kept of a switch, in the file plan.json of its folder. The
// roots of target and base are kept under its name.
type plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	Phase        phase
	Lead         *lead // set while the server may be following
	Changes      []snap.Change
}

// lead is what the server's settings are to be put back from. The password is
// one that the server had for a master of its own; mostly there is none.
type lead struct {
	Host, Port       string // where it was told to find its master
	User, MasterAuth string
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
	return p, errs.Wrap(errs.Corrupt, op, json.Unmarshal(data, p))
}

// savePlan makes p durable.
func (d *Driver) savePlan(p *plan) error {
	dir := d.switchDir(p.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
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
	return errors.Join(syncDir(dir), syncDir(filepath.Dir(dir)))
}

// advance takes the switch to the phase, durably.
func (d *Driver) advance(p *plan, to phase) error {
	next := *p
	next.Phase = to
	if err := d.savePlan(&next); err != nil {
		return err
	}
	*p = next
	return d.seam("phase: " + string(to))
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

// sweepSwitches drops the switches that are not in keep, and those that never got a plan.
func (d *Driver) sweepSwitches(ctx context.Context, keep []snap.RestoreID) error {
	entries, err := os.ReadDir(filepath.Join(d.cfg.StateDir, "switches"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := snap.RestoreID(e.Name())
		p, err := d.loadPlan("", id)
		if errs.KindOf(err) != errs.NotFound && (err != nil || slices.Contains(keep, id)) {
			if err != nil {
				return err
			}
			continue
		}
		if err == nil {
			if err := d.letGo(ctx, p); err != nil {
				return err
			}
		}
		if err := d.dropSwitch(e.Name()); err != nil {
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

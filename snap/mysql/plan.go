package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/ipc/errs"
	"mulligan/snap"
)

// phase is how far a switch got. Each is on disk before the work that it names begins.
type phase string

const (
	preparing  phase = "preparing"  // there may be a database beside the live one, and that is all
	prepared   phase = "prepared"   // the live state was not touched
	committing phase = "committing" // tables and objects may be the base's or the target's
	committed  phase = "committed"
	undoing    phase = "undoing"
	undone     phase = "undone"
	dropped    phase = "dropped" // nobody wants it any more; its databases may still be there
)

// plan is what is kept of a switch, in the file plan.json of its folder. The
// roots of target and base are kept under its name.
type plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	Phase        phase
	Loaded       string // the hash of the state whose tables are in the side database
	Changes      []snap.Change
}

// sideMark is in the name of every database that a restore makes, behind the live one's.
const sideMark = "__mulligan_"

// The databases of a switch: the target's tables before Commit, the base's after
// Commit, and what was live when Undo came.
func (d *Driver) side(id snap.RestoreID) string {
	name := []byte(d.login.db + sideMark + string(id))
	for i, c := range name[len(d.login.db):] {
		if c == '-' || c >= 0x80 || c < '0' {
			name[len(d.login.db)+i] = '_'
		}
	}
	if len(name) > 58 { // a name has 64 characters at most
		sum := blake3.Sum256(name)
		name = fmt.Appendf(nil, "%.30s%s%.16x", d.login.db, sideMark, sum)
	}
	return string(name)
}

func (d *Driver) old(id snap.RestoreID) string  { return d.side(id) + "_old" }
func (d *Driver) gone(id snap.RestoreID) string { return d.side(id) + "_gone" }

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

// resumable is loadPlan for a switch that got as far as being prepared.
func (d *Driver) resumable(op string, id snap.RestoreID) (*plan, error) {
	p, err := d.loadPlan(op, id)
	if err == nil && (p.Phase == preparing || p.Phase == dropped) {
		return nil, errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, d.cfg.Name)
	}
	return p, err
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
// Where the server is away, their databases are dropped by a later sweep.
func (d *Driver) sweepSwitches(ctx context.Context, keep []snap.RestoreID) error {
	entries, err := os.ReadDir(filepath.Join(d.cfg.StateDir, "switches"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := snap.RestoreID(e.Name())
		p, err := d.loadPlan("", id)
		switch {
		case errs.KindOf(err) == errs.NotFound:
			err = d.dropSwitch(e.Name())
		case err == nil && (!slices.Contains(keep, id) || p.Phase == preparing || p.Phase == dropped):
			err = d.drop(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop drops a switch and its databases; these another time, where the server is away.
func (d *Driver) drop(ctx context.Context, p *plan) error {
	if err := d.advance(p, dropped); err != nil {
		return err
	}
	err := d.dropSides(ctx, p.ID)
	if errs.KindOf(d.classify("", err)) == errs.Unavailable && ctx.Err() == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return d.dropSwitch(string(p.ID))
}

// dropSides drops the databases of a switch.
func (d *Driver) dropSides(ctx context.Context, id snap.RestoreID) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	for _, db := range []string{d.side(id), d.old(id), d.gone(id)} {
		if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(db)); err != nil {
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

package logical

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// phase is how far a switch got. Each is on disk before the work that it names begins.
type phase string

const (
	building   phase = "building" // there may be a part of the new database; to others there is no switch yet
	prepared   phase = "prepared" // the new database is whole, the live one was not touched
	committing phase = "committing"
	committed  phase = "committed"
	undoing    phase = "undoing"
	undone     phase = "undone"
)

// plan is what is kept of a switch, in a file of its own. It is written before
// anything is made on the server, so that what a crash leaves there is known.
type plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	TargetHash   string
	Phase        phase
	New, Old     string   // names: of the new database before the switch, of the live one after it
	NewOID       uint32   // 0: the target is that there is none
	BaseOID      uint32   // 0: there was none
	Comment      string   // the target's
	BaseComment  string   // the base's, to be put back
	Roles        []string // that were made because the target needs them
	Clean        identity // in which the live state was known to be the base
	Proven       identity // of the new database when it was compared with the target and closed; zero: it may have been written to in between
	Exchanged    uint64   // id of the transaction that made the new database live; 0: not known
	Changes      []snap.Change
}

func (d *Driver) planPath(id snap.RestoreID) string {
	return filepath.Join(d.cfg.StateDir, "switches", string(id)+".json")
}

func (d *Driver) switchRoot(id snap.RestoreID, of snap.SnapshotID) string {
	return d.prefix + "switch/" + string(id) + "/" + string(of)
}

// loadPlan reads the plan of a switch that is prepared at least.
func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	p, err := d.readPlan(op, id)
	if err == nil && p.Phase == building {
		return nil, d.noSwitch(op, id)
	}
	return p, err
}

func (d *Driver) noSwitch(op string, id snap.RestoreID) error {
	return errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, d.cfg.Name)
}

func (d *Driver) readPlan(op string, id snap.RestoreID) (*plan, error) {
	if !validName(string(id)) {
		return nil, d.noSwitch(op, id)
	}
	data, err := os.ReadFile(d.planPath(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, d.noSwitch(op, id)
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

// savePlan writes the plan, durably.
func (d *Driver) savePlan(p *plan) error {
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	path := d.planPath(p.ID)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
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

func (d *Driver) dropPlan(id snap.RestoreID) error {
	path := d.planPath(id)
	for _, name := range []string{path, path + ".new"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return syncDir(filepath.Dir(path))
}

// keepRoots holds target and base in the store under the switch's own name.
func (d *Driver) keepRoots(p *plan, target, base cas.Root) error {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	return b.Commit(
		cas.Root{Name: d.switchRoot(p.ID, p.Target), Hash: target.Hash, Meta: target.Meta},
		cas.Root{Name: d.switchRoot(p.ID, p.Base), Hash: base.Hash, Meta: base.Meta},
	)
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

// plans lists the switches that there are plans of.
func (d *Driver) plans() (ids []snap.RestoreID, err error) {
	entries, err := os.ReadDir(filepath.Join(d.cfg.StateDir, "switches"))
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			ids = append(ids, snap.RestoreID(name))
		}
	}
	return ids, err
}

// beside is the name of a database beside db that belongs to a switch. The
// server allows 63 bytes.
func beside(db string, id snap.RestoreID, which string) string {
	suffix := "__mulligan_" + string(id) + "_" + which
	keep := max(0, min(len(db), 63-len(suffix)))
	for keep > 0 && keep < len(db) && !utf8.RuneStart(db[keep]) {
		keep--
	}
	return db[:keep] + suffix
}

// note is the comment on a database of ours.
func (d *Driver) note(p *plan) string {
	return "made by mulligan for restore " + string(p.ID) + " of " + d.cfg.App + "/" + d.cfg.Name
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

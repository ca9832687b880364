package database

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
)

// Phase is how far a switch got. Each is on disk before the work that it names begins.
type Phase string

// The phases of a switch.
const (
	Preparing  Phase = "preparing"  // something of the driver's may lie beside the live state; to others there is no switch yet
	Prepared   Phase = "prepared"   // the live state was not touched
	Committing Phase = "committing" // the live state may be the base, the target or between them
	Committed  Phase = "committed"
	Undoing    Phase = "undoing"
	Undone     Phase = "undone"
	Dropped    Phase = "dropped" // nobody wants it any more; what the driver made may still be there
)

// Plan is what is kept of a switch. A driver's own plan embeds it.
type Plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	Phase        Phase
	Changes      []snap.Change
	Reached      Phase `json:",omitempty"` // the phase that the switch was in when it was dropped
}

// NewPlan begins a switch's plan.
func NewPlan(req snap.RestoreRequest, at Phase, changes []snap.Change) Plan {
	return Plan{ID: req.ID, Target: req.Target, Base: req.Base, Phase: at, Changes: changes}
}

// Head gives the part that all plans have.
func (p *Plan) Head() *Plan { return p }

// There reports whether the switch is one that others may ask for: its
// preparation came to its end, and nobody has dropped it.
func (p *Plan) There() bool { return p.Phase != Preparing && p.Phase != Dropped }

// Begun reports whether the live state may be between base and target.
func (p *Plan) Begun() bool { return p.Phase == Committing || p.Phase == Undoing }

// Back reports whether the base is what is to be live, because of an Undo.
func (p *Plan) Back() bool { return p.Phase == Undoing || p.Phase == Undone }

// Ended refuses to finish a switch that is half done.
func (p *Plan) Ended(op string) error {
	if !p.Begun() {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s is half done", p.ID).WithHint("commit it again, or undo it")
}

// Forward refuses to commit a switch that was undone.
func (p *Plan) Forward(op string) error {
	if !p.Back() {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s was undone", p.ID).WithHint("restore again")
}

// Planned is a driver's own plan.
type Planned interface{ Head() *Plan }

// Folder is where a driver may keep what belongs to a switch, beside its plan.
func (r *Records) Folder(id snap.RestoreID) string { return filepath.Join(r.switches, string(id)) }

// Load reads the plan of a switch: errs.NotFound where there is none.
func (r *Records) Load(op string, id snap.RestoreID, into Planned) error {
	if !ValidName(string(id)) {
		return r.NoSwitch(op, id)
	}
	data, err := os.ReadFile(filepath.Join(r.Folder(id), planFile))
	if errors.Is(err, os.ErrNotExist) {
		return r.NoSwitch(op, id)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return errs.Wrap(errs.Corrupt, op, json.Unmarshal(data, into))
}

// NoSwitch is the error that there is no such switch.
func (r *Records) NoSwitch(op string, id snap.RestoreID) error {
	return errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, r.name)
}

// Save makes p durable.
func (r *Records) Save(p Planned) error {
	dir := r.Folder(p.Head().ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writePlan(dir, p); err != nil {
		return err
	}
	return durable.Sync(r.switches)
}

const planFile = "plan.json"

func writePlan(dir string, p Planned) error {
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, planFile), data, 0o600)
}

// Advance takes a switch to a phase, durably; where that fails it stays in the one that it was in.
func (r *Records) Advance(p Planned, to Phase) error {
	head := p.Head()
	from := head.Phase
	head.Phase = to
	if err := r.Save(p); err != nil {
		head.Phase = from
		return err
	}
	return r.failpoint.At("phase: " + string(to))
}

// Switches lists the names in the plans' folder: of switches, and of what a
// crash left of some.
func (r *Records) Switches() (names []string, err error) {
	entries, err := os.ReadDir(r.switches)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Drop removes the folder of that name: its plan first, so that a switch that
// is half gone is gone.
func (r *Records) Drop(name string) error {
	dir := filepath.Join(r.switches, name)
	if err := os.Remove(filepath.Join(dir, planFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(dir), durable.Sync(r.switches))
}

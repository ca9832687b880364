package database

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
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
	Total        int   `json:",omitempty"` // how many changes there are, where Changes does not list all
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

// Plans are the plans of a database's switches, on disk.
type Plans struct {
	dir       string // their folder
	noun      string // what the operations call the database
	name      string // of the database, in errors
	flat      bool   // each plan is a file ID.json, and has no folder of its own
	failpoint failpoint.Hook
}

// FlatPlans are the plans of a driver that keeps each as a file ID.json in dir, which is there,
// and nothing beside it. noun is what the operations call its database.
func FlatPlans(dir, noun, name string, hook failpoint.Hook) *Plans {
	return &Plans{dir: dir, noun: noun, name: name, flat: true, failpoint: hook}
}

// Folder is where a driver may keep what belongs to a switch, beside its plan.
func (r *Plans) Folder(id snap.RestoreID) string { return filepath.Join(r.dir, string(id)) }

const planFile = "plan.json"

// file is the path of a switch's plan.
func (r *Plans) file(id snap.RestoreID) string {
	if r.flat {
		return r.Folder(id) + ".json"
	}
	return filepath.Join(r.Folder(id), planFile)
}

// Load reads the plan of a switch: errs.NotFound where there is none.
func (r *Plans) Load(op string, id snap.RestoreID, into Planned) error {
	if !ValidName(string(id)) {
		return r.NoSwitch(op, id)
	}
	data, err := os.ReadFile(r.file(id))
	if errors.Is(err, os.ErrNotExist) {
		return r.NoSwitch(op, id)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return errs.Wrap(errs.Corrupt, op, json.Unmarshal(data, into))
}

// NoSwitch is the error that there is no such switch.
func (r *Plans) NoSwitch(op string, id snap.RestoreID) error {
	return errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, r.name)
}

// Save makes p durable.
func (r *Plans) Save(p Planned) error {
	id := p.Head().ID
	if !r.flat {
		if err := os.MkdirAll(r.Folder(id), 0o700); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(r.file(id), data, 0o600); err != nil {
		return err
	}
	return durable.Sync(r.dir)
}

// Advance takes a switch to a phase, durably; where that fails it stays in the one that it was in.
func (r *Plans) Advance(p Planned, to Phase) error {
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
func (r *Plans) Switches() (names []string, err error) {
	entries, err := os.ReadDir(r.dir)
	for _, e := range entries {
		name := e.Name()
		if r.flat {
			name = strings.TrimSuffix(name, ".json")
		}
		names = append(names, name)
	}
	return names, err
}

// Drop removes what is kept under that name: the plan first, so that a switch that
// is half gone is gone.
func (r *Plans) Drop(name string) error {
	if err := os.Remove(r.file(snap.RestoreID(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(r.dir, name)), durable.Sync(r.dir))
}

// replaceable refuses to prepare a switch whose plan under the same id, or nil, is p.
func (p *Plan) replaceable(op string) error {
	if p == nil || p.Phase == Prepared || p.Phase == Preparing {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s is %s already", p.ID, p.Phase).WithHint("undo or finish it first")
}

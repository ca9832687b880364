package database

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
)

// Phase is the phase of a switch. It is saved durably before the work of the phase begins.
type Phase string

// The phases of a switch.
const (
	Preparing  Phase = "preparing"  // objects of the driver may exist beside the live state; Resume does not return the switch yet
	Prepared   Phase = "prepared"   // the live state is untouched
	Committing Phase = "committing" // the live state may be the base, the target or partly both
	Committed  Phase = "committed"
	Undoing    Phase = "undoing"
	Undone     Phase = "undone"
	Dropped    Phase = "dropped" // the switch was finished or swept; its objects may still exist on the server
)

// Plan is the durable record of a switch. Each driver's plan embeds it.
type Plan struct {
	ID           snap.RestoreID
	Target, Base snap.SnapshotID
	Phase        Phase
	Changes      []snap.Change
	Reached      Phase `json:",omitempty"` // the phase before Dropped
	Total        int   `json:",omitempty"` // number of changes, if Changes lists only some of them
}

// NewPlan returns the plan of a new switch.
func NewPlan(req snap.RestoreRequest, at Phase, changes []snap.Change) Plan {
	return Plan{ID: req.ID, Target: req.Target, Base: req.Base, Phase: at, Changes: changes}
}

// Head returns p. With it, this package gets the Plan that is embedded in a driver's plan.
func (p *Plan) Head() *Plan { return p }

// There reports whether Resume may return the switch: its preparation was completed and
// it was not dropped.
func (p *Plan) There() bool { return p.Phase != Preparing && p.Phase != Dropped }

// Begun reports whether the live state may be partly base and partly target.
func (p *Plan) Begun() bool { return p.Phase == Committing || p.Phase == Undoing }

// Back reports whether the live state should be the base, because of an Undo.
func (p *Plan) Back() bool { return p.Phase == Undoing || p.Phase == Undone }

// Ended returns an errs.Conflict error if a Commit or an Undo is incomplete, so that the switch cannot be finished.
func (p *Plan) Ended(op string) error {
	if !p.Begun() {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s was interrupted", p.ID).WithHint("commit it again, or undo it")
}

// Forward returns an errs.Conflict error if the switch was undone, so that it cannot be committed.
func (p *Plan) Forward(op string) error {
	if !p.Back() {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s was undone", p.ID).WithHint("restore again")
}

// Planned is implemented by every driver's plan.
type Planned interface{ Head() *Plan }

// Plans stores the plans of a database's switches on disk.
type Plans struct {
	dir       string // the folder of the plans
	noun      string // the name of the kind of database in messages, such as "database"
	name      string // the database's name, for errors
	flat      bool   // each plan is a file ID.json instead of a folder
	failpoint failpoint.Hook
}

// FlatPlans returns the Plans of a driver that keeps each plan as a file ID.json in dir. The folder must exist, and must
// contain nothing else. noun is the name of the kind of database in messages, and name the database's name.
func FlatPlans(dir, noun, name string, hook failpoint.Hook) *Plans {
	return &Plans{dir: dir, noun: noun, name: name, flat: true, failpoint: hook}
}

// Folder returns the folder of the switch, in which a driver may also keep files of its own.
func (r *Plans) Folder(id snap.RestoreID) string { return filepath.Join(r.dir, string(id)) }

const planFile = "plan.json"

func (r *Plans) file(id snap.RestoreID) string {
	if r.flat {
		return r.Folder(id) + ".json"
	}
	return filepath.Join(r.Folder(id), planFile)
}

// Load reads the plan of a switch. The error is of kind errs.NotFound if there is none.
func (r *Plans) Load(op string, id snap.RestoreID, into Planned) error {
	if !ValidName(string(id)) {
		return r.NoSwitch(op, id)
	}
	err := durable.ReadJSON(r.file(id), into)
	if errors.Is(err, os.ErrNotExist) {
		return r.NoSwitch(op, id)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// NoSwitch returns the errs.NotFound error for a switch that does not exist.
func (r *Plans) NoSwitch(op string, id snap.RestoreID) error {
	return errs.New(errs.NotFound, op, "no restore %s of database %s is under way", id, r.name)
}

// Save writes p durably.
func (r *Plans) Save(p Planned) error {
	id := p.Head().ID
	if !r.flat {
		if err := os.MkdirAll(r.Folder(id), 0o700); err != nil {
			return err
		}
	}
	if err := durable.WriteJSON(r.file(id), p); err != nil {
		return err
	}
	return durable.Sync(r.dir)
}

// Advance sets the phase of a switch durably. After an error the phase is unchanged.
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

// Switches returns the names of the switches in the plans' folder. Some may be those of folders without a plan, which a crash
// left.
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

// Drop removes the plan and the folder of the switch called name. It removes the plan first, so that an interrupted Drop leaves
// no switch.
func (r *Plans) Drop(name string) error {
	if err := os.Remove(r.file(snap.RestoreID(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(r.dir, name)), durable.Sync(r.dir))
}

// replaceable returns an errs.Conflict error if a new preparation may not replace the plan p. p may be nil.
func (p *Plan) replaceable(op string) error {
	if p == nil || p.Phase == Prepared || p.Phase == Preparing {
		return nil
	}
	return errs.New(errs.Conflict, op, "restore %s has begun: it is %s", p.ID, p.Phase).WithHint("undo or finish it first")
}

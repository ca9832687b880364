package layertree

import "mulligan/snap"

// phase is how far a switch got. Each is on disk before the work that it names begins.
type Phase string

const (
	Prepared   Phase = "prepared" // the domain was not touched
	Committing Phase = "committing"
	Committed  Phase = "committed"
	Undoing    Phase = "undoing"
	Undone     Phase = "undone"
)

// plan is what is kept of a switch: from the head Old, an empty overlay on the
// base, to New, an empty overlay on the target.
type Plan struct {
	Target, Base           snap.SnapshotID
	TargetLayer, BaseLayer ID
	Old, New               ID
	Phase                  Phase
	Changes                []snap.Change
	TargetState, BaseState string
	TargetMemory           *File  `json:",omitempty"`
	BaseDamage             string `json:",omitempty"` // what is wrong with what the base rests on; BaseState is "" then
}

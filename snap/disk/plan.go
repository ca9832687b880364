package disk

import "mulligan/snap"

// phase is how far a switch got. Each is on disk before the work that it names begins.
type phase string

const (
	prepared   phase = "prepared" // the domain was not touched
	committing phase = "committing"
	committed  phase = "committed"
	undoing    phase = "undoing"
	undone     phase = "undone"
)

// plan is what is kept of a switch: from the head Old, an empty overlay on the
// base, to New, an empty overlay on the target.
type plan struct {
	Target, Base           snap.SnapshotID
	TargetLayer, BaseLayer layerID
	Old, New               layerID
	Phase                  phase
	Changes                []snap.Change
	TargetState, BaseState string
	TargetMemory           *file  `json:",omitempty"`
	BaseDamage             string `json:",omitempty"` // what is wrong with what the base rests on; BaseState is "" then
}

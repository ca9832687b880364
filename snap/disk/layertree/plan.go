package layertree

import "mulligan/snap"

// Phase is the progress of a switch. It is on disk before the work that it names begins.
type Phase string

const (
	Prepared   Phase = "prepared" // the domain is unchanged
	Committing Phase = "committing"
	Committed  Phase = "committed"
	Undoing    Phase = "undoing"
	Undone     Phase = "undone"
)

// Plan is the record of a switch from the head Old, an empty overlay on the base, to New, an empty overlay on the target.
type Plan struct {
	Target, Base           snap.SnapshotID
	TargetLayer, BaseLayer ID
	Old, New               ID
	Phase                  Phase
	Changes                []snap.Change
	TargetState, BaseState string
	TargetMemory           *File  `json:",omitempty"`
	BaseDamage             string `json:",omitempty"` // the damage in the base's backing chain; BaseState is "" then
}

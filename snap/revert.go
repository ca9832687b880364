package snap

import "context"

// Reverter is a [Journal] whose writes can be taken back one by one, also when
// others have written since.
//
//	writes, _ := j.Writes(ctx, start, end)        // what a call wrote
//	base, _ := d.Capture(ctx, snap.CaptureRequest{ID: "fs-4"})
//	sw, how, _ := r.PrepareRevert(ctx, snap.RevertRequest{ID: "op-8", Base: base.ID, Writes: writes})
//	sw.Commit(ctx)                                 // from here on a switch like any other
type Reverter interface {
	// PrepareRevert makes ready to take writes back from the state base. A path
	// goes back to what it was before the first of its writes, if base has it as
	// they left it. Where something else wrote to it, between them or since, the
	// two are merged: attributes one by one, text by lines, if it is an ordinary file
	// of the app's owner; owner, special bits, capabilities and access lists go back
	// with the content that they were recorded with, or not at all. What cannot be
	// merged is left alone, and told. The switch's scope is the paths that change; it is
	// nil where none does.
	PrepareRevert(ctx context.Context, req RevertRequest) (Switch, Reverted, error)
}

// RevertRequest says which writes to take back.
type RevertRequest struct {
	ID     RestoreID
	Base   SnapshotID // the present state
	Writes []Write    // in the journal's order, as Writes gives them
	// Force has a path that cannot be merged put back to what it was before the
	// first of its writes, whatever else was written to it.
	Force bool
}

// Reverted says what a revert comes to. Paths are in their order. What lies in a folder
// that the app's owner may not look into is told by that folder's path.
type Reverted struct {
	Paths  []string // those that will be other than in base
	Merged []string // those of them that will be what they never were
	Left   []Clash  // those that are left alone
}

// Clash is a path that is not taken back.
type Clash struct {
	Path string
	Why  ClashReason
}

// ClashReason says why a path is left alone.
type ClashReason string

// The reasons. Those after Edited hold against Force too, and so does Rights for a folder.
const (
	Rights   ClashReason = "rights"    // owner, special bits, capabilities or access list would come with a content that never had them
	Overlaps ClashReason = "overlaps"  // the same lines, or attributes, were changed by others
	Binary   ClashReason = "binary"    // others changed it, and it is not text
	TooLarge ClashReason = "too_large" // others changed it, and it is too large to be merged
	Retyped  ClashReason = "retyped"   // it is another kind of thing now
	Removed  ClashReason = "removed"   // others removed what the writes had left
	Replaced ClashReason = "replaced"  // the writes removed it, and others put something there
	Edited   ClashReason = "edited"    // the writes made it, and others changed it

	NotEmpty ClashReason = "not_empty" // a folder that holds what others put there
	NoParent ClashReason = "no_parent" // there is no folder for it any more
	Excluded ClashReason = "excluded"  // it is not looked after any more
)

// Words is the reason as half a sentence about the path.
func (r ClashReason) Words() string {
	switch r {
	case Rights:
		return "its owner, special bits, capabilities or access list would come together with what they were never recorded with"
	case Overlaps:
		return "others changed the same lines or attributes"
	case Binary:
		return "others changed it too, and it is not text"
	case TooLarge:
		return "others changed it too, and it is too large to be merged"
	case Retyped:
		return "it is another kind of thing now"
	case Removed:
		return "others have removed it since"
	case Replaced:
		return "something else is there now"
	case Edited:
		return "others have changed it since it was made"
	case NotEmpty:
		return "the folder holds what others put there"
	case NoParent:
		return "the folder for it is gone"
	case Excluded:
		return "it is excluded now"
	}
	return string(r)
}

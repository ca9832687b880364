package snap

import "context"

// Reverter is a [Journal] whose writes can be undone one by one, even if others have
// written to the same paths since.
//
//	writes, _ := j.Writes(ctx, start, end)        // what a call wrote
//	base, _ := d.Capture(ctx, snap.CaptureRequest{ID: "fs-4"})
//	sw, how, _ := r.PrepareRevert(ctx, snap.RevertRequest{ID: "op-8", Base: base.ID, Writes: writes})
//	sw.Commit(ctx)                                 // from here on an ordinary switch
type Reverter interface {
	// PrepareRevert prepares a switch that undoes writes in the base. If a path is in the base as the last of its writes left it,
	// the path returns to its state before the first of them. If other writes also changed the path, PrepareRevert keeps these and
	// removes the writes of req: it merges attributes one by one, and text by lines if the path is an ordinary file of the app's
	// owner. Owner, special bits, capabilities and access lists return only together with the content that they were recorded
	// with. A path that cannot be merged stays as it is and is reported as a conflict. A git repository that others changed too
	// stays as a whole. Objects that the writes added to a repository stay. The switch's scope is the paths that change; the
	// switch is nil if no path changes.
	PrepareRevert(ctx context.Context, req RevertRequest) (Switch, Reverted, error)
}

// RevertRequest says which writes to undo.
type RevertRequest struct {
	ID     RestoreID
	Base   SnapshotID // the present state
	Writes []Write    // in the journal's order, as Journal.Writes returns them
	// Force restores a path that cannot be merged to its state before the first of its writes, and discards the other writes to
	// it.
	Force bool
}

// Reverted is the outcome of PrepareRevert. Each list is sorted by path. Paths in a folder
// that the app's owner may not read are reported as that folder.
type Reverted struct {
	Paths  []string   // the paths that will differ from base
	Merged []string   // the paths among them whose content is the result of a merge
	Left   []Conflict // the paths that stay as they are
}

// Conflict is a path that a revert leaves as it is.
type Conflict struct {
	Path string
	Why  ConflictReason
}

// ConflictReason says why a revert leaves a path as it is.
type ConflictReason string

// The reasons. Force does not override those that are not Forcible, nor Rights for a folder, nor Retyped for a mount point.
const (
	Rights   ConflictReason = "rights"    // owner, special bits, capabilities or access list would be combined with content that never had them
	Overlaps ConflictReason = "overlaps"  // others changed the same lines or attributes
	Binary   ConflictReason = "binary"    // others changed the file, and it is not text
	TooLarge ConflictReason = "too_large" // others changed the file, and it is too large to be merged
	Retyped  ConflictReason = "retyped"   // the path is of another type now (file, folder, link)
	Removed  ConflictReason = "removed"   // the writes changed the path, and others removed it
	Replaced ConflictReason = "replaced"  // the writes removed the path, and others created something there
	Edited   ConflictReason = "edited"    // the writes created the path, and others changed it

	NotEmpty ConflictReason = "not_empty" // a folder that holds files of others
	NoParent ConflictReason = "no_parent" // the path's folder does not exist any more
	Excluded ConflictReason = "excluded"  // the path is excluded from checkpoints now

	// Repository is the reason for a git repository's folder: everything in it stays, because others changed something in it, or
	// because something in it has to stay.
	Repository ConflictReason = "repository"
)

// Forcible reports whether force may restore a path that is left for this reason.
func (r ConflictReason) Forcible() bool {
	return r != NotEmpty && r != NoParent && r != Excluded && r != Repository
}

// Words returns the reason as half a sentence about the path.
func (r ConflictReason) Words() string {
	switch r {
	case Rights:
		return "its owner, special bits, capabilities or access list would be combined with content that never had them"
	case Overlaps:
		return "others changed the same lines or attributes"
	case Binary:
		return "others changed it too, and it is not text"
	case TooLarge:
		return "others changed it too, and it is too large to be merged"
	case Retyped:
		return "it is of another type now (file, folder or link)"
	case Removed:
		return "others removed it since"
	case Replaced:
		return "others created something else there since"
	case Edited:
		return "others changed it since it was created"
	case NotEmpty:
		return "the folder holds files of others"
	case NoParent:
		return "its folder is gone"
	case Excluded:
		return "it is excluded from checkpoints now"
	case Repository:
		return "others changed this git repository too, or something in it has to stay; it goes back as a whole or not at all"
	}
	return string(r)
}

package snap

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"mulligan/errs"
)

// Layer names one layer of an app: "files", "disk", or "db:" and the database's name.
type Layer string

// The layers that every app has at most one of.
const (
	Files Layer = "files"
	Disk  Layer = "disk"
)

// DB is the layer of the database called name.
func DB(name string) Layer { return Layer("db:" + name) }

// SnapshotID names a snapshot within its driver. The daemon makes it up: a
// prefix for the kind of layer ("fs-", "vm-", "db-") and random hex digits.
type SnapshotID string

// RestoreID names a switch within its driver.
type RestoreID string

// Hash is the BLAKE3-256 digest of a state; the zero Hash means "none".
type Hash [32]byte

// IsZero reports whether h stands for no digest at all.
func (h Hash) IsZero() bool { return h == Hash{} }

// String gives h as "blake3:" and 64 hex digits, or "" for the zero Hash.
func (h Hash) String() string {
	if h.IsZero() {
		return ""
	}
	return "blake3:" + hex.EncodeToString(h[:])
}

// ErrChanged is what Commit and Capture fail with when the live state moved
// under them: the base is no longer the present, or a file never held still.
// Its kind is errs.Conflict.
var ErrChanged = errors.New("the live state changed meanwhile")

// Changed is an error of kind conflict that is ErrChanged, about object.
func Changed(op, object string) error {
	return &errs.Error{
		Kind: errs.Conflict, Op: op, Message: object + " keeps changing",
		Hint: "stop what writes to it, or exclude it, and try again", Err: ErrChanged,
	}
}

// Driver captures and restores one layer of one app. See the package comment
// for the lifecycle. Methods are safe for concurrent use, but the daemon runs
// at most one of Capture, Prepare and a Switch's methods at a time per driver.
//
// Errors are of type *errs.Error (possibly wrapped). An unknown id is
// errs.NotFound, damage in what is stored is errs.Corrupt, a database or file
// locked by somebody else is errs.Busy.
type Driver interface {
	// Capture stores the live state under req.ID, durably.
	Capture(ctx context.Context, req CaptureRequest) (Snapshot, error)

	// Prepare makes ready to restore req.Target; the live state stays as it is.
	// Preparing again under an id that is prepared already replaces it.
	Prepare(ctx context.Context, req RestoreRequest) (Switch, error)

	// Resume returns the switch that an earlier process prepared under id, or
	// errs.NotFound when it never got that far or was finished.
	Resume(ctx context.Context, id RestoreID) (Switch, error)

	// Verify checks what is stored for a snapshot: that it is all there
	// (Quick), or every byte of it against its hashes (Full). Damage is
	// errs.Corrupt. The live state is not looked at.
	Verify(ctx context.Context, id SnapshotID, depth Depth) error

	// Size is the number of bytes on disk that deleting exactly these snapshots
	// together would free, now.
	Size(ctx context.Context, ids ...SnapshotID) (int64, error)

	// Delete drops a snapshot. One that is not there is no error. Space may
	// come back later, in the background.
	Delete(ctx context.Context, id SnapshotID) error

	// Sweep drops the snapshots and switches that gone names, as far as they are
	// there, and what a crash left half made: files that no record of the driver's own
	// names. It drops no snapshot, and no switch that Resume would find, that is
	// not named: not to be known is no reason to go. The daemon calls it before it starts any
	// other work on the layer.
	Sweep(ctx context.Context, gone Gone) error
}

// Switch is one restore under way. Each method may be called again.
type Switch interface {
	// Changes says what Commit will change (or has changed), at most limit
	// entries; total counts all.
	Changes(limit int) (list []Change, total int)

	// Stale reports whether the live state is no longer the base. With the app
	// stopped, false stays false unless somebody else writes.
	Stale(ctx context.Context) (bool, error)

	// Commit makes the live state the target.
	Commit(ctx context.Context) error

	// Check hashes the live state again and compares it with what was asked
	// for: the target after Commit, the base after Undo.
	Check(ctx context.Context) (Proof, error)

	// Undo makes the live state the base again, and takes back what was written
	// since Commit with it. Where no Commit was begun it changes nothing: what was
	// written since the base stays.
	Undo(ctx context.Context) error

	// Finish drops what was kept for Undo; afterwards the id is unknown.
	Finish(ctx context.Context) error
}

// CaptureRequest says how to capture.
type CaptureRequest struct {
	ID SnapshotID
	// Quiesced tells the driver that the app is stopped.
	Quiesced bool
	// Revive allows the driver to start a server of the layer that is down. Only a rollback
	// sets it: what is down may have been stopped on purpose, and no other capture is worth starting it.
	Revive bool
	// At asks a Journal for the state at an earlier position; "" is the present.
	At Mark
}

// Snapshot is what a driver says of a state that it holds.
type Snapshot struct {
	ID     SnapshotID
	Driver string // "files", "sqlite", "postgres", …
	// Hash proves the content: equal hashes mean equal states. It is zero for
	// a marker whose content was not read.
	Hash Hash
	// Position is the place in the layer's log that a marker stands for (a
	// timeline and LSN, a binlog position), in the engine's own notation.
	Position string
	// Quiesced: nothing was writing while this was captured.
	Quiesced bool
	// Raw: the driver could not read the state, and kept the bytes that lie there.
	Raw     bool
	Created time.Time
	// Warnings say what the snapshot lacks, in whole sentences.
	Warnings []string
}

// RestoreRequest says what to restore.
type RestoreRequest struct {
	ID     RestoreID
	Target SnapshotID
	// Base is the snapshot that holds the present state.
	Base SnapshotID
}

// Operation is what happened to a thing between target and base, and what a
// restore undoes.
type Operation string

// The operations.
const (
	Create Operation = "create" // it is in the base only: the restore removes it
	Modify Operation = "modify"
	Delete Operation = "delete" // it is in the target only: the restore brings it back
)

// Change is one thing that a restore changes.
type Change struct {
	// Path is relative to the workspace for files, and the name of the thing
	// (database, table, disk) elsewhere. It may hold any bytes but NUL.
	Path      string
	Operation Operation
	// Summary is one short phrase: "content, mode", "12 rows fewer".
	Summary string
}

// Proof is the outcome of a Check. For a restore of a part (a scope) the hashes
// are over that part.
type Proof struct {
	Pre   Hash // the base's
	Post  Hash // of the live state as just read
	Want  Hash // the target's, or after Undo the base's
	Match bool // Post equals Want
	// Shallow: no contents were read. The hashes stand for marks of the state alone, as
	// for a place in a log.
	Shallow bool
	// Notes are things that a reader of the receipt should know.
	Notes []string
}

// Depth is how thorough a Verify is.
type Depth int

// The depths.
const (
	Quick Depth = iota // everything that should be stored is there
	Full               // every byte is read and hashed
)

// Gone lists what a Sweep drops: what was deleted, what a capture that was cut short
// may have left, and the switches of operations that ended.
type Gone struct {
	Snapshots []SnapshotID
	Restores  []RestoreID
}

// Differ is a driver that can say what differs between two states.
type Differ interface {
	// Diff compares from with to; an empty id is the live state. paths, where
	// given, limits it to those and what lies below them.
	Diff(ctx context.Context, from, to SnapshotID, paths []string) ([]Change, error)
}

// Veiler is a driver that sees more than the app's owner may.
type Veiler interface {
	// Seen gives paths, each once, as the app's owner may see them: one in a folder
	// that the owner may not look into is given as that folder.
	Seen(paths []string) ([]string, error)
}

// ScopedPreparer is a driver that can restore a part of a state.
type ScopedPreparer interface {
	// PrepareScoped is Prepare for only the given paths and what lies below
	// them; the rest of the live state is neither changed nor checked.
	PrepareScoped(ctx context.Context, req RestoreRequest, paths []string) (Switch, error)
}

// Warmer is a driver that can shorten the next Capture, or a Switch that can
// shorten the Commit, by doing part of its work while the app still runs. Nothing
// is promised, and no snapshot is made.
type Warmer interface {
	Warm(ctx context.Context) error
}

// Maintainer is a driver with work to do in the background.
type Maintainer interface {
	// Maintain does what is due. It is called every few seconds, also while other
	// methods run, and ends early when ctx does.
	Maintain(ctx context.Context) error
}

// Leaver is a driver that ends a restore although something of it cannot be dropped,
// as where the server that holds it is away or refuses to.
type Leaver interface {
	// Leftovers tries again to drop what was left behind, and names what is still
	// there and why, each in a phrase. Where nothing was left it is quick.
	Leftovers(ctx context.Context) ([]string, error)
}

// Salvager is a driver that can keep a live state that it cannot read, as of a database
// whose file somebody wrote over.
type Salvager interface {
	// Salvage is Capture of the bytes that lie there, whatever they are, with the app
	// stopped: nothing of them is read for its sense. Its Snapshot is Raw. A switch may
	// have it as its base, so that Undo brings back just these bytes, and as its target.
	// Nothing lying there is a state too. What cannot be kept even so is an error, as
	// where the bytes are on a server that is away.
	Salvage(ctx context.Context, req CaptureRequest) (Snapshot, error)
}

// Surveyor is a driver that can say of the live state, without reading contents, what of
// it cannot be captured or could not be given back.
type Surveyor interface {
	Survey(ctx context.Context) ([]Gap, error)
}

// Gap is something that a Survey found.
type Gap struct {
	What   string // a whole sentence
	Remedy string // what to do about it, as a sentence without its end
	Blocks bool   // no snapshot can be taken while it is there
}

// String is the gap as one sentence.
func (g Gap) String() string { return strings.TrimSuffix(g.What, ".") + ": " + g.Remedy + "." }

// Foreseer is a driver that can tell early what Prepare would refuse.
type Foreseer interface {
	// Foresee returns the error that Prepare would, with the present state as its base, as
	// far as that can be told cheaply: nil promises nothing. It makes no snapshot.
	// paths, where given, are those of a scope.
	Foresee(ctx context.Context, target SnapshotID, paths []string) error
}

// SalvagerOf returns the Salvager that d is. A driver that hands its work to another
// one says by a method Salvager whether that is one.
func SalvagerOf(d Driver) (Salvager, bool) {
	if outer, ok := d.(interface{ Salvager() (Salvager, bool) }); ok {
		return outer.Salvager()
	}
	s, ok := d.(Salvager)
	return s, ok
}

// SizeEstimator is a driver that can tell how large the live state is without reading
// it, so that a first capture that cannot fit is not begun.
type SizeEstimator interface {
	// EstimateSize is the size of the live state in bytes, as it lies there.
	EstimateSize(ctx context.Context) (int64, error)
}

// LiveCapturer is a driver whose Capture of a running app may be consistent all the same.
type LiveCapturer interface {
	// CapturesLive reports whether a Capture made while the app runs is a state
	// that the app itself could have been stopped in.
	CapturesLive() bool
}

// MemoryCapturer is a driver whose layer has a memory that a restore can go on
// from, instead of starting anew.
type MemoryCapturer interface {
	// CaptureMemory is Capture that keeps the memory too, if there is one now.
	CaptureMemory(ctx context.Context, req CaptureRequest) (Snapshot, error)
}

// Rehearser is a driver that can restore a snapshot beside the live state, to find out
// whether it can be restored.
type Rehearser interface {
	// Shape names what decides, beside contents, whether a snapshot can be restored, as a
	// database's schema: of snapshots with equal shapes one rehearsal is enough. "" is a
	// snapshot that is not rehearsed.
	Shape(id SnapshotID) (string, error)

	// Rehearse makes the snapshot's state beside the live one, compares the two states, and
	// drops what it made, also where it fails. The live state is not touched. as must be
	// fresh: it is the id of no switch, before and afterwards. Rehearse may run beside all
	// methods but Sweep, which drops what a process that died in a rehearsal left.
	Rehearse(ctx context.Context, as RestoreID, id SnapshotID) error
}

// Opener is a driver whose states consist of files that can be read one by one.
type Opener interface {
	// OpenPath opens a regular file of a snapshot, or of the live state when id
	// is empty, and gives its size in bytes. Anything else there, or nothing, is
	// errs.NotFound.
	OpenPath(ctx context.Context, id SnapshotID, path string) (io.ReadCloser, int64, error)
}

// Lister is a driver whose states consist of files in folders.
type Lister interface {
	// Names lists what lies directly in the folder dir, "." being the top, of a snapshot,
	// or of the live state when id is empty, in no order. Where there is no such folder
	// there are none. What the app's owner may not look into is errs.Denied.
	Names(ctx context.Context, id SnapshotID, dir string) ([]string, error)
}

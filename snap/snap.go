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

// Layer names one layer of an app: "files", "disk", "volume:" and the name of a volume, or "db:" and the name of a database.
type Layer string

// The layers that every app has at most one of.
const (
	Files Layer = "files"
	Disk  Layer = "disk"
)

// DB is the layer of the database called name.
func DB(name string) Layer { return Layer("db:" + name) }

// Volume is the layer of the volume called name.
func Volume(name string) Layer { return Layer("volume:" + name) }

// SnapshotID names a snapshot within its driver. The daemon generates it: a
// prefix for the kind of layer ("fs-", "vm-", "vol-", "db-") and random hex digits.
type SnapshotID string

// RestoreID names a switch within its driver.
type RestoreID string

// Hash is the BLAKE3-256 digest of a state; the zero Hash means "none".
type Hash [32]byte

// IsZero reports whether h is the zero Hash, which stands for no state.
func (h Hash) IsZero() bool { return h == Hash{} }

// String returns h as "blake3:" and 64 hex digits, or "" for the zero Hash.
func (h Hash) String() string {
	if h.IsZero() {
		return ""
	}
	return "blake3:" + hex.EncodeToString(h[:])
}

// ErrChanged is the error of Commit and Capture if the live state changed while they worked: the live state is no longer the
// base, a file was written to during every attempt to read it, or what writes to it cannot be held still. Its kind is errs.Conflict.
var ErrChanged = errors.New("the live state changed meanwhile")

// Changed returns an error of kind errs.Conflict that wraps ErrChanged and names object.
func Changed(op, object string) error {
	return &errs.Error{
		Kind: errs.Conflict, Op: op, Message: object + " keeps changing",
		Hint: "stop what writes to it, or exclude it, and try again", Err: ErrChanged,
	}
}

// Driver captures and restores one layer of one app. The package comment describes the life of a snapshot and of a switch.
// Methods are safe for concurrent use, but the daemon runs at most one of Capture, Prepare and a Switch's methods at a time per
// driver.
//
// Errors are of type *errs.Error (possibly wrapped). The kind is errs.NotFound for an unknown id, errs.Corrupt for damaged
// stored data, and errs.Busy for a database or file that another process has locked.
type Driver interface {
	// Capture stores the live state under req.ID, durably.
	Capture(ctx context.Context, req CaptureRequest) (Snapshot, error)

	// Prepare prepares to restore req.Target; the live state stays as it is. Preparing
	// again under the id of a prepared switch replaces that switch.
	Prepare(ctx context.Context, req RestoreRequest) (Switch, error)

	// Resume returns the switch that an earlier process prepared under id. It returns
	// errs.NotFound if the preparation was not completed or the switch was finished.
	Resume(ctx context.Context, id RestoreID) (Switch, error)

	// Verify checks the stored data of a snapshot: that every part is present (Quick), or every byte against its hash (Full). The
	// error for damage is of kind errs.Corrupt. Verify does not read the live state.
	Verify(ctx context.Context, id SnapshotID, depth Depth) error

	// Size returns the bytes on disk that deleting exactly these snapshots together would free now.
	Size(ctx context.Context, ids ...SnapshotID) (int64, error)

	// Delete drops a snapshot; an unknown id is no error. Space may be freed later, in the
	// background.
	Delete(ctx context.Context, id SnapshotID) error

	// Sweep drops the snapshots and switches that gone names, as far as they exist, and files left by a crash to which none of the
	// driver's records refers. Sweep keeps every other snapshot, and every other switch that Resume would find. The daemon calls
	// Sweep before any other work on the layer.
	Sweep(ctx context.Context, gone Gone) error
}

// Switch is one restore under way. Each method may be called again after it succeeded or failed.
type Switch interface {
	// Changes returns what Commit will change (or has changed), at most limit entries.
	// total counts all of them.
	Changes(limit int) (list []Change, total int)

	// Stale reports whether the live state is no longer the base. If the app is stopped and no other process writes, the base
	// stays current after a result of false.
	Stale(ctx context.Context) (bool, error)

	// Commit makes the live state the target.
	Commit(ctx context.Context) error

	// Check hashes the live state again and compares it with the state that it should be: the target after Commit, the base after
	// Undo.
	Check(ctx context.Context) (Proof, error)

	// Undo makes the live state the base again, and discards what was written since Commit.
	// If no Commit was begun, Undo changes nothing: writes made since the base stay.
	Undo(ctx context.Context) error

	// Finish drops everything that was kept for Undo; afterwards the id is unknown.
	Finish(ctx context.Context) error
}

// CaptureRequest says which state to capture, and how.
type CaptureRequest struct {
	ID SnapshotID
	// Quiesced tells the driver that the app is stopped.
	Quiesced bool
	// Revive allows the driver to start a server of the layer that is down. Only a rollback sets Revive: the server may have been
	// stopped on purpose, and other captures leave it stopped.
	Revive bool
	// Paths are what a restore needs of the snapshot of a workspace; none: everything. What lies outside of them and cannot be read is left out: a restore
	// to the snapshot leaves it as it is, and a warning names it.
	Paths []string
	// At asks a Journal for the state at an earlier position; "" is the present.
	At Mark
	// Read, if it is set, is called as soon as the live state has been read, while the snapshot is still being stored: the app may go on then. A driver
	// that need not hold an app still does not call it.
	Read func()
}

// Snapshot describes a state that a driver holds.
type Snapshot struct {
	ID     SnapshotID
	Driver string // "files", "sqlite", "postgres", …
	// Hash proves the content: equal hashes mean equal states. It is zero for a marker
	// whose content was not read.
	Hash Hash
	// Position is the marker's position in the layer's log (a timeline and LSN, a binlog position), in the engine's own notation.
	Position string
	// Quiesced: the app was stopped during the capture.
	Quiesced bool
	// Raw: the driver could not read the state as its engine does, and kept the files' raw bytes.
	Raw     bool
	Created time.Time
	// Warnings say, in whole sentences, which parts of the live state the snapshot lacks.
	Warnings []string
}

// RestoreRequest says which snapshot to restore.
type RestoreRequest struct {
	ID     RestoreID
	Target SnapshotID
	// Base is the snapshot of the present state.
	Base SnapshotID
}

// Operation is what was done to one thing between the target and the base. The restore undoes it.
type Operation string

// The operations.
const (
	Create Operation = "create" // the thing is in the base only: the restore removes it
	Modify Operation = "modify"
	Delete Operation = "delete" // the thing is in the target only: the restore brings it back
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

// Proof is the outcome of a Check. If the restore has a scope, the hashes cover only that
// scope.
type Proof struct {
	Pre   Hash // hash of the base
	Post  Hash // hash of the live state as just read
	Want  Hash // hash of the target, or after Undo of the base
	Match bool // Post equals Want
	// Shallow: no contents were read. The hashes are those of positions in a log.
	Shallow bool
	// Notes are remarks for the reader of the receipt, in whole sentences.
	Notes []string
}

// Depth is how thorough a Verify is.
type Depth int

// The depths.
const (
	Quick Depth = iota // every part that should be stored is present
	Full               // every byte is read and hashed
)

// Gone lists what a Sweep drops: deleted snapshots, captures that were interrupted, and the
// switches of operations that ended.
type Gone struct {
	Snapshots []SnapshotID
	Restores  []RestoreID
}

// Differ is a driver that can compare two states.
type Differ interface {
	// Diff compares from with to; an empty id is the live state. If paths is not empty,
	// only these paths and those below them are compared.
	Diff(ctx context.Context, from, to SnapshotID, paths []string) ([]Change, error)
}

// PathRedactor is a driver that can read more of the layer than the app's owner may.
type PathRedactor interface {
	// RedactPaths returns paths, without duplicates, as the app's owner may see them: a path in a
	// folder that the owner may not read becomes the path of that folder.
	RedactPaths(paths []string) ([]string, error)
}

// ScopedPreparer is a driver that can restore a part of a state.
type ScopedPreparer interface {
	// PrepareScoped is Prepare for the given paths and everything below them. The rest of the live state is neither changed nor
	// checked.
	PrepareScoped(ctx context.Context, req RestoreRequest, paths []string) (Switch, error)
}

// Warmer is a driver that can shorten the next Capture, or a Switch that can shorten the
// Commit, by doing part of the work while the app still runs. It makes no snapshot and
// promises nothing.
type Warmer interface {
	Warm(ctx context.Context) error
}

// Leaver is a Switch that may leave a folder as it is because another layer's files are in it.
type Leaver interface {
	// Left reports whether the last Commit or Undo left such a folder, and the other layer's files are gone now: the same method removes it if it is called
	// again.
	Left(ctx context.Context) (bool, error)
}

// Maintainer is a driver with work to do in the background.
type Maintainer interface {
	// Maintain does the work that is due. The daemon calls Maintain every few seconds, also while other methods run. Maintain
	// returns early when ctx ends.
	Maintain(ctx context.Context) error
}

// LeftoverDropper is a driver that can finish a restore although part of it cannot be dropped, for
// example because the server that holds the part is down.
type LeftoverDropper interface {
	// DropLeftovers tries again to drop the parts left behind. It returns one phrase for each part that still exists, with the
	// reason. It is quick if nothing is left.
	DropLeftovers(ctx context.Context) ([]string, error)
}

// Salvager is a driver that can keep a live state that it cannot read, for example a
// database file that was overwritten.
type Salvager interface {
	// Salvage captures the raw bytes of the live state, with the app stopped, and does not interpret them. The Snapshot has Raw
	// set. It may be a switch's base, so that Undo restores exactly these bytes, or a switch's target. Salvage also captures a
	// missing file as such. Salvage returns an error if the bytes cannot be read, for example because they are on a server that is
	// down.
	Salvage(ctx context.Context, req CaptureRequest) (Snapshot, error)
}

// GapFinder is a driver that can find, without reading contents, the parts of the live state that cannot be captured or could
// not be restored.
type GapFinder interface {
	FindGaps(ctx context.Context) ([]Gap, error)
}

// Gap is one finding of FindGaps.
type Gap struct {
	What   string // the gap, as a whole sentence
	Remedy string // how to remove the gap, as a sentence without its full stop
	Blocks bool   // no snapshot can be taken until the gap is removed
}

// String returns the gap as one sentence.
func (g Gap) String() string { return strings.TrimSuffix(g.What, ".") + ": " + g.Remedy + "." }

// Prechecker is a driver that can predict cheaply whether Prepare would refuse.
type Prechecker interface {
	// Precheck returns the error that Prepare would return with the present state as its base, as far as this can be found
	// cheaply: after nil, Prepare may still fail. It looks whether the stored data that the restore needs is present. Precheck makes no
	// snapshot. If paths is not empty, it has the paths of a scope.
	Precheck(ctx context.Context, target SnapshotID, paths []string) error
}

// SalvagerOf returns d as a Salvager. A driver that delegates to another one has a method
// Salvager that returns the other's.
func SalvagerOf(d Driver) (Salvager, bool) {
	if outer, ok := d.(interface{ Salvager() (Salvager, bool) }); ok {
		return outer.Salvager()
	}
	s, ok := d.(Salvager)
	return s, ok
}

// SizeEstimator is a driver that can estimate the size of the live state without reading it. With the estimate, the daemon does
// not begin a first capture for which there is no space.
type SizeEstimator interface {
	// EstimateSize returns the size of the live state on disk, in bytes.
	EstimateSize(ctx context.Context) (int64, error)
}

// LiveCapturer is a driver whose Capture of a running app may be consistent.
type LiveCapturer interface {
	// CapturesLive reports whether a Capture of the running app is consistent: a state in which the app could have been stopped.
	CapturesLive() bool
}

// MemoryCapturer is a driver whose layer has memory (of a virtual machine) from which a
// restore can resume the app instead of starting it anew.
type MemoryCapturer interface {
	// CaptureMemory is Capture that also keeps the memory, if the virtual machine is running.
	CaptureMemory(ctx context.Context, req CaptureRequest) (Snapshot, error)
}

// Rehearser is a driver that can restore a snapshot beside the live state, to test whether
// the snapshot can be restored.
type Rehearser interface {
	// Shape returns a name for everything except contents that decides whether a snapshot can be restored, such as a database's
	// schema: one rehearsal covers all snapshots of equal shape. "" means that the snapshot is not rehearsed.
	Shape(id SnapshotID) (string, error)

	// Rehearse builds the snapshot's state beside the live state, compares it with the snapshot, and drops it again, also after an
	// error. The live state is not touched. The id as must never be that of a switch. Rehearse may run beside all methods except
	// Sweep, which drops the files that an interrupted rehearsal left.
	Rehearse(ctx context.Context, as RestoreID, id SnapshotID) error
}

// Opener is a driver whose states consist of files that can be read individually.
type Opener interface {
	// OpenPath opens a regular file of a snapshot, or of the live state if id is empty, and
	// returns its size in bytes. It returns errs.NotFound if there is no regular file at path.
	OpenPath(ctx context.Context, id SnapshotID, path string) (io.ReadCloser, int64, error)
}

// Adopter is a driver that can take over a snapshot of another app's driver without copying contents, because both keep their
// snapshots in the same content store.
type Adopter interface {
	// Adopt stores the snapshot id of the driver from as a snapshot of this driver, under the id as. The new snapshot does not
	// depend on that of from. If a snapshot as exists, Adopt replaces it. from must be a driver of the same kind.
	Adopt(ctx context.Context, from Driver, id, as SnapshotID) (Snapshot, error)
}

// ServerSource is a driver that manages the files of its database's server. It makes the data of servers that forks of the app have for
// themselves, and takes them back.
type ServerSource interface {
	// SeedServer makes the data of a server called name, with the state of the snapshot id. It replaces what an earlier call left.
	SeedServer(ctx context.Context, name string, id SnapshotID) error
	// AdoptServer stores the state of such a server, which was shut down in order, as a snapshot.
	AdoptServer(ctx context.Context, name string, as SnapshotID) (Snapshot, error)
}

// ServerSourceOf returns d as a ServerSource. A driver that delegates to another one has a method ServerSource that returns the
// other's.
func ServerSourceOf(d Driver) (ServerSource, bool) {
	if outer, ok := d.(interface{ ServerSource() (ServerSource, bool) }); ok {
		return outer.ServerSource()
	}
	s, ok := d.(ServerSource)
	return s, ok
}

// Seeder is a driver that can bring a live state that nobody uses to a snapshot without a plan, and with the help of another app's live
// state.
type Seeder interface {
	// Seed makes the live state that of the snapshot id. It copies those parts of the live state of from that are the same. After an
	// error or a crash, the live state is neither the old nor the new one, and the caller discards it, or calls Seed again.
	Seed(ctx context.Context, from Driver, id SnapshotID) error
}

// Lister is a driver whose states consist of files in folders.
type Lister interface {
	// Names returns the names in the folder dir ("." is the top) of a snapshot, or of the live
	// state if id is empty, in no order. A missing folder has no names. A folder that the app's
	// owner may not read is errs.Denied.
	Names(ctx context.Context, id SnapshotID, dir string) ([]string, error)
}

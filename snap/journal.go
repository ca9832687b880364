package snap

import (
	"context"
	"time"
)

// Mark is a position in a layer's journal, in the driver's own notation. The journal orders the marks of one layer. A mark
// stays valid across restarts, until the journal is trimmed beyond it.
type Mark string

// Journal is a driver that keeps a log of its layer's changes as they happen, contents included. A snapshot of a position that
// is still in the log is a marker: [CaptureRequest].At names the position, and nothing is copied.
//
//	go j.Follow(ctx, func(b snap.Batch) { … })   // for as long as the app is registered
//	start, _ := j.Flush(ctx)                      // a turn begins
//	…                                             // the agent works; batches are notified
//	d.Capture(ctx, snap.CaptureRequest{ID: "fs-9", At: start}) // the state before the first of them
//	end, _ := j.Flush(ctx)                        // the turn ends
//	writes, _ := j.Writes(ctx, start, end)        // what it changed
type Journal interface {
	// Follow keeps the journal current until ctx ends: it stores each change of the live
	// state shortly after the path has been quiet. It calls notify with each batch of changes
	// as it sees them, from one goroutine and in order; notify must not block. After lost
	// events, or while the workspace is missing, Follow rescans the whole workspace and
	// reports so in Following. If notify is nil, nobody needs the states between two calls of Flush or Capture, nor the journal
	// that is there: Follow notes which paths change, reads them at those calls, and deletes the journal at its beginning and end.
	Follow(ctx context.Context, notify func(Batch)) error

	// Following reports how current the journal is.
	Following() Following

	// Flush is a barrier. When it returns, every change that was made before the call is in
	// the journal and was passed to notify, and the mark is the position after the last of
	// them. If ctx ends first, Flush returns an error and the position reached so far. The error is an UnreadableError if only what cannot be
	// read is missing.
	Flush(ctx context.Context) (Mark, error)

	// Writes returns the changes after the position from, up to and including the position to, oldest first. A path that changed
	// several times is listed several times.
	Writes(ctx context.Context, from, to Mark) ([]Write, error)

	// Trim lets the journal drop positions before oldest. The positions of markers stay readable.
	Trim(ctx context.Context, oldest Mark) error

	// TrimSize returns the bytes that deleting these snapshots and trimming to oldest, both together, would free. If oldest is "",
	// nothing is trimmed.
	TrimSize(ctx context.Context, oldest Mark, ids ...SnapshotID) (int64, error)
}

// UnreadableError is the error of a Flush that took in every change but those of what may not be read, or cannot be because the disk is damaged.
type UnreadableError struct{ Err error }

func (e UnreadableError) Error() string { return e.Err.Error() }

func (e UnreadableError) Unwrap() error { return e.Err }

// Batch is a group of changes that happened close together.
type Batch struct {
	Before Mark      // the position before the first change: the state that the changes began from
	First  time.Time // when the first change was seen
	Last   time.Time
	Paths  []string // some of the paths, as a hint: at most 16
}

// Write is one change of one path.
type Write struct {
	Path   string
	Before Hash // hash of the entry (type, attributes, content) before the change; zero: there was no entry
	After  Hash // hash of the entry after the change; zero: the entry was removed
	At     Mark
	Seen   time.Time
}

// FollowState says how current a journal is.
type FollowState string

// The states.
const (
	Watching   FollowState = "watching"   // current, except for paths that are still being written
	Rescanning FollowState = "rescanning" // events were lost: the whole workspace is being read again
	Degraded   FollowState = "degraded"   // events are not available: changes are found by scanning when Flush is called
)

// Following is the state of a journal, for people.
type Following struct {
	State   FollowState
	Detail  string // the reason for the state, in one sentence; "" while watching
	Remedy  string // what the reader can do about the state
	Short   bool   // there were not enough watches
	Pending int    // paths known to have changed and not yet stored
}

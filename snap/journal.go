package snap

import (
	"context"
	"time"
)

// Mark is a position in a layer's journal, in the driver's own notation. Marks
// of one layer are ordered by the journal; a mark stays good across restarts
// until it is trimmed away.
type Mark string

// Journal is a driver that keeps a log of its layer's changes as they happen,
// contents included. A snapshot of any position that the log still reaches is a
// marker: [CaptureRequest].At names the position, and nothing is copied.
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
	// reports so in Following.
	Follow(ctx context.Context, notify func(Batch)) error

	// Following reports how current the journal is.
	Following() Following

	// Flush is a barrier. When it returns, every change that was made before the call is in
	// the journal and was passed to notify, and the mark is the position after the last of
	// them. If ctx ends first, Flush returns an error and the position reached so far.
	Flush(ctx context.Context) (Mark, error)

	// Writes lists what changed after from, up to and including to, oldest
	// first. A path that changed several times is listed several times.
	Writes(ctx context.Context, from, to Mark) ([]Write, error)

	// Trim lets the journal drop positions before oldest. Positions that snapshots stand for
	// stay readable.
	Trim(ctx context.Context, oldest Mark) error

	// TrimSize returns how many bytes would be freed by deleting these snapshots and trimming
	// to oldest, both together. If oldest is "", nothing is trimmed.
	TrimSize(ctx context.Context, oldest Mark, ids ...SnapshotID) (int64, error)
}

// Batch is a group of changes that happened close together.
type Batch struct {
	Before Mark      // the position before the first change: the state that the changes began from
	First  time.Time // when the first was seen
	Last   time.Time
	Paths  []string // some of the paths, as a hint: at most 16
}

// Write is one change of one path.
type Write struct {
	Path   string
	Before Hash // of the entry (type, attributes, content) before; zero: there was no entry
	After  Hash // of the entry after; zero: it was removed
	At     Mark
	Seen   time.Time
}

// FollowState says how well a journal keeps up with the live state.
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
	Detail  string // why, in one sentence; "" while watching
	Remedy  string // what to do about it
	Pending int    // paths known to have changed and not yet stored
}

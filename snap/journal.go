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
	// Follow keeps the journal current until ctx ends: what changes in the live
	// state is stored shortly after it has settled. notify is told of each batch
	// of changes as it is seen, from one goroutine, in order; it must not block.
	// Trouble that can be mended (lost events, a workspace that is away) is
	// mended by looking at everything again, and shows in Following.
	Follow(ctx context.Context, notify func(Batch)) error

	// Following says how current the journal is.
	Following() Following

	// Flush is a barrier: when it returns, every change that was made before
	// the call is in the journal, notify has been told of it, and the mark is
	// the position after the last. When ctx ends first, it returns the position
	// of what is in, and an error.
	Flush(ctx context.Context) (Mark, error)

	// Writes lists what changed after from, up to and including to, oldest
	// first. A path that changed several times is listed several times.
	Writes(ctx context.Context, from, to Mark) ([]Write, error)

	// Trim tells that no position before oldest will be asked for again, but
	// for those that snapshots stand for.
	Trim(ctx context.Context, oldest Mark) error

	// TrimSize is what deleting these snapshots and trimming to oldest, both
	// together, would free, in bytes. With "" for oldest nothing is trimmed.
	TrimSize(ctx context.Context, oldest Mark, ids ...SnapshotID) (int64, error)
}

// Batch is a number of changes that happened close together.
type Batch struct {
	Before Mark      // the position before the first of them: the state that they began from
	First  time.Time // when the first was seen
	Last   time.Time
	Paths  []string // some of the paths, as a hint: at most 16
}

// Write is one change of one path.
type Write struct {
	Path   string
	Before Hash // of the entry (type, attributes, content) before; zero: there was none
	After  Hash // of the entry after; zero: it is gone
	At     Mark
	Seen   time.Time
}

// FollowState is how well a journal keeps up.
type FollowState string

// The states.
const (
	Watching   FollowState = "watching"   // current but for what has not settled yet
	Rescanning FollowState = "rescanning" // events were lost: everything is being looked at
	Degraded   FollowState = "degraded"   // it cannot watch: changes are found when it is asked for them
)

// Following is the state of a journal for people.
type Following struct {
	State   FollowState
	Detail  string // why, in one sentence; "" while watching
	Remedy  string // what to do about it
	Pending int    // paths that are known to have changed and are not stored yet
}

// Package snap is the contract between the daemon and the drivers that capture
// and restore the layers of an app.
//
// # Glossary
//
//   - app: what is protected. It has one or more layers.
//   - layer: one kind of state of one app: "files" (the workspace), "disk" (the
//     disks of its VM), "db:NAME" (one database).
//   - driver: the code for one kind of layer. A [Driver] value is bound to one
//     layer of one app; whatever several apps share (a content store, a libvirt
//     connection) is behind it.
//   - live state: what the app itself reads and writes.
//   - snapshot: one captured state of a layer. It is held by the driver under an
//     id that the daemon chose, and never changes afterwards.
//   - marker: a snapshot that copies nothing when it is taken, because the driver
//     keeps a log of the layer and the snapshot is a position in that log.
//   - base: the snapshot of a layer's live state as it was just before a restore.
//     It is what makes the restore undoable and loses nothing.
//   - rehearsal: a restore of a snapshot beside the live state, that is compared and
//     dropped again. It shows that the snapshot can be restored.
//   - switch: one restore under way, between its preparation and its end.
//
// # Life of a snapshot
//
// The daemon chooses a fresh [SnapshotID], writes down that it is about to
// capture it, and calls [Driver.Capture]. When Capture returns without an error
// the snapshot is durable, on its own, through a power cut. When it returns an
// error, or never returns because the process died, the id names nothing and
// whatever was written for it is garbage. [Driver.Sweep], called at start with
// the ids that the daemon wrote down and that came to nothing, drops that garbage. [Driver.Delete] takes
// snapshots away in any order; the others stay whole.
//
// A capture that failed is an error. A driver never answers with an older state
// because the present one could not be read.
//
// # Life of a switch
//
// A restore must be able to stop at any instant and be finished or undone by a
// new process. So a switch has an id too, given by the daemon, and every method
// may be called again after it already did its work:
//
//		Prepare ──► prepared ──Commit──► switched ──Finish──► (gone)
//		               │                    │
//		               └──────Undo──────────┴──────► undone ──Finish──► (gone)
//
//	  - [Driver.Prepare] checks the target's stored state, works out what differs
//	    between base and target, and makes ready whatever can be made ready beside
//	    the live state (staged files, a second database, a new overlay). The app
//	    still runs; the live state is not touched. The preparation is durable when
//	    Prepare returns.
//	  - A switch that is a [Warmer] then does ahead what would make Commit slower.
//	  - [Switch.Stale] asks, with the app stopped, whether the live state is still
//	    the base. If it isn't, the daemon captures a new base and prepares again:
//	    what the app wrote in between must not be lost.
//	  - [Switch.Commit] makes the live state the target. The app is stopped, so it
//	    must be quick. It refuses with [ErrChanged], before it replaces a thing
//	    that is no longer as the base has it.
//	  - [Switch.Check] reads the live state again and compares hashes.
//	  - [Switch.Undo] makes the live state the base again, from wherever Commit
//	    got to.
//	  - [Switch.Finish] drops what was kept for Undo.
//	  - [Driver.Resume] gives a new process the switch that an old one left.
//
// The daemon decides between Commit and Undo after a crash: each layer must be
// able to go either way until Finish.
//
// # Example
//
// A rollback of one layer, without its error handling:
//
//	base, _ := d.Capture(ctx, snap.CaptureRequest{ID: "fs-2"})
//	sw, _ := d.Prepare(ctx, snap.RestoreRequest{ID: "op-7", Target: "fs-1", Base: base.ID})
//	stopApp()
//	for stale, _ := sw.Stale(ctx); stale; stale, _ = sw.Stale(ctx) {
//		base, _ = d.Capture(ctx, snap.CaptureRequest{ID: "fs-3", Quiesced: true})
//		sw, _ = d.Prepare(ctx, snap.RestoreRequest{ID: "op-7", Target: "fs-1", Base: base.ID})
//	}
//	sw.Commit(ctx)
//	proof, _ := sw.Check(ctx) // proof.Match
//	startApp()
//	sw.Finish(ctx)
//
// # Optional powers
//
// What only some drivers can do is a small interface of its own, found by a type
// assertion: [Differ], [ScopedPreparer], [Opener], [Lister], [Rehearser], [Warmer], [SizeEstimator], [Surveyor], [Foreseer], [Maintainer],
// [Leaver], [LiveCapturer], [MemoryCapturer], [Salvager],
// [Journal], [Reverter].
//
// # Conformance
//
// Package snap/snaptest holds the suite that every driver passes.
package snap

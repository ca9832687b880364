// Package snap is the contract between the daemon and the drivers, which capture and restore the layers of an app.
//
// # Glossary
//
//   - app: a workspace with its unit, its VM and its databases. It has one or more
//     layers.
//   - layer: one kind of state of one app: "files" (the workspace), "disk" (the
//     disks of its VM), "volume:NAME" (one volume of containers), "db:NAME" (one
//     database).
//   - driver: the code for one kind of layer. A [Driver] value is bound to one
//     layer of one app; a resource that several apps share (a content store, a
//     libvirt connection) is behind it.
//   - live state: the part of a layer that the app itself reads and writes.
//   - snapshot: one captured state of a layer. The driver keeps it under an id
//     that the daemon chose, and it never changes afterwards.
//   - marker: a snapshot that copies nothing when it is taken, because the driver
//     keeps a log of the layer and the snapshot is a position in that log.
//   - base: the snapshot of a layer's live state taken just before a restore. Undo
//     restores it, so nothing that the app wrote is lost.
//   - rehearsal: a restore of a snapshot beside the live state, which is compared with
//     the snapshot and dropped again. It shows that the snapshot can be restored.
//   - switch: one restore under way, between its preparation and its end. Commit
//     switches the live state from the base to the target; Undo switches it back.
//
// # Life of a snapshot
//
// The daemon chooses a fresh [SnapshotID], records durably that this capture begins, and calls [Driver.Capture]. When Capture
// returns without an error, the snapshot is complete and survives a power cut. When Capture returns an error, or never returns
// because the process died, the id names no snapshot, and the data written for it is garbage. At start, the daemon calls
// [Driver.Sweep] with the ids of such captures, and Sweep drops their garbage. [Driver.Delete] drops snapshots in any order;
// the others stay complete.
//
// A capture that fails returns an error. If a driver cannot read the present state, it never returns an older one instead.
//
// # Life of a switch
//
// A restore may be interrupted at any instant, and a new process must be able to finish or undo it. Therefore the daemon gives
// each switch an id, and every method may be called again after it already did its work:
//
//		Prepare ──► prepared ──Commit──► switched ──Finish──► (gone)
//		               │                    │
//		               └──────Undo──────────┴──────► undone ──Finish──► (gone)
//
//	  - [Driver.Prepare] checks the target's stored state, computes the difference
//	    between base and target, and builds beside the live state as much as it can
//	    (staged files, a second database, a new overlay). The app still runs; the
//	    live state is not touched. The preparation is durable when Prepare returns.
//	  - A switch that is a [Warmer] can do more of Commit's work ahead of it.
//	  - [Switch.Stale] reports, with the app stopped, whether the live state is no
//	    longer the base. If so, the daemon captures a new base and prepares again:
//	    what the app wrote in between must not be lost.
//	  - [Switch.Commit] makes the live state the target. The app is stopped, so
//	    Commit must be quick. It returns [ErrChanged], before it replaces anything,
//	    if the live state is no longer the base.
//	  - [Switch.Check] reads the live state again and compares hashes.
//	  - [Switch.Undo] makes the live state the base again, however far Commit got.
//	  - [Switch.Finish] drops everything that was kept for Undo.
//	  - [Driver.Resume] returns, in a new process, the switch that an old process
//	    prepared.
//
// After a crash, the daemon decides between Commit and Undo. Until Finish, each layer must be able to do either.
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
// # Optional interfaces
//
// An ability that only some drivers have is a small interface of its own, which the daemon finds by a type assertion: [Differ],
// [ScopedPreparer], [Opener], [Lister], [Rehearser], [Warmer], [SizeEstimator], [GapFinder], [Prechecker], [Maintainer],
// [LeftoverDropper], [LiveCapturer], [MemoryCapturer], [Salvager], [Adopter], [Seeder], [Transporter],
// [PathRedactor], [Journal], [Reverter].
//
// # Conformance
//
// Package snap/snaptest has the tests that every driver must pass.
package snap

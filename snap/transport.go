package snap

import "context"

// Transporter is a driver whose snapshots can leave this host, because each of them consists of objects of a content store, or can be
// given as such ([Portable.Contents]).
//
//	p, release, _ := d.Export(ctx, "fs-1")   // on one host
//	…                                        // every object that is reachable from p.Object is sent
//	release()
//	…                                        // on another host, they are put into its content store
//	other.Import(ctx, p, "fs-9")
type Transporter interface {
	// Export returns what a snapshot consists of. Its objects stay in the content store until the caller calls release, even if the
	// snapshot is deleted meanwhile. If err is not nil, release is nil.
	Export(ctx context.Context, id SnapshotID) (p Portable, release func(), err error)

	// Import stores p as the snapshot as, and replaces a snapshot of that id. p may come from anywhere: Import checks that it is of
	// this kind of driver. The objects that are reachable from p.Object must be in the content store, and the caller must keep them
	// there until Import returns; the error is of kind errs.Corrupt if they are not. Import does not read the contents: Verify does.
	Import(ctx context.Context, p Portable, as SnapshotID) (Snapshot, error)
}

// Portable is a snapshot without its contents.
type Portable struct {
	Driver string `json:"driver"`
	// Object is the object of the content store from which all others of the snapshot are reachable.
	Object Hash `json:"-"`
	// Meta is the driver's own description of the snapshot.
	Meta []byte `json:"meta"`
	// Contents has those objects of an exported snapshot that are in no content store; nil: there are none. It may be used until the
	// snapshot is released.
	Contents Contents `json:"-"`
}

// WholeCluster is the Driver of an exported snapshot of a cluster of Postgres, as opposed to one of a database. It can be imported only where
// a cluster may be replaced.
const WholeCluster = "postgres-cluster"

// Contents are objects of a snapshot, made from what the snapshot consists of when they are asked for. Not safe for concurrent use.
type Contents interface {
	// Object is as that of *cas.Store. The error is of kind errs.NotFound if there is no such object.
	Object(h Hash) (data []byte, refs []Hash, node bool, err error)
}

// TransporterOf returns d as a Transporter. A driver that delegates to another one has a method Transporter that returns the
// other's.
func TransporterOf(d Driver) (Transporter, bool) {
	if outer, ok := d.(interface{ Transporter() (Transporter, bool) }); ok {
		return outer.Transporter()
	}
	t, ok := d.(Transporter)
	return t, ok
}

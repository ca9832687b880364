package layer

import (
	"context"
	"os"
	"slices"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk"
	"mulligan/snap/disk/forkdomain"
	"mulligan/systemd"
)

// StartsDomain reports whether the start of an app's unit starts the app's domain. A copy of such a unit would start the parent's.
func StartsDomain(unit systemd.Unit) bool {
	m, ok := unit.(*Machine)
	return ok && (m.HostStarts || m.name != "")
}

// anyDisks returns the driver of the app's domain; nil if the app has none. held is why the domain cannot be used at present.
func (s *Setup) anyDisks() (driver disks, held error) {
	l, ok := s.Layer(snap.Disk)
	if !ok {
		return nil, nil
	}
	if h, ok := l.Driver.(*Held); ok {
		l.Driver, held = h.Driver, h.Unfit()
	}
	driver, _ = l.Driver.(disks)
	return driver, held
}

// disks is anyDisks for a domain whose disks are files; nil for others.
func (s *Setup) disks() (driver *disk.Driver, held error) {
	all, held := s.anyDisks()
	driver, _ = all.(*disk.Driver)
	return driver, held
}

// CheckGuest refuses to fork an app whose domain cannot be forked.
func (s *Setup) CheckGuest(ctx context.Context) error {
	driver, held := s.anyDisks()
	if driver == nil || held != nil {
		return held
	}
	files, ok := driver.(*disk.Driver)
	if !ok {
		return errs.New(errs.Unsupported, "", "the disks of domain %s are on Ceph, and mulligan does not fork such a domain", s.Rec.Domain).
			WithHint("roll the app back instead, or fork an app without the domain")
	}
	return files.Forkable(ctx)
}

// SeedGuest makes the domain of a fork, with the disks and the memory of a checkpoint of the parent.
func (b *Binder) SeedGuest(ctx context.Context, parent *Setup, rec store.App, origin store.Checkpoint) error {
	if rec.Domain == "" {
		return nil
	}
	driver, held := parent.disks()
	if held != nil {
		return held
	}
	snapshot, ok := origin.Snapshot(snap.Disk)
	if driver == nil || !ok {
		return errs.New(errs.Conflict, "", "checkpoint %s was made before the app had the layer %s", origin.ID, snap.Disk).WithHint("use a newer checkpoint")
	}
	loan, err := driver.Lend(ctx, snapshot.ID, string(rec.ID))
	if err != nil {
		return err
	}
	return forkdomain.Make(ctx, b.forkedGuest(rec), loan)
}

func (b *Binder) forkedGuest(rec store.App) forkdomain.Config {
	parent, _ := b.record(rec.Fork.Parent) // to remove a domain, its folder is not needed
	return forkdomain.Config{
		App: string(rec.ID), Domain: rec.Domain, URI: b.LibvirtURI(rec), StateDir: b.diskState(rec.ID),
		Workspace: rec.Workspace, ParentWorkspace: parent.Workspace, Failpoint: b.opt.Failpoint,
	}
}

// record returns the record of a registered app as it is now.
func (b *Binder) record(id ipc.AppID) (rec store.App, ok bool) {
	list := b.apps()
	i := slices.IndexFunc(list, func(other store.App) bool { return other.ID == id })
	if i < 0 {
		return rec, false
	}
	return list[i], true
}

// DropGuest removes the domain of a fork, which may be incomplete, and ends the parent's loan to it. The fork's driver is closed. parent
// is nil if the parent could not be set up.
func (b *Binder) DropGuest(ctx context.Context, rec store.App, parent *Setup) error {
	b.Domains.Drop(rec.ID)
	if err := forkdomain.Remove(b.forkedGuest(rec)); err != nil {
		return err
	}
	others := map[string]bool{}
	for _, other := range b.apps() {
		if other.ID != rec.ID {
			others[string(other.ID)] = true
		}
	}
	var driver *disk.Driver
	if parent != nil {
		driver, _ = parent.disks()
	}
	mine := b.diskState(rec.ID)
	if driver == nil { // then nobody else has the parent's record of layers open, and this needs nothing of its domain
		rec.ID = rec.Fork.Parent
		var err error
		if driver, err = disk.New(b.DiskConfig(rec)); err != nil {
			return err
		}
		defer driver.Close() // it only had the record open
	}
	if err := driver.Return(ctx, others); err != nil {
		return err
	}
	return os.RemoveAll(mine) // ClearState keeps an app's folder as long as this one is there
}

// relatives returns a function that reports whether an app is rec's, one that rec is a fork of, or a fork of rec, over any number of steps:
// the disks of a fork rest on those of its parent.
func relatives(all []store.App, rec store.App) func(ipc.AppID) bool {
	parents := map[ipc.AppID]ipc.AppID{}
	for _, other := range append(slices.Clone(all), rec) {
		if other.Fork != nil {
			parents[other.ID] = other.Fork.Parent
		}
	}
	leads := func(from, to ipc.AppID) bool {
		for steps := 0; from != "" && steps <= len(parents); steps++ {
			if from == to {
				return true
			}
			from = parents[from]
		}
		return false
	}
	return func(id ipc.AppID) bool { return leads(rec.ID, id) || leads(id, rec.ID) }
}

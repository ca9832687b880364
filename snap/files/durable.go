package files

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Durability of an apply. Files are synced one by one, each by its own
// descriptor, and side by side: syncs that wait at the same time share a commit
// of the filesystem's journal and a flush of the disk, and nobody waits for what
// others have written. A sync of the whole filesystem would.

const (
	syncers   = 64   // syncs at a time
	syncsMost = 4096 // more folders than that are synced together with everything else
)

// settle makes what a batch holds durable.
func (a *apply) settle(batch []*staged) error {
	return together(len(batch), syncers, func(i int) error {
		f := batch[i].f
		if f == nil {
			return nil
		}
		batch[i].f = nil
		return a.failed(batch[i].d.path, errors.Join(f.Sync(), f.Close()))
	})
}

// sync makes names and folders durable, and files of which the meta data alone
// changed: contents were, as they were written.
func (a *apply) sync() error {
	list := a.inPlace
	for i := range a.deltas {
		if d := &a.deltas[i]; isFolder(d.new) && !d.mounted() && !a.idle(d) {
			list = append(list, d)
		}
	}
	if a.whole || len(list) > syncsMost {
		return a.syncAll()
	}
	err := together(len(list), syncers, func(i int) error { return a.syncOne(list[i]) })
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) { // not ours to open
		return a.syncAll()
	}
	return err
}

func (a *apply) syncOne(d *delta) error {
	folder, name := d.path, "."
	if !isFolder(d.new) {
		folder, name = parent(d.path)
	}
	dir, err := openDeep(a.root, folder)
	if err != nil {
		return a.failed(d.path, err)
	}
	defer dir.Close() // opened for reading: nothing can be lost
	if name == "." {
		return a.failed(d.path, unix.Fsync(dir.FD()))
	}
	f, err := dir.OpenFile(name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return a.failed(d.path, errors.Join(f.Sync(), f.Close()))
}

func (a *apply) syncAll() error { return unix.Syncfs(a.root.FD()) }

package layer

import (
	"errors"
	"os"

	"mulligan/ipc"
)

// ClearState removes the daemon's folder of an app that was purged, and what its databases keep elsewhere. The folder of an app with
// a domain stays: it says which images the domain's disks rest on.
func (b *Binder) ClearState(id ipc.AppID) (gone bool, err error) {
	if _, err := os.Lstat(b.diskState(id)); !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := b.PurgeStores(id); err != nil {
		return false, err
	}
	return true, os.RemoveAll(b.StateDir(id))
}

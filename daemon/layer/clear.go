package layer

import (
	"errors"
	"os"

	"mulligan/ipc"
)

// ClearState removes the daemon's folder of a purged app, and the data that its databases' drivers keep elsewhere. The folder
// of an app with a domain stays, because it names the images on which the domain's disks depend.
func (b *Binder) ClearState(id ipc.AppID) (gone bool, err error) {
	if _, err := os.Lstat(b.diskState(id)); !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := b.PurgeStores(id); err != nil {
		return false, err
	}
	return true, os.RemoveAll(b.StateDir(id))
}

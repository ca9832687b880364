package layer

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

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
	return true, RemoveState(b.StateDir(id))
}

// RemoveState removes dir, the daemon's folder of an app that is gone. What is still being sent to a remote is not waited for, and may make files in the
// folder while it is removed: then it is removed again.
func RemoveState(dir string) error {
	for begun := time.Now(); ; {
		err := os.RemoveAll(dir)
		if !errors.Is(err, unix.ENOTEMPTY) || time.Since(begun) > removeFor {
			return err
		}
	}
}

// removeFor bounds how long a folder in which files appear is removed again and again.
const removeFor = 5 * time.Second

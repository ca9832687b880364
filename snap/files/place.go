package files

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// location is what kind of place a workspace lies in, noted when it is first protected. It
// tells the workspace from something that was mounted over it later, or from the empty
// folder below a mount that is gone. Numbers of devices are not in it: they are others after a reboot.
type location struct {
	MountPoint bool
	Filesystem int64 // its magic number (statfs(2))
}

const locationFile = "location.json"

func locate(root *beneath.Root) (location, error) {
	st, err := inode.StatAt(root.FD(), "")
	if err != nil {
		return location{}, err
	}
	var fs unix.Statfs_t
	err = unix.Fstatfs(root.FD(), &fs)
	return location{st.Mount, int64(fs.Type)}, err
}

// noteLocation reads where the workspace was when it was first protected, or notes where it is.
func (d *Driver) noteLocation() error {
	path := filepath.Join(d.cfg.StateDir, locationFile)
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &d.location) == nil {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	root, err := beneath.Open(d.cfg.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if d.location, err = locate(root); err != nil {
		return err
	}
	if text, err = json.Marshal(d.location); err != nil {
		return err
	}
	return durable.WriteFile(path, text, 0o600)
}

// checkLocation makes sure that the opened workspace is where it was.
func (d *Driver) checkLocation(root *beneath.Root) error {
	now, err := locate(root)
	if err != nil || now == d.location {
		return err
	}
	what, todo := "is on another filesystem than when it was registered", "mount the filesystem that it was on"
	switch {
	case now.MountPoint && !d.location.MountPoint:
		what, todo = "has something mounted on it that was not there when it was registered", "unmount that"
	case d.location.MountPoint && !now.MountPoint:
		what, todo = "was a mount point when it was registered, and nothing is mounted there now", "mount it again"
	}
	return errs.New(errs.Denied, "open workspace", "%s %s", d.cfg.Dir, what).
		WithHint("%s; if the workspace is to stay like this, an administrator removes %s and starts mulligand anew", todo, filepath.Join(d.cfg.StateDir, locationFile))
}

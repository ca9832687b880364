package apply

import (
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

func SweepTemps(dir *beneath.Root, prefix string) error {
	names, err := inode.List(dir.FD())
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		err := unix.Unlinkat(dir.FD(), name, 0)
		if err == unix.EISDIR {
			err = sweepBench(dir, name, prefix)
		}
		if err != nil && err != unix.ENOENT {
			return err
		}
	}
	return nil
}

// sweepBench removes a folder that hand.aside left, with what was made in it.
func sweepBench(dir *beneath.Root, name, prefix string) error {
	in, err := dir.OpenDir(name)
	if err != nil {
		return nil // not one of ours any more
	}
	defer in.Close()
	names, err := inode.List(in.FD())
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			_ = unix.Unlinkat(in.FD(), n, 0)
			_ = unix.Unlinkat(in.FD(), n, unix.AT_REMOVEDIR)
		}
	}
	_ = unix.Unlinkat(dir.FD(), name, unix.AT_REMOVEDIR) // it stays if it holds anything else
	return err
}

func TempPrefix(id string) string { return ".mulligan-" + id + "-" }

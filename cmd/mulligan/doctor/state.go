package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// leastFree is the free space, in bytes, below which a checkpoint may fail.
const leastFree = 1 << 30

// filesystems holds the names of common filesystems by their magic number (statfs(2)).
var filesystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", unix.FUSE_SUPER_MAGIC: "fuse",
	unix.SMB2_SUPER_MAGIC: "cifs", unix.CIFS_SUPER_MAGIC: "cifs", 0x2fc12fc1: "zfs", 0xca451a4e: "bcachefs",
}

// state checks the daemon's state folder.
func (e *exam) state() {
	dir := e.status.StateDir
	if dir == "" {
		dir = e.StateDir
	}
	probe := dir // the daemon creates it, so it may not exist yet
	for {
		if _, err := os.Stat(probe); err == nil || !errors.Is(err, os.ErrNotExist) || probe == "/" {
			break
		}
		probe = filepath.Dir(probe)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(probe, &fs); err != nil {
		e.add("state", "folder", Problem, dir+": "+err.Error(), "see that the folder is there, or name another with --state-dir")
		return
	}
	kind := filesystems[int64(fs.Type)]
	if kind == "" {
		kind = fmt.Sprintf("a filesystem of type %#x", fs.Type)
	}
	switch kind {
	case "tmpfs":
		e.add("state", "folder", Advice, dir+": on tmpfs, which does not outlive a restart of the host", "give the daemon a folder on a disk: --state-dir")
	case "nfs", "cifs", "fuse":
		e.add("state", "folder", Advice, dir+": on "+kind+", where locks and flushing may not be what they are on a disk", "give the daemon a folder on a local disk: --state-dir")
	default:
		e.add("state", "folder", OK, dir+": on "+kind, "")
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < leastFree {
		e.add("state", "free space", Problem, humanize.IBytes(free)+": a checkpoint may not fit", "mulligan prune, or make room on that disk")
	} else {
		e.add("state", "free space", OK, humanize.IBytes(free)+" of "+humanize.IBytes(fs.Blocks*uint64(fs.Bsize)), "")
	}
	e.reflinks(probe, kind)
}

// reflinks checks whether files in dir can share blocks. It tries with two files
// that have no name, so nothing stays behind.
func (e *exam) reflinks(dir, kind string) {
	err := clone(dir)
	switch {
	case err == nil:
		e.add("state", "reflinks", OK, "files can share blocks: a copy of a large file costs nothing", "")
	case errors.Is(err, os.ErrPermission):
		e.add("state", "reflinks", OK, "not tried: the folder is not yours", "")
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		e.add("state", "reflinks", OK, kind+" has none: copies are whole copies (XFS and Btrfs have them)", "")
	default:
		e.add("state", "reflinks", Problem, "a file can't be written there: "+err.Error(), "check the folder "+dir)
	}
}

func clone(dir string) error {
	var fds [2]int
	for i := range fds {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	if _, err := unix.Write(fds[0], make([]byte, 64<<10)); err != nil {
		return err
	}
	return unix.IoctlFileClone(fds[1], fds[0])
}

package privsep

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// enclosure is where the root of a worker is made that sees some folders only. What is there is hidden from the worker alone.
const enclosure = "/run"

// enclose makes a root for this process in which there are only these folders. The process must be root, and have a mount namespace of its own. It
// has no open folder through which it could leave the root once it is no longer root (chroot(2)).
func enclose(folders []string) error {
	fds := make([]int, len(folders))
	for i, dir := range folders { // before they are hidden
		fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			fd, err = -1, nil
		}
		if err != nil {
			return &os.PathError{Op: "open_tree", Path: dir, Err: err}
		}
		fds[i] = fd
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("root", enclosure, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return &os.PathError{Op: "mount", Path: enclosure, Err: err}
	}
	for i, dir := range folders {
		if fds[i] < 0 {
			continue
		}
		at := filepath.Join(enclosure, dir)
		err := os.MkdirAll(at, 0o755)
		if err == nil {
			err = os.NewSyscallError("move_mount", unix.MoveMount(fds[i], "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
		}
		if err = errors.Join(err, unix.Close(fds[i])); err != nil {
			return err
		}
	}
	if err := unix.Chroot(enclosure); err != nil {
		return &os.PathError{Op: "chroot", Path: enclosure, Err: err}
	}
	return os.Chdir("/")
}

package apply

import (
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
)

// setMeta sets the owner, mode, attributes and times of want on fd, which may be open with O_PATH. It uses only the descriptor,
// so it never changes another file that gets the name meanwhile. It sets the owner first, because that clears setuid bits and
// capabilities.
func setMeta(fd int, want *manifest.Entry) error {
	st, err := inode.StatAt(fd, "")
	if err != nil {
		return err
	}
	chowned := st.Uid != want.Uid || st.Gid != want.Gid
	if chowned {
		if err := unix.Fchownat(fd, "", int(want.Uid), int(want.Gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	have, err := inode.ReadXattrsPath(fd)
	if err != nil {
		return err
	}
	path := inode.ProcPath(fd)
	for _, x := range have {
		if !slices.ContainsFunc(want.Xattrs(), func(w inode.Xattr) bool { return w.Name == x.Name }) {
			if err := unix.Removexattr(path, x.Name); err != nil && err != unix.ENODATA {
				return err
			}
		}
	}
	if !want.Symlink() && (chowned || len(have) > 0 || st.Mode != want.Mode) {
		if err := unix.Fchmodat(unix.AT_FDCWD, path, want.Perm(), 0); err != nil {
			return err
		}
	}
	for _, x := range want.Xattrs() {
		if !slices.Contains(have, x) {
			if err := unix.Setxattr(path, x.Name, []byte(x.Value), 0); err != nil {
				return err
			}
		}
	}
	if want.Loose || st.Mtime == want.Mtime {
		return nil
	}
	return setTime(fd, want.Mtime)
}

// setTime sets the mtime and keeps the atime. It sets both on a filesystem that silently ignores the request to keep one
// (bindfs).
func setTime(fd int, t inode.Time) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, t.Spec()}
	if err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mtim == ts[1] {
		return err
	}
	ts[0] = st.Atim
	return unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH)
}

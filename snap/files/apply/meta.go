package apply

import (
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
)

// setMeta gives the thing behind fd (open with O_PATH or otherwise) the owner,
// mode, attributes and times of want. It works on descriptors alone: whatever
// is put at the name meanwhile is not touched. The owner comes first, since a
// change of owner takes setuid bits and capabilities away.
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

// setTime sets the mtime and leaves the atime. A filesystem that does not know how to
// leave one and says nothing (bindfs) is given both.
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

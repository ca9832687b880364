package layer

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/watch"
)

// budget returns the budget of all apps whose changes are only noted: that many, or if it is 0, half of the inotify watches that the kernel
// lets one user have.
func budget(most int64) *watch.Budget {
	if most > 0 {
		return watch.NewBudget(most)
	}
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	all, e := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || e != nil {
		all = 8192 // the default of old kernels
	}
	return watch.NewBudget(all / 2)
}

// Tells reports whether the kernel tells of every change in the folder: not on a filesystem that other hosts or programs may change, nor on
// one that nobody has tried.
func Tells(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

package watch

import (
	"errors"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
)

// identity distinguishes a folder from another one at the same path.
type identity struct {
	dev, ino, mount uint64
}

// identify returns the identity of the folder at the path dir. The last component must not be a link. Links before it are
// followed, as in the daemon's own configuration.
func identify(dir string) (identity, error) {
	return statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW)
}

func statx(fd int, path string, flags int) (identity, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, path, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_MNT_ID, &st)
	switch {
	case err != nil:
		return identity{}, err
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return identity{}, unix.ENOTDIR
	}
	return identity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Mnt_id}, nil
}

// errAway ends a session whose root is no longer at its path.
var errAway = errors.New("the workspace is not where it was")

// accepts reports whether the folder now may replace the root that was watched before. A folder on the same filesystem may: the
// old one was removed and made again. A folder on another filesystem may not: a disk was unmounted, or mounted over it, and the
// journal would record that everything was deleted.
func (id identity) accepts(dir string, now identity) error {
	if id == (identity{}) || id.dev == now.dev {
		return nil
	}
	return errs.New(errs.Unavailable, "watch files", "%s is on another filesystem than before", dir).
		WithHint("mount the workspace again, or unmount what was mounted on it")
}

// trouble returns the state of a watcher whose session ended with err.
func trouble(dir string, err error) snap.Following {
	f := snap.Following{State: snap.Degraded, Detail: "cannot watch " + dir, Remedy: errs.HintOf(err)}
	switch {
	case err == nil:
		f.Detail = "not watching " + dir
	case errors.Is(err, errOverflow):
		f.State, f.Detail = snap.Rescanning, "more happened in "+dir+" than the kernel's queue holds"
		f.Remedy = "nothing; if it happens often, raise fs.inotify.max_queued_events"
	case errors.Is(err, errAway):
		f.State, f.Detail = snap.Rescanning, dir+" was moved or replaced"
	case errors.Is(err, errRoom), errors.Is(err, errCookies):
		f.State, f.Detail = snap.Rescanning, err.Error()
	case errors.Is(err, unix.ENOSPC):
		f = limited(dir)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		f.Short = true
		f.Detail = "no inotify instance, or no open file, is left for " + dir
		f.Remedy = "raise it: sysctl fs.inotify.max_user_instances=1024 (and the limit of open files)"
	default:
		f.Detail += ": " + err.Error()
	}
	return f
}

// limited returns the state of a watcher that has watches for some folders only.
func limited(dir string) snap.Following {
	return snap.Following{
		State:  snap.Degraded,
		Short:  true,
		Detail: "there are more folders in " + dir + " than this user may watch",
		Remedy: "raise it: sysctl fs.inotify.max_user_watches=1048576 (and keep it in /etc/sysctl.d)",
	}
}

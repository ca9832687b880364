package files

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is what the kernel says of one name, without following it.
type stat struct {
	mode, uid, gid, nlink uint32
	size                  int64
	blocks                int64 // allocated, in units of 512 bytes
	rdev                  uint64
	mtime, ctime          instant
	id                    inode
	mount                 bool   // something is mounted here
	attributes            uint64 // STATX_ATTR_*
}

// inode tells files apart, for as long as the machine runs.
type inode struct{ dev, ino uint64 }

// instant is a time as filesystems keep it.
type instant struct {
	sec  int64
	nsec uint32
}

func (t instant) spec() unix.Timespec {
	return unix.Timespec{Sec: t.sec, Nsec: int64(t.nsec)}
}

// nanos is t in nanoseconds since 1970; far beyond our days it wraps.
func (t instant) nanos() int64 { return t.sec*1e9 + int64(t.nsec) }

// statAt looks at name in the folder dir; an empty name is dir itself.
func statAt(dir int, name string) (stat, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var x unix.Statx_t
	for {
		err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS, &x)
		if err == nil {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if name != "" && err != unix.ENOENT && mountedThere(dir, name) {
			return stat{mode: unix.S_IFDIR, mount: true}, nil
		}
		return stat{}, err
	}
	return stat{
		mode: uint32(x.Mode), uid: x.Uid, gid: x.Gid, nlink: x.Nlink,
		size: int64(x.Size), blocks: int64(x.Blocks),
		rdev:  unix.Mkdev(x.Rdev_major, x.Rdev_minor),
		mtime: instant{x.Mtime.Sec, x.Mtime.Nsec}, ctime: instant{x.Ctime.Sec, x.Ctime.Nsec},
		id:    inode{unix.Mkdev(x.Dev_major, x.Dev_minor), x.Ino},
		mount: x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, attributes: x.Attributes,
	}, nil
}

// mountedThere reports whether name in dir is a mount point, without asking the filesystem
// that is mounted: it may serve only the user who mounted it (FUSE), or nobody any more.
func mountedThere(dir int, name string) bool {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var x unix.Statx_t
	err := unix.Statx(dir, name, flags, 0, &x)
	return err == nil && x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// same reports whether nothing that the kernel keeps account of differs.
func (s stat) same(t stat) bool {
	return s.id == t.id && s.mode == t.mode && s.uid == t.uid && s.gid == t.gid &&
		s.size == t.size && s.mtime == t.mtime && s.ctime == t.ctime
}

// still is same, for what this process itself may have taken other names
// from meanwhile: that alone moves the ctime.
func (s stat) still(t stat) bool {
	if s.nlink > 1 {
		s.ctime, t.ctime = instant{}, instant{}
	}
	return s.same(t)
}

// flags names the inode flags (chattr) that statx tells of and that are not part of a state.
func (s stat) flags() (names []string) {
	for _, f := range []struct {
		bit  uint64
		name string
	}{
		{unix.STATX_ATTR_IMMUTABLE, "immutable"}, {unix.STATX_ATTR_APPEND, "append-only"},
		{unix.STATX_ATTR_NODUMP, "no dump"}, {unix.STATX_ATTR_COMPRESSED, "compressed"},
	} {
		if s.attributes&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

func (s stat) kind() uint32 { return s.mode & unix.S_IFMT }

// xattr is one extended attribute.
type xattr struct{ name, value string }

// kept says which extended attributes are part of a state. The others belong
// to the host's own policy (labels, integrity measurements).
func kept(name string) bool {
	switch {
	case strings.HasPrefix(name, "user."), strings.HasPrefix(name, "trusted."):
		return true
	}
	return name == "security.capability" || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// procPath names the file behind fd, which may be open with O_PATH, for the
// system calls that take only paths. The kernel goes straight to that file.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// readXattrs lists the attributes of the file behind fd, sorted by name.
func readXattrs(fd int) ([]xattr, error) {
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(n string, b []byte) (int, error) { return unix.Fgetxattr(fd, n, b) })
}

// readXattrsPath is readXattrs for an fd that is open with O_PATH.
func readXattrsPath(fd int) ([]xattr, error) {
	p := procPath(fd)
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Listxattr(p, b) },
		func(n string, b []byte) (int, error) { return unix.Getxattr(p, n, b) })
}

func collectXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]xattr, error) {
	names, err := growing(list)
	if len(names) == 0 || err != nil {
		return nil, err
	}
	var out []xattr
	for _, n := range strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if !kept(n) {
			continue
		}
		v, err := growing(func(b []byte) (int, error) { return get(n, b) })
		if err == unix.ENODATA {
			continue // gone since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", n, err)
		}
		out = append(out, xattr{n, string(v)})
	}
	slices.SortFunc(out, func(a, b xattr) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// growing calls read with a buffer that is large enough.
func growing(read func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := read(nil)
		if errors.Is(err, unix.ENOTSUP) || n == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		buf := make([]byte, n)
		n, err = read(buf)
		if err == unix.ERANGE {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

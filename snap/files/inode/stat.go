// Package inode reads the metadata that the kernel has of a file: its stat, its extended attributes, and the names in a folder. It also reads
// the kernel's table of mounts.
// No function follows a symbolic link.
package inode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat is the metadata of a file.
type Stat struct {
	Mode, Uid, Gid, Nlink uint32
	Size                  int64
	Blocks                int64 // allocated, in units of 512 bytes
	Rdev                  uint64
	Mtime, Ctime          Time
	Birth                 Time // when the inode was made, which distinguishes it from a later one with its number; zero: the filesystem does not say
	ID                    ID
	Mount                 bool   // a filesystem is mounted here
	attributes            uint64 // STATX_ATTR_*
}

// ID identifies a file until the machine restarts.
type ID struct{ Dev, Ino uint64 }

// Time is a time in the precision of filesystems.
type Time struct {
	Sec  int64
	Nsec uint32
}

func (t Time) Spec() unix.Timespec {
	return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)}
}

// Nanos returns t in nanoseconds since 1970. It wraps for years before 1678 and after 2262.
func (t Time) Nanos() int64 { return t.Sec*1e9 + int64(t.Nsec) }

// StatAt returns the Stat of name in the folder dir, or that of dir if name is empty. It asks the filesystem even if the kernel
// has cached an answer (FUSE, network filesystems).
func StatAt(dir int, name string) (Stat, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_FORCE_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var x unix.Statx_t
	for {
		err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &x)
		if err == nil {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if name != "" && err != unix.ENOENT && MountedThere(dir, name) {
			return Stat{Mode: unix.S_IFDIR, Mount: true}, nil
		}
		return Stat{}, err
	}
	if x.Mask&unix.STATX_BTIME == 0 {
		x.Btime = unix.StatxTimestamp{}
	}
	return Stat{
		Mode: uint32(x.Mode), Uid: x.Uid, Gid: x.Gid, Nlink: x.Nlink,
		Size: int64(x.Size), Blocks: int64(x.Blocks),
		Rdev:  unix.Mkdev(x.Rdev_major, x.Rdev_minor),
		Mtime: Time{x.Mtime.Sec, x.Mtime.Nsec}, Ctime: Time{x.Ctime.Sec, x.Ctime.Nsec}, Birth: Time{x.Btime.Sec, x.Btime.Nsec},
		ID:    ID{unix.Mkdev(x.Dev_major, x.Dev_minor), x.Ino},
		Mount: x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, attributes: x.Attributes,
	}, nil
}

// MountedThere reports whether name in dir is a mount point. It does not ask the mounted filesystem, which may answer only the
// user who mounted it (FUSE), or nobody any more.
func MountedThere(dir int, name string) bool {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var x unix.Statx_t
	err := unix.Statx(dir, name, flags, 0, &x)
	return err == nil && x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// Same reports whether s and t show the same file without a change.
func (s Stat) Same(t Stat) bool {
	return s.ID == t.ID && s.Mode == t.Mode && s.Uid == t.Uid && s.Gid == t.Gid &&
		s.Size == t.Size && s.Mtime == t.Mtime && s.Ctime == t.Ctime
}

// Still is like Same, but ignores the ctime of a file with several names, because this process may have removed another name of
// it, which changes the ctime.
func (s Stat) Still(t Stat) bool {
	if s.Nlink > 1 {
		s.Ctime, t.Ctime = Time{}, Time{}
	}
	return s.Same(t)
}

// Chattr returns the inode flags that statx reports, as an argument of chattr, such as "+ia". It returns "" if there are none.
func (s Stat) Chattr() string {
	letters := []byte("+")
	for _, f := range []struct {
		bit    uint64
		letter byte
	}{
		{unix.STATX_ATTR_COMPRESSED, 'c'}, {unix.STATX_ATTR_IMMUTABLE, 'i'}, {unix.STATX_ATTR_APPEND, 'a'}, {unix.STATX_ATTR_NODUMP, 'd'},
	} {
		if s.attributes&f.bit != 0 {
			letters = append(letters, f.letter)
		}
	}
	if len(letters) == 1 {
		return ""
	}
	return string(letters)
}

func (s Stat) Kind() uint32 { return s.Mode & unix.S_IFMT }

// Xattr is one extended attribute.
type Xattr struct{ Name, Value string }

// kept reports whether an extended attribute is part of a captured state. The other attributes belong to the host's policy
// (labels, integrity measurements).
func kept(name string) bool {
	switch {
	case strings.HasPrefix(name, "user."), strings.HasPrefix(name, "trusted."):
		return true
	}
	return name == "security.capability" || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// ProcPath returns a path of the file behind fd for system calls that take only paths. fd may be open with O_PATH. The kernel
// resolves the path directly to that file.
func ProcPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// ReadXattrs returns the attributes of the file behind fd, sorted by name.
func ReadXattrs(fd int) ([]Xattr, error) {
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(n string, b []byte) (int, error) { return unix.Fgetxattr(fd, n, b) })
}

// ReadXattrsPath does the same as ReadXattrs for an fd that is open with O_PATH.
func ReadXattrsPath(fd int) ([]Xattr, error) {
	p := ProcPath(fd)
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Listxattr(p, b) },
		func(n string, b []byte) (int, error) { return unix.Getxattr(p, n, b) })
}

func collectXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]Xattr, error) {
	names, err := growing(list)
	if len(names) == 0 || err != nil {
		return nil, err
	}
	var out []Xattr
	for _, n := range strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if !kept(n) {
			continue
		}
		v, err := growing(func(b []byte) (int, error) { return get(n, b) })
		if err == unix.ENODATA {
			continue // removed since the names were listed
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", n, err)
		}
		out = append(out, Xattr{n, string(v)})
	}
	slices.SortFunc(out, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// growing calls read with a buffer of the size that read asks for, again if the size grows meanwhile.
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

package asowner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// The functions in this file handle files of any kind and content in the place of a data folder. They run as the cluster's
// owner, follow no link, and do not interpret contents.

// At returns the state of path, or nil if nothing exists there.
func At(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if Absent(err) {
		return nil, nil
	}
	return info, err
}

// opened calls f while the owner can read path, and also write to it if it is a folder. If the permissions do not allow that,
// opened changes them until f returns.
func opened(path string, info fs.FileInfo, f func() error) (err error) {
	need := fs.FileMode(0o400)
	if info.IsDir() {
		need = 0o700
	}
	mine := int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid()
	if info.Mode()&need == need || !mine || info.Mode()&fs.ModeSymlink != 0 {
		return f()
	}
	if err := unix.Chmod(path, mode(info)|uint32(need)); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return errors.Join(f(), unix.Chmod(path, mode(info)))
}

// mode returns the twelve permission bits.
func mode(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Mode & 0o7777 }

// RawCopied is the result of [CopyRaw].
type RawCopied struct {
	Hash   snap.Hash // of the copy
	Stamp  string    // of the source
	There  bool      // the source exists
	Lacks  int       // number of sockets, fifos and devices, which were left out
	Leaves int       // number of symbolic links
}

// Warnings returns the warnings for a snapshot of these files, as whole sentences.
func (c RawCopied) Warnings() (list []string) {
	list = []string{"The cluster could not be read, so its files were kept as they are."}
	if !c.There {
		list = []string{"The cluster's data folder is gone: there was nothing to be kept."}
	}
	if c.Leaves > 0 {
		list = append(list, fmt.Sprintf("%d symbolic links were kept as links; the files they point to are not part of the snapshot.", c.Leaves))
	}
	if c.Lacks > 0 {
		list = append(list, fmt.Sprintf("%d sockets, fifos or devices were left out.", c.Lacks))
	}
	return list
}

// CopyRaw copies everything at A to B. Nothing may exist at B.
var CopyRaw = privsep.Define("physical.copyRaw", func(ctx context.Context, e Pair) (c RawCopied, err error) {
	info, err := At(e.A)
	if c.There = info != nil; err == nil && !c.There {
		c.Hash, err = HashOf(ctx, e.A)
	}
	if err != nil || !c.There {
		return c, err
	}
	if err := os.Mkdir(filepath.Dir(e.B), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return c, err
	}
	before, err := stamp(e.A)
	if err != nil {
		return c, err
	}
	if err := c.copy(ctx, e.A, e.B, info); err != nil {
		return c, err
	}
	if c.Stamp, err = stamp(e.A); err != nil {
		return c, err
	}
	if c.Stamp != before {
		return c, snap.Changed("", fmt.Sprintf("the folder %q", e.A))
	}
	if c.Hash, err = HashOf(ctx, e.B); err != nil {
		return c, err
	}
	return c, SyncFS(filepath.Dir(e.B))
})

func (c *RawCopied) copy(ctx context.Context, from, to string, info fs.FileInfo) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return opened(from, info, func() error { return c.copyFolder(ctx, from, to, info) })
	case info.Mode().IsRegular():
		err := opened(from, info, func() error { return copyFile(from, to) })
		return errors.Join(err, unix.Chmod(to, mode(info)))
	case info.Mode()&fs.ModeSymlink != 0:
		c.Leaves++
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	c.Lacks++
	return nil
}

func (c *RawCopied) copyFolder(ctx context.Context, from, to string, info fs.FileInfo) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		child, err := os.Lstat(filepath.Join(from, e.Name()))
		if err == nil {
			err = c.copy(ctx, filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), child)
		}
		if err != nil {
			return err
		}
	}
	return unix.Chmod(to, mode(info))
}

// EachRaw calls f for path and for everything below it, in the order of the names. rel is the path relative to the first one,
// which is ".".
func EachRaw(ctx context.Context, path, rel string, f func(path, rel string, info fs.FileInfo) error) error {
	info, err := os.Lstat(path)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	if err := f(path, rel, info); err != nil || !info.IsDir() {
		return err
	}
	return opened(path, info, func() error {
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := EachRaw(ctx, filepath.Join(path, e.Name()), filepath.Join(rel, e.Name()), f); err != nil {
				return err
			}
		}
		return nil
	})
}

// HashRaw returns the hash of everything at a path; see [HashOf].
var HashRaw = privsep.Define("physical.hashRaw", func(ctx context.Context, path string) (snap.Hash, error) { return HashOf(ctx, path) })

// HashOf returns the hash of the names, kinds, modes and contents of everything at path. A missing path has a hash too.
func HashOf(ctx context.Context, path string) (sum snap.Hash, err error) {
	h := blake3.New()
	_, _ = h.WriteString("mulligan postgres files 1\n") // never fails
	if info, err := At(path); err != nil || info == nil {
		return snap.Hash(h.Sum(nil)), err
	}
	err = EachRaw(ctx, path, ".", func(path, rel string, info fs.FileInfo) error {
		what := ""
		switch {
		case info.IsDir():
			what = "folder"
		case info.Mode().IsRegular():
			err := opened(path, info, func() error {
				size, digest, err := SumFile(path)
				what = fmt.Sprintf("file %d %s", size, digest)
				return err
			})
			if err != nil {
				return err
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what = "link " + strconv.Quote(target)
		default:
			return nil // sockets, fifos and devices are in no copy
		}
		_, err := fmt.Fprintf(h, "%q %o %s\n", rel, mode(info), what)
		return err
	})
	return snap.Hash(h.Sum(nil)), err
}

// Stamp returns a string that changes when the files at a path change. It reads no contents.
var Stamp = privsep.Define("physical.stamp", func(_ context.Context, path string) (string, error) { return stamp(path) })

// stamp returns a digest of the modes, inodes, sizes and times of everything at path, or "" if nothing exists there.
func stamp(path string) (string, error) {
	if info, err := At(path); err != nil || info == nil {
		return "", err
	}
	h := blake3.New()
	err := EachRaw(context.Background(), path, ".", func(_, rel string, info fs.FileInfo) error {
		st := info.Sys().(*syscall.Stat_t)
		_, err := fmt.Fprintf(h, "%q %o %d %d %d %d\n", rel, st.Mode, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:16]), err
}

// swap exchanges whatever is at a and at b; either may be missing.
func swap(a, b string) error {
	x, err := At(a)
	if err != nil {
		return err
	}
	y, err := At(b)
	if err != nil {
		return err
	}
	switch {
	case x == nil && y == nil:
		return nil
	case x == nil:
		return movable(b, y, func() error { return moveTo(b, a) }, a)
	case y == nil:
		return movable(a, x, func() error { return moveTo(a, b) }, b)
	}
	return movable(a, x, func() error {
		return movable(b, y, func() error { return exchange(a, b) }, a)
	}, b)
}

// movable calls move, which moves a folder to another parent. The kernel then changes the entry .. in the folder, which needs
// write permission, so movable grants it meanwhile.
func movable(from string, info fs.FileInfo, move func() error, to string) error {
	if !info.IsDir() || info.Mode()&0o700 == 0o700 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return move()
	}
	if err := unix.Chmod(from, mode(info)|0o700); err != nil {
		return &os.PathError{Op: "chmod", Path: from, Err: err}
	}
	if err := move(); err != nil {
		return errs.Also(err, unix.Chmod(from, mode(info)))
	}
	return unix.Chmod(to, mode(info))
}

// moveTo moves from to the path to durably. Nothing may exist at to.
func moveTo(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "move", Old: from, New: to, Err: err}
	}
	return errors.Join(durable.Sync(filepath.Dir(from)), durable.Sync(filepath.Dir(to)))
}

// removeAll removes what is at a path, with everything in it, and enters nothing that is mounted there.
func removeAll(path string) error {
	parent, err := os.Open(filepath.Dir(path)) // a link to it is the owner's
	if Absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close() // it was only read
	return beneath.From(parent).RemoveAll(filepath.Base(path))
}

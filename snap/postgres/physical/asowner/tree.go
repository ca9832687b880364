package asowner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

// emptied are the folders of a cluster whose content a base backup leaves out, because the server makes it again (Base Backup
// in the server's manual, "Backing Up the Data Directory").
var emptied = []string{
	"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans",
}

// transient reports whether a file belongs only to a running server.
func transient(rel string) bool {
	switch rel {
	case "postmaster.pid", "postmaster.opts", "recovery.signal", "standby.signal", "backup_label", "backup_label.old", "tablespace_map":
		return true
	}
	name := filepath.Base(rel)
	return strings.HasPrefix(name, "pgsql_tmp") || name == "pg_internal.init" || strings.HasPrefix(name, "pg_internal.init.")
}

// copyCluster copies the data folder src to dst, except the files that omit selects and the contents of the folders in empty. dst must not exist. Files share extents if
// the file system can do that. Files may appear and disappear meanwhile. copyCluster runs as the owner.
func copyCluster(ctx context.Context, src, dst string, empty []string, omit func(rel string) bool) error {
	if err := copyDir(ctx, src, dst, "", empty, omit); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(dst, "pg_wal", "archive_status"), 0o700)
}

func copyDir(ctx context.Context, src, dst, rel string, empty []string, omit func(string) bool) error {
	from, to := filepath.Join(src, rel), filepath.Join(dst, rel)
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, info.Mode().Perm()); err != nil {
		return err
	}
	if slices.Contains(empty, rel) {
		return nil
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	// The control file is copied last, so that it is read at once, after everything else.
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int {
		if a.Name() == "pg_control" {
			return 1
		} else if b.Name() == "pg_control" {
			return -1
		}
		return 0
	})
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := filepath.Join(rel, e.Name())
		switch {
		case omit(name):
		case e.IsDir():
			err = copyDir(ctx, src, dst, name, empty, omit)
		case e.Type().IsRegular():
			err = copyFile(filepath.Join(src, name), filepath.Join(dst, name))
		case e.Type() == fs.ModeSymlink:
			err = errs.New(errs.Unsupported, "", "%s is a link, and what it leads to would be shared by all copies", filepath.Join(src, name)).
				WithHint("keep all of the cluster in its data folder, or use mode = logical")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// copyFile makes dst a copy of src. The two share extents if the file system can do that.
func copyFile(src, dst string) (err error) {
	in, err := openRegular(src, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer in.Close() // it was only read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, info.Mode().Perm())
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		_, err = io.Copy(out, in)
	}
	return errors.Join(err, out.Close())
}

// SyncFS writes everything on the file system of path to the disk.
func SyncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// sums writes the digests and sizes of the regular files below dir to list, one file per line.
func sums(ctx context.Context, dir string, list io.Writer) error {
	total := 0
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || !e.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		size, sum, err := SumFile(path)
		if err != nil {
			return err
		}
		n, err := fmt.Fprintf(list, "%s %d %q\n", sum, size, rel)
		if total += n; err == nil && total > MaxSums {
			err = TooManyFiles()
		}
		return err
	})
}

// SumFile returns the size and the digest of a regular file.
func SumFile(path string) (size int64, sum string, err error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return 0, "", err
	}
	defer f.Close() // it was only read
	h := blake3.New()
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	size, err = io.CopyBuffer(h, struct{ io.Reader }{f}, *buf)
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// buffers are for reading: most files of a cluster are small, and allocating a large buffer takes longer than reading a small
// file.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// FirstDifference returns the name of the first file in which two lists of checksums differ, or "".
func FirstDifference(want, got []byte) string {
	a, b := bufio.NewScanner(bytes.NewReader(want)), bufio.NewScanner(bytes.NewReader(got))
	for {
		more, also := a.Scan(), b.Scan()
		switch {
		case !more && !also:
			return ""
		case a.Text() != b.Text():
			line := a.Text()
			if !more {
				line = b.Text()
			}
			return line[strings.IndexByte(line, '"'):]
		}
	}
}

// exchange exchanges two folders atomically and durably.
func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return errors.Join(durable.Sync(filepath.Dir(a)), durable.Sync(filepath.Dir(b)))
}

// Inode returns the inode number of a path, which identifies a folder under any name. It returns 0 if nothing exists there.
func Inode(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Ino, err
}

type unixStat = unix.Stat_t

func dirOf(path string) string { return filepath.Dir(path) }

func lstat(path string, st *unix.Stat_t) error {
	if err := unix.Lstat(path, st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return nil
}

// access returns an error unless this thread may rename entries of dir.
func access(dir string) error {
	f, err := os.CreateTemp(dir, ".mulligan-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// SameFile reports whether two paths lead to the same file.
func SameFile(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y), err
}

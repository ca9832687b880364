package asowner

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// ClusterCopy names the source and the destination of [Copy].
type ClusterCopy struct {
	From, To string
	Live     bool // From belongs to a running server: its transient files are left out
	Whole    bool // From belongs to a server that was shut down: its log is copied too, so that a server can be started in To
}

// Copy copies a data folder. To must not exist.
var Copy = privsep.Define("physical.copy", func(ctx context.Context, c ClusterCopy) (none, error) {
	omit := func(string) bool { return false }
	if c.Live {
		omit = transient
	}
	empty := emptied
	if c.Whole {
		empty = nil
	}
	return none{}, copyCluster(ctx, c.From, c.To, empty, omit)
})

// Arrangement names the small files of a data folder that [Arrange] removes and writes.
type Arrangement struct {
	Dir   string
	Drop  []string          // files in Dir that are removed if they exist
	Files map[string][]byte // files that are written afterwards
	Sync  bool              // everything in Dir is made durable in the end
}

// Arrange removes and writes small files in a data folder.
var Arrange = privsep.Define("physical.arrange", func(_ context.Context, a Arrangement) (none, error) {
	for _, name := range a.Drop {
		if err := os.Remove(filepath.Join(a.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none{}, err
		}
	}
	for name, data := range a.Files {
		if err := writeFile(filepath.Join(a.Dir, name), data); err != nil {
			return none{}, err
		}
	}
	if a.Sync {
		return none{}, SyncFS(a.Dir)
	}
	return none{}, nil
})

// Pair is two paths.
type Pair struct{ A, B string }

// Exchange exchanges whatever is at two paths.
var Exchange = privsep.Define("physical.exchange", func(_ context.Context, e Pair) (none, error) {
	return none{}, swap(e.A, e.B)
})

// LayoutQuery names a data folder, and whether others exchange it.
type LayoutQuery struct {
	Home  Home
	Apart bool
}

// Layout returns an error unless physical mode can handle the layout of the data folder.
var Layout = privsep.Define("physical.layout", func(_ context.Context, q LayoutQuery) (none, error) {
	wal, err := os.Lstat(q.Home.WAL())
	if err != nil {
		return none{}, err
	}
	if !wal.IsDir() {
		return none{}, errs.New(errs.Unsupported, "", "pg_wal of %s is a link to another place", q.Home.Data).WithHint("use mode = logical")
	}
	if q.Apart {
		return none{}, nil
	}
	return none{}, canExchange(q.Home.Data, q.Home.Store)
})

// canExchange returns an error unless the two folders are on the same file system and can be exchanged. It runs as the owner.
func canExchange(data, store string) error {
	var above, at, other unixStat
	for path, st := range map[string]*unixStat{dirOf(data): &above, data: &at, store: &other} {
		if err := lstat(path, st); err != nil {
			return err
		}
	}
	mounted, err := isMountPoint(data)
	if err != nil {
		return err
	}
	switch {
	case above.Dev != at.Dev, mounted:
		return errs.New(errs.Unsupported, "", "the data folder %s is a mount point, which cannot be exchanged", data).
			WithHint("move the cluster into a folder below the mount point, or use mode = logical")
	case other.Dev != at.Dev:
		return errs.New(errs.Unsupported, "", "%s is not on the file system of %s", store, data).WithHint("choose a store beside the data folder")
	}
	if err := access(dirOf(data)); err != nil {
		return unwritable(dirOf(data))
	}
	list, err := os.ReadDir(data)
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(data, e.Name())
		mounted, err := isMountPoint(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the server makes and removes files
			return err
		}
		if mounted { // it would stay in the folder that is exchanged for another one
			return errs.New(errs.Unsupported, "", "something is mounted at %s: it does not go along when the data folder is exchanged", path).
				WithHint("umount it, or use mode = logical")
		}
	}
	return nil
}

// isMountPoint reports whether something is mounted at a path.
func isMountPoint(path string) (bool, error) {
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &x)
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// unwritable returns the error for a folder in which the owner cannot exchange folders.
func unwritable(dir string) error {
	return errs.New(errs.Denied, "", "the server's user cannot write to %s, where the data folders are exchanged", dir).
		WithHint("chown the folder to the server's user")
}

// Remove removes files, and folders with everything in them.
var Remove = privsep.Define("physical.remove", func(_ context.Context, paths []string) (none, error) {
	for _, p := range paths {
		if err := removeAll(p); err != nil {
			return none{}, err
		}
	}
	return none{}, nil
})

// NewFolder names a folder for [Mkdir].
type NewFolder struct {
	Path string
	Old  bool // it may exist
}

// Mkdir makes a folder that only the owner can enter.
var Mkdir = privsep.Define("physical.mkdir", func(_ context.Context, n NewFolder) (none, error) {
	err := os.Mkdir(n.Path, 0o700)
	if n.Old && errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return none{}, err
})

// Names returns the names of the entries of a folder.
var Names = privsep.Define("physical.names", func(_ context.Context, dir string) ([]string, error) { return names(dir) })

func names(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}

// sumList is an open file with a list of checksums, which may be too long for a message.
type sumList struct {
	File *os.File `json:"-"`
}

// Files implements privsep.Carrier.
func (l *sumList) Files() []**os.File { return []**os.File{&l.File} }

// MaxSums is the largest size in bytes of a list of checksums. A file takes about 110 bytes.
const MaxSums = 512 << 20

// TooManyFiles returns the error for a cluster whose checksums take more than MaxSums.
func TooManyFiles() error {
	return errs.New(errs.Unsupported, "", "the cluster has too many files: their sums take more than %d MiB", MaxSums>>20).
		WithHint("use mode = logical")
}

// Sums lists the files of a data folder with their checksums.
var Sums = privsep.Define("physical.sums", func(ctx context.Context, dir string) (l sumList, err error) {
	fd, err := unix.MemfdCreate("mulligan-sums", unix.MFD_CLOEXEC)
	if err != nil {
		return l, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "sums")
	out := bufio.NewWriter(f)
	if err = errors.Join(sums(ctx, dir, out), out.Flush()); err != nil {
		return l, errs.Also(err, f.Close())
	}
	return sumList{f}, nil
})

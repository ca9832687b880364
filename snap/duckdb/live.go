package duckdb

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/filetime"
)

// errMoved means that a file changed while it was read.
var errMoved = errors.New("the files changed while they were read")

// live is the folder of the database, with the name of its file.
type live struct {
	dir  *beneath.Root
	name string
	uid  int // owner that the files must have; -1: any
}

func (d *Driver) open() (l live, err error) {
	root, err := beneath.Open(d.cfg.Dir)
	if err != nil {
		return l, err
	}
	defer root.Close() // it was only read
	l.uid = d.cfg.Owner.UID
	l.dir, l.name, err = root.Parent(d.cfg.Path)
	return l, err
}

// stat returns the state of one of the files without its access time, or the zero value if the file does not exist. It returns
// an error if the file is not a regular file of the app's owner.
func (l live) stat(suffix string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(l.dir.FD(), l.name+suffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	st.Atim = unix.Timespec{}
	switch {
	case errors.Is(err, unix.ENOENT):
		return unix.Stat_t{}, nil
	case err == nil && l.uid >= 0 && int(st.Uid) != l.uid:
		err = errs.New(errs.Denied, "", "%s does not belong to the app's owner", l.name+suffix).WithHint("give the file to the app's owner: chown")
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errs.New(errs.Unsupported, "", "%s is not a file", l.name+suffix).WithHint("move it away")
	}
	return st, err
}

// sink consumes the content of a file, and returns the number of its bytes.
type sink func(r io.Reader) (int64, error)

// tries bounds how often the files are read again because they changed meanwhile.
const tries = 5

// read reads both files as they are at one moment. It calls each before each try, and the sink that each returns consumes the
// contents.
func (d *Driver) read(ctx context.Context, l live, each func() sink) (s state, err error) {
	for range tries {
		if s, err = d.tryRead(ctx, l, each()); !errors.Is(err, errMoved) {
			return s, err
		}
	}
	return s, snap.Changed("", "database "+d.cfg.Path)
}

// present reads the live state without keeping the contents.
func (d *Driver) present(ctx context.Context, l live) (state, error) {
	return d.read(ctx, l, func() sink {
		return func(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }
	})
}

// tryRead returns errMoved unless both files stay unchanged from before the first byte is read until after the last one.
func (d *Driver) tryRead(ctx context.Context, l live, to sink) (s state, err error) {
	s.Entries = []entry{}
	before, err := l.awaitReliableTimes(ctx)
	for i, suffix := range suffixes {
		if err == nil && before[i].Ino != 0 {
			var e entry
			e, err = l.readFile(ctx, suffix, before[i], to)
			s.Entries = append(s.Entries, e)
		}
	}
	for i, suffix := range suffixes {
		if after, e := l.stat(suffix); err == nil && (e != nil || after != before[i]) {
			err = errMoved
		}
	}
	return s, errs.Also(err, d.cfg.Failpoint.At("capture: read"))
}

// awaitReliableTimes waits until any later write to a file would change its times, and then returns the states of the files. It
// returns errMoved if they are written to continuously.
func (l live) awaitReliableTimes(ctx context.Context) (now [2]unix.Stat_t, err error) {
	for began := time.Now(); time.Since(began) < filetime.Coarsest+time.Second; time.Sleep(filetime.Tick / 2) {
		at, quiet := time.Now(), true
		for i, suffix := range suffixes {
			if now[i], err = l.stat(suffix); err != nil {
				return now, err
			}
			for _, t := range []unix.Timespec{now[i].Mtim, now[i].Ctim} {
				quiet = quiet && (now[i].Ino == 0 || filetime.Reliable(t.Sec, uint32(t.Nsec), at))
			}
		}
		if quiet || ctx.Err() != nil {
			return now, ctx.Err()
		}
	}
	return now, errMoved
}

func (l live) readFile(ctx context.Context, suffix string, st unix.Stat_t, to sink) (e entry, err error) {
	f, err := l.dir.OpenFile(l.name+suffix, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		err = errMoved
	}
	if err != nil {
		return e, err
	}
	defer f.Close()                                          // it was only read
	defer context.AfterFunc(ctx, func() { _ = f.Close() })() // this ends the reading
	h := blake3.New()
	n, err := to(io.TeeReader(io.LimitReader(f, st.Size), h))
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if err == nil && n != st.Size {
		err = errMoved
	}
	return entry{
		Suffix: suffix, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Size: st.Size, Content: hex.EncodeToString(h.Sum(nil)),
	}, err
}

// lock takes the same lock as DuckDB, so that no other process has the database open. The error is of kind errs.Busy if one
// has. The file is nil if there is no database.
func (l live) lock() (*os.File, error) {
	f, err := l.dir.OpenFile(l.name, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}

func lockFile(f *os.File) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errs.New(errs.Busy, "", "another process has the database %s open", f.Name()).WithHint("stop it, and try again")
	}
	return err
}

package asowner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/wal"
)

// LogToSave says what of a pg_wal folder the archive is to have.
type LogToSave struct {
	Wal, Archive string
	History      string // a history that must be there, and is copied before all else
	// End is a log file: those before it on its timeline are finished, and copied.
	End string
	// Those from End to Until, which may be "", are saved as far as they were written.
	Until string
}

// SaveLog copies log into the archive.
var SaveLog = privsep.Define("physical.saveLog", func(ctx context.Context, s LogToSave) (none, error) {
	return none{}, s.save(ctx)
})

// save copies what the archive lacks: histories, and log files.
func (s LogToSave) save(ctx context.Context) error {
	if s.History != "" {
		if err := copyDurably(filepath.Join(s.Wal, s.History), filepath.Join(s.Archive, s.History), false); err != nil {
			return err
		}
	}
	list, err := names(s.Wal)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(s.Archive, name)); err == nil {
			continue
		}
		here := wal.IsSegment(name) && name[:8] == s.End[:8]
		switch {
		case wal.IsHistory(name) || here && name < s.End:
			err = copyDurably(filepath.Join(s.Wal, name), filepath.Join(s.Archive, name), false)
		case here && name <= s.Until:
			err = copyDurably(filepath.Join(s.Wal, name), filepath.Join(s.Archive, name+".partial"), true)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the server may have dropped or renamed it
			return err
		}
	}
	return nil
}

// copyDurably makes a copy that is there wholly or not at all. Without replace,
// one that is there already stays.
func copyDurably(src, dst string, replace bool) (err error) {
	tmp := filepath.Join(filepath.Dir(dst), ".copy."+filepath.Base(dst))
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := copyFile(src, tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dst, flags)
	}
	if errors.Is(err, unix.EEXIST) { // the server was quicker
		return os.Remove(tmp)
	}
	if err != nil {
		return errs.Also(err, os.RemoveAll(tmp))
	}
	return durable.Sync(filepath.Dir(dst))
}

// Linked ends the names of log files in the archive that are the live server's own
// files under a second name, so that they outlive its folder. The server takes a file
// for something else only when the archive has a copy, which goes before the link.
const Linked = ".live"

// link gives those of the log files that only the live server has a second name in
// the archive. Where the file system has no links, there is only the first.
func (h Home) link(names []string) error {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(h.Archive(), name)); err == nil {
			continue
		}
		from, to := filepath.Join(h.WAL(), name), filepath.Join(h.Archive(), name+Linked)
		err := os.Link(from, to)
		if !errors.Is(err, fs.ErrExist) {
			continue
		}
		if same, err := SameFile(from, to); err != nil || same {
			continue // or the live server has it no more
		}
		if err := os.Remove(to); err != nil {
			return err
		}
		if err := os.Link(from, to); err != nil {
			return err
		}
	}
	return nil
}

// locate finds a log file: finished, with the live server, or saved unfinished.
func (h Home) locate(name string) string {
	for _, path := range []string{
		filepath.Join(h.Archive(), name), filepath.Join(h.Archive(), name+Linked), filepath.Join(h.WAL(), name), filepath.Join(h.Archive(), name+".partial"),
	} {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
}

// present checks that all log files are there. The child of a fork holds a copy
// of its parent's last file, so either will do for a file that ends a leg. It
// runs as the owner.
func (h Home) present(names []string) error {
	for i, name := range names {
		if h.locate(name) != "" {
			continue
		}
		if i+1 < len(names) && strings.HasSuffix(names[i+1], name[8:]) && h.locate(names[i+1]) != "" {
			continue
		}
		return errs.New(errs.Corrupt, "", "log file %s is gone", name).WithHint("use another checkpoint")
	}
	return nil
}

// LogLinks says which log files [LinkLog] makes links to.
type LogLinks struct {
	Home  Home
	Dir   string       // it must not exist
	Names []string     // the log files, or
	First string       // all of its timeline from this one on, as far as they are log of
	Size  wal.Segments // this size
}

// LinkLog makes a folder of links to log files, wherever they are.
var LinkLog = privsep.Define("physical.linkLog", func(_ context.Context, l LogLinks) (none, error) {
	if err := os.Mkdir(l.Dir, 0o700); err != nil {
		return none{}, err
	}
	if l.First != "" {
		return none{}, l.linkFrom()
	}
	return none{}, l.linkNamed()
})

// linkFrom links the log files of a timeline from l.First on. A file of the live
// server may be there for later use, empty or with what it held under another
// name; pg_waldump stumbles over those.
func (l LogLinks) linkFrom() error {
	for _, from := range []string{l.Home.Archive(), l.Home.WAL()} {
		list, err := names(from)
		if err != nil {
			return err
		}
		for _, name := range list {
			if !wal.IsSegment(name) || name[:8] != l.First[:8] || name < l.First {
				continue
			}
			path := filepath.Join(from, name)
			f, err := openRegular(path, unix.O_NOFOLLOW)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			holds := l.Size.Begins(name, f)
			if f.Close(); !holds { // it was only read
				continue
			}
			if err := os.Symlink(path, filepath.Join(l.Dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// linkNamed links the log files in l.Names.
func (l LogLinks) linkNamed() error {
	for i, name := range l.Names {
		from := l.Home.locate(name)
		if from == "" && i+1 < len(l.Names) { // the child's first file begins as the parent's last
			from = l.Home.locate(l.Names[i+1])
		}
		if err := os.Symlink(from, filepath.Join(l.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// HistoryQuery names a timeline, for [History].
type HistoryQuery struct {
	Home Home
	TLI  wal.Timeline
}

// maxHistory is how many bytes the history of a timeline may have.
const maxHistory = 1 << 20

// History reads how a timeline came about: from the archive, which gets each
// history before anything is written on its timeline. Without one it gives nil.
var History = privsep.Define("physical.history", func(_ context.Context, q HistoryQuery) ([]byte, error) {
	return q.Home.history(q.TLI)
})

func (h Home) history(t wal.Timeline) ([]byte, error) {
	for _, dir := range []string{h.Archive(), h.WAL()} {
		data, err := readBounded(filepath.Join(dir, t.HistoryFile()), maxHistory, unix.O_NOFOLLOW)
		if !Absent(err) && !errors.Is(err, fs.ErrPermission) {
			return data, err
		}
	}
	return nil, nil
}

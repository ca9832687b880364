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

// LogToSave names the parts of a pg_wal folder that SaveLog copies into the archive.
type LogToSave struct {
	Wal, Archive string
	History      string // a history file that must exist; it is copied first
	// End is a log file. The files before End on its timeline are finished, and are copied.
	End string
	// The files from End to Until are copied as far as they are written. Until may be "".
	Until string
}

// SaveLog copies log into the archive.
var SaveLog = privsep.Define("physical.saveLog", func(ctx context.Context, s LogToSave) (none, error) {
	return none{}, s.save(ctx)
})

// save copies the histories and log files that the archive lacks.
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

// copyDurably copies a file so that dst never has a part of the content. An existing dst is kept unless replace is true.
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
	if errors.Is(err, unix.EEXIST) { // the server archived the file meanwhile
		return os.Remove(tmp)
	}
	if err != nil {
		return errs.Also(err, os.RemoveAll(tmp))
	}
	return durable.Sync(filepath.Dir(dst))
}

// Linked is the suffix of log files in the archive that are hard links to the live server's own files, so that the files
// outlive its folder. The server reuses a file of its own timeline only after the archive has a copy of it, and copies take
// precedence over links.
const Linked = ".live"

// link makes links in the archive to the log files that only the live server has, whose timeline is that of the last name. On a
// file system without hard links it makes none.
//
// The live server's files of earlier timelines are copies that its recovery made. It reuses them whenever it likes, so a link to
// one would soon have the content of another file. link copies such a file, unless the archive has its content already.
//
// If apart is true, the archive cannot have links that the owner makes. Then link returns the names of the files whose links are missing or wrong.
func (h Home) link(names []string, size wal.Segments, apart bool) (missing []string, err error) {
	live := ""
	if len(names) > 0 {
		live = names[len(names)-1][:8]
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(h.Archive(), name)); err == nil {
			continue
		}
		if name[:8] != live {
			if err := h.copyOnce(name, size); err != nil {
				return nil, err
			}
			continue
		}
		from, to := filepath.Join(h.WAL(), name), filepath.Join(h.Archive(), name+Linked)
		if !apart {
			if err := os.Link(from, to); !errors.Is(err, fs.ErrExist) {
				continue
			}
		} else if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
			continue
		}
		if same, err := SameFile(from, to); err != nil || same {
			continue // the link is right, or the live server has removed the file
		}
		if apart {
			missing = append(missing, name)
			continue
		}
		if err := os.Remove(to); err != nil {
			return nil, err
		}
		if err := os.Link(from, to); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// copyOnce copies a file of the live server into the archive, unless a link or a saved part there has its content.
func (h Home) copyOnce(name string, size wal.Segments) error {
	for _, suffix := range []string{Linked, ".partial"} {
		if holds, err := holdsLog(filepath.Join(h.Archive(), name+suffix), name, size); err != nil || holds {
			return err
		}
	}
	from := filepath.Join(h.WAL(), name)
	if holds, err := holdsLog(from, name, size); err != nil || !holds {
		return err
	}
	err := copyDurably(from, filepath.Join(h.Archive(), name+".partial"), true)
	if errors.Is(err, fs.ErrNotExist) { // the server has just reused it
		return nil
	}
	return err
}

// holdsLog reports whether the file at path exists and has the log that name says.
func holdsLog(path, name string, size wal.Segments) (bool, error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // it was only read
	return size.Begins(name, f), nil
}

// unlinkReused removes the link to a log file that the live server has reused for other log.
func (h Home) unlinkReused(name string, size wal.Segments) error {
	path := filepath.Join(h.Archive(), name+Linked)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if holds, err := holdsLog(path, name, size); err != nil || holds {
		return err
	}
	return os.Remove(path)
}

// locate returns the path of a log file: a finished one in the archive, one of the live server, or the saved part of an
// unfinished one. It returns "" if there is none.
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

// present returns an error of kind errs.Corrupt unless all log files exist. A fork's first file has a copy of the end of its
// parent's last file, so at the end of a leg either of the two suffices. present runs as the owner.
func (h Home) present(names []string, size wal.Segments) error {
	for _, name := range names {
		if err := h.unlinkReused(name, size); err != nil {
			return err
		}
	}
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

// LogLinks names the log files to which [LinkLog] makes links.
type LogLinks struct {
	Home  Home
	Dir   string       // the log files; or, if First is set:
	Names []string     // the first log file; all later ones of its timeline that hold valid log follow
	First string       // size of the log files
	Size  wal.Segments // this size
}

// LinkLog makes a folder of links to log files, from the archive and from the server's folder.
var LinkLog = privsep.Define("physical.linkLog", func(_ context.Context, l LogLinks) (none, error) {
	if err := os.Mkdir(l.Dir, 0o700); err != nil {
		return none{}, err
	}
	if l.First != "" {
		return none{}, l.linkFrom()
	}
	return none{}, l.linkNamed()
})

// linkFrom links the log files of a timeline from l.First on. The live server may keep files for later use, which are empty or
// have the content of another file. pg_waldump fails on such files, so they are left out.
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
		if from == "" && i+1 < len(l.Names) { // a fork's first file begins with the content of its parent's last file
			from = l.Home.locate(l.Names[i+1])
		}
		if err := os.Symlink(from, filepath.Join(l.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// HistoryQuery names a timeline for [History].
type HistoryQuery struct {
	Home Home
	TLI  wal.Timeline
}

// maxHistory is the largest size in bytes of a timeline's history.
const maxHistory = 1 << 20

// History returns the history file of a timeline, or nil if there is none. The archive gets each history before anything is
// written on its timeline.
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

package apply

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// Source is a workspace that files are copied from.
type Source struct {
	Root   *beneath.Root
	Memory walk.Memory     // what its files were when they were last read
	Mapped map[uint64]bool // inode numbers of files that may change although their stat does not
}

// Seed copies ordinary files that the deltas bring from another workspace in which they look the same, and makes the folders of all.
// It leaves out whatever it is not sure of: the caller examines what is there, restores the rest, and makes all of it durable. Seed returns the
// number of files that it copied and of folders that it made.
//
// A copy shares its blocks with the original where the filesystem can do that. If the content of the original is known, so is that of the
// copy, which is not read then.
func (h *Job) Seed(from Source) (made int, err error) {
	if err := h.makeFolders(); err != nil {
		return 0, h.wrap(err)
	}
	meter := snap.NewMeter(h.ctx, "files copied", snap.UnitFiles, int64(len(h.deltas)))
	var mu sync.Mutex
	var known []copied
	err = parallel.InRuns(len(h.deltas), func() (func(int) error, func()) {
		s := &seeder{Job: &Job{job: h.job}, from: from}
		return func(i int) error { defer meter.Add(1); return s.seed(&h.deltas[i]) }, func() {
			mu.Lock()
			defer mu.Unlock()
			known = append(known, s.known...)
			made += s.copies
			s.end()
		}
	})
	if err == nil {
		// A restore makes a folder that has another owner anew, with all that is in it.
		err = h.finishFolders()
	}
	now := time.Now()
	for _, c := range known {
		h.p.Walker.Cache.Add(c.st, c.as, now)
	}
	for i := range h.deltas {
		if d := &h.deltas[i]; d.Old == nil && manifest.IsFolder(d.New) {
			made++
		}
	}
	return made, h.wrap(err)
}

// copied is a copy whose content is known.
type copied struct {
	st inode.Stat
	as *manifest.Entry
}

// seeder is one worker of Seed.
type seeder struct {
	*Job
	from       Source
	source     *beneath.Root // the folder of from that was last opened
	sourcePath string
	known      []copied
	copies     int
}

func (s *seeder) end() {
	s.forget()
	s.closeSource()
}

func (s *seeder) closeSource() {
	if s.source != nil {
		s.source.Close() // opened for reading: nothing can be lost
	}
	s.source = nil
}

func (s *seeder) open(folder string) (*beneath.Root, error) {
	if s.source != nil && s.sourcePath == folder {
		return s.source, nil
	}
	s.closeSource()
	dir, err := s.from.Root.OpenDir(folder)
	if err == nil {
		s.source, s.sourcePath = dir, folder
	}
	return dir, err
}

// seed copies one file. An error says that going on makes no sense.
func (s *seeder) seed(d *diff.Delta) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	e := d.New
	if e == nil || d.Old != nil || d.Mounted() || !e.IsFile() || e.Group() != "" || !s.fileOwner.Plain(e) {
		return nil
	}
	folder, name := relpath.Split(d.Path)
	source, err := s.open(folder)
	if err != nil {
		return nil //nolint:nilerr // the file is not there: the restore brings it
	}
	src, was, err := openSeed(source, name)
	if err != nil || src == nil {
		return nil //nolint:nilerr // as above
	}
	defer src.Close()
	if was.Uid != e.Uid || was.Size != e.Size || was.Mtime != e.Mtime {
		return nil
	}
	dir, err := s.folder(folder)
	if err != nil {
		return s.failed(d.Path, err)
	}
	dst, err := dir.OpenFile(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if err != nil {
		return s.failed(d.Path, err)
	}
	shared, same, err := clone(dst, src, was)
	if err == nil && same {
		err = setMeta(int(dst.Fd()), e)
	}
	if err == nil && same && shared && s.from.has(d.Path, was, e) {
		var st inode.Stat
		st, err = inode.StatAt(int(dst.Fd()), "")
		s.known = append(s.known, copied{st, e})
	}
	if same {
		s.copies++
	} else {
		err = errs.Also(err, unix.Unlinkat(dir.FD(), name, 0))
	}
	return s.failed(d.Path, errs.Also(err, dst.Close()))
}

// has reports whether the content of a file of the source, whose stat is st, is known to be that of e.
func (f Source) has(path string, st inode.Stat, e *manifest.Entry) bool {
	var now manifest.Entry
	return !f.Mapped[st.ID.Ino] && f.Memory.Find(path, st, &now) && now.Hash == e.Hash
}

// openSeed opens a regular file that has one name and no holes. Otherwise it returns nil.
func openSeed(dir *beneath.Root, name string) (*os.File, inode.Stat, error) {
	st, err := inode.StatAt(dir.FD(), name)
	if err != nil || st.Kind() != unix.S_IFREG || st.Nlink != 1 || st.Mount || st.Blocks*512 < st.Size {
		return nil, st, err
	}
	f, err := openSame(dir, name, st)
	return f, st, err
}

// openSame opens a regular file to read it. It returns nil if the file is not any more what its stat st was of.
func openSame(dir *beneath.Root, name string, st inode.Stat) (*os.File, error) {
	f, err := dir.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if now, err := inode.StatAt(int(f.Fd()), ""); err != nil || !now.Same(st) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// clone copies src to dst, and reports whether they share their blocks and whether src stayed as it was meanwhile.
func clone(dst, src *os.File, was inode.Stat) (shared, same bool, err error) {
	shared = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil
	if !shared {
		if _, err := io.Copy(dst, src); err != nil {
			return false, false, err
		}
	}
	now, err := inode.StatAt(int(src.Fd()), "")
	return shared, err == nil && now.Same(was), err
}

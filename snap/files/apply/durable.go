package apply

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
)

// An apply becomes durable in one of two ways. A sync of the whole filesystem writes a thousand small files at once, several
// times faster than a sync of each, but it also waits for the writes of other processes. So it is used for many files when
// other processes have little to write. Otherwise files are synced by their own descriptors in parallel: syncs that wait at the
// same time share a commit of the filesystem's journal and a flush of the disk.

const (
	syncers   = 64       // parallel syncs, if so many files may be open: see syncsAtOnce
	syncsMost = 4096     // more folders than this are always synced with one syncfs
	bulkFiles = 16       // more files than this may be synced with one syncfs
	bulkDirty = 64 << 20 // limit of the whole host's unwritten bytes for one syncfs
)

// expect decides how the next n files become durable.
func (a *job) expect(n int) {
	a.bulk = n > bulkFiles && syncsWhole(a.root.FD()) && dirty() <= bulkDirty
}

// syncsAtOnce returns syncers, or a quarter of the files that this process may have open if that is less. Each sync has a file
// open.
func syncsAtOnce() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return syncers
	}
	return int(max(1, min(syncers, limit.Cur/4)))
}

// syncsWhole reports whether syncfs makes everything durable on the filesystem of fd. On FUSE it may not.
func syncsWhole(fd int) bool {
	return isOn(fd, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC)
}

// isOn reports whether fd is on one of these filesystems.
func isOn(fd int, magics ...int64) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && slices.Contains(magics, int64(st.Type))
}

// dirty returns how many bytes the host still has to write to disks (proc_meminfo(5)). It returns a very large number if this
// is unknown.
func dirty() (bytes int64) {
	text, err := os.ReadFile("/proc/meminfo")
	found := 0
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "Dirty" && name != "Writeback" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err == nil {
			bytes, found = bytes+kib<<10, found+1
		}
	}
	if err != nil || found < 2 {
		return 1 << 62
	}
	return bytes
}

// startWriting starts the write-back of f, for which its sync will wait. When the write-back of all files has started, the
// first sync commits the filesystem's journal for the others too. Errors are ignored, because the sync returns them again.
func (a *job) startWriting(f *os.File) {
	if !a.bulk {
		unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// makeDurable makes the contents of a batch durable.
func (a *job) makeDurable(batch []*staged) error {
	err := parallel.Each(len(batch), syncsAtOnce(), func(i int) error {
		f := batch[i].f
		if f == nil {
			return nil
		}
		batch[i].f = nil
		var err error
		if !a.bulk {
			err = f.Sync()
		}
		return a.failed(batch[i].d.Path, errors.Join(err, f.Close()))
	})
	if err == nil && a.bulk {
		err = a.syncAll()
	}
	return err
}

// sync makes names and folders durable, and files whose metadata alone changed. Contents are durable since they were written.
func (a *job) sync() error {
	list := a.inPlace
	for i := range a.deltas {
		if d := &a.deltas[i]; manifest.IsFolder(d.New) && !d.Mounted() && !a.idle(d) {
			list = append(list, d)
		}
	}
	a.expect(len(list))
	if a.whole || a.bulk || len(list) > syncsMost {
		return a.syncAll()
	}
	err := parallel.Each(len(list), syncsAtOnce(), func(i int) error { return a.syncOne(list[i]) })
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) { // this process may not open them
		return a.syncAll()
	}
	return err
}

func (a *job) syncOne(d *diff.Delta) error {
	folder, name := d.Path, "."
	if !manifest.IsFolder(d.New) {
		folder, name = relpath.Split(d.Path)
	}
	dir, err := a.root.OpenDir(folder)
	if err != nil {
		return a.failed(d.Path, err)
	}
	defer dir.Close() // opened for reading: nothing can be lost
	if name == "." {
		return a.failed(d.Path, unix.Fsync(dir.FD()))
	}
	f, err := dir.OpenFile(name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return a.failed(d.Path, errors.Join(f.Sync(), f.Close()))
}

func (a *job) syncAll() error { return unix.Syncfs(a.root.FD()) }

package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// Small texts that are ordinary files of the app's owner are rewritten where they are,
// when nobody else has a name for them: several times faster than making new files, and whoever has one open
// keeps it. It is not atomic: for some microseconds a reader can meet the
// beginning of the new text and the end of the old, and a power cut can leave
// that. Hence texts only: what has a zero byte or may be executed could be mapped into a process.
// An apply that comes after a crash knows such a mixture when it meets it (woven).

// rewriteMost is the maximal size in bytes of a file that is rewritten in place.
const rewriteMost = 64 << 10

// rewritable reports whether a file may be rewritten in place, according to the manifests.
func rewritable(a, b *manifest.Entry) bool {
	return a != nil && b != nil && a.IsFile() && b.IsFile() && a.Group() == "" && b.Group() == "" && a.Hash != b.Hash &&
		a.Size > 0 && b.Size > 0 && max(a.Size, b.Size) <= rewriteMost && (a.Mode|b.Mode)&0o6111 == 0
}

// Overwrites reports whether the filesystem of fd overwrites old bytes in place, and so needs no free space for it.
func Overwrites(fd int) bool {
	return isOn(fd, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC)
}

// rewriteFiles rewrites the files for which this is possible. placeFiles replaces the others.
func (h *Job) rewriteFiles() error {
	var list []*diff.Delta
	for i := range h.deltas {
		if d := &h.deltas[i]; rewritable(d.Old, d.New) && !d.Mounted() && !d.Remake && h.fileOwner.Keeps(d.Old, d.New) {
			list = append(list, d)
		}
	}
	if len(list) == 0 || !Overwrites(h.root.FD()) {
		return nil
	}
	for batch := range slices.Chunk(list, batchFiles) {
		done := make([]*staged, len(batch))
		h.expect(len(batch))
		err := h.sideBySide(len(batch), func(w *Job, i int) (err error) {
			done[i] = &staged{d: batch[i]}
			if done[i].f, err = w.rewrite(batch[i]); done[i].f != nil {
				w.meter.Add(1)
			}
			return w.failed(batch[i].Path, err)
		})
		done = slices.DeleteFunc(done, func(s *staged) bool { return s == nil })
		if err := errors.Join(err, h.makeDurable(done)); err != nil {
			return err
		}
	}
	return nil
}

// rewrite rewrites the file of d and returns it unsynced. It returns nil if the file cannot be rewritten.
func (h *Job) rewrite(d *diff.Delta) (*os.File, error) {
	if err := h.ctx.Err(); err != nil {
		return nil, err
	}
	v, st, err := h.judge(d)
	if err != nil || v == isNew || st.Nlink != 1 || st.Blocks*512 < st.Size || h.stays[d.Path] {
		return nil, err
	}
	text, err := h.p.Store.Get(d.New.Hash)
	if err == nil && int64(len(text)) != d.New.Size {
		err = fmt.Errorf("%w: %d bytes stored of a file of %d", manifest.ErrFormat, len(text), d.New.Size)
	}
	if err != nil || !zeroFree(text) {
		return nil, err
	}
	folder, name := relpath.Split(d.Path)
	dir, err := h.folder(folder)
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenFile(name, unix.O_RDWR, 0)
	if err != nil {
		return nil, nil // the file is read-only or being executed, and must be replaced
	}
	if err = h.rewriteOpen(f, d, st, text); err == nil && d.Rewritten {
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// rewriteOpen rewrites f, the file of d, which had the stat st.
func (h *Job) rewriteOpen(f *os.File, d *diff.Delta, st inode.Stat, text []byte) error {
	fd := int(f.Fd())
	now, err := inode.StatAt(fd, "")
	if err == nil && (!now.Same(st) || now.Nlink != 1) {
		err = h.changed(d.Path)
	}
	if err != nil {
		return err
	}
	old := make([]byte, st.Size)
	if _, err := io.ReadFull(f, old); err != nil {
		return err
	}
	if !zeroFree(old) {
		return nil
	}
	if int64(len(text)) > st.Blocks*512 {
		err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(text)))
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	d.Rewritten = true
	if int64(len(text)) < st.Size { // first, so that no block is ever half old and half new
		err = f.Truncate(int64(len(text)))
	}
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err == nil {
		h.mu.Lock() // the failpoint must not be called concurrently
		err = h.p.Failpoint.At("file rewritten")
		h.mu.Unlock()
	}
	if err == nil {
		err = setMeta(fd, d.New)
	}
	h.startWriting(f)
	return err
}

func zeroFree(p []byte) bool { return bytes.IndexByte(p, 0) < 0 }

// HalfRewritten reports whether e can be the result of an interrupted rewriting from a to b or back.
func HalfRewritten(s *cas.Store, e, a, b *manifest.Entry) (bool, error) {
	if !rewritable(a, b) || !e.IsFile() || e.Group() != "" || e.Size > max(a.Size, b.Size) || !metaBetween(e, []*manifest.Entry{a, b}) {
		return false, nil
	}
	var texts [3][]byte
	for i, x := range []*manifest.Entry{e, a, b} {
		if x.Size == 0 {
			continue
		}
		var err error
		if texts[i], err = s.Get(x.Hash); err != nil {
			return false, err
		}
	}
	return interleaved(texts[0], texts[1], texts[2]), nil
}

// interleaved reports whether each block of p is from a or b.
func interleaved(p, a, b []byte) bool {
	const block = 4096
	for off := 0; off < len(p); off += block {
		part := p[off:min(off+block, len(p))]
		if !blockOf(part, a, off) && !blockOf(part, b, off) {
			return false
		}
	}
	return true
}

// blockOf reports whether text has part at off, with zeros after its end. A power cut can leave a file longer, with the block
// at its old end unwritten.
func blockOf(part, text []byte, off int) bool {
	text = text[min(off, len(text)):]
	n := min(len(part), len(text))
	return bytes.Equal(part[:n], text[:n]) && cas.AllZero(part[n:])
}

package apply

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/reflink"
	"mulligan/snap/files/relpath"
)

// A large file is stored in pieces, and often only some of them differ between its old and its new state. The others are copied from the file that is
// there, which shares its blocks with the new one where the filesystem can do that. Each piece that is copied is compared with its hash: the file may have
// changed although its stat did not. What is not as it should be comes from the store. A piece whose blocks are still those of the copy that package reflink has
// of the file cannot have changed, and is not read.

// inBoth returns those pieces that d's old and new content have at the same place, by their offsets. There are none if the old file is not there any more
// when the new one is written.
func inBoth(s *cas.Store, d *diff.Delta) (map[int64]manifest.Piece, error) {
	if d.Remake || d.Old == nil || d.New == nil || !d.Old.IsFile() || !d.New.IsFile() || min(d.Old.Size, d.New.Size) <= cas.ChunkSize {
		return nil, nil
	}
	old, err := manifest.PiecesOf(s, d.Old)
	if err != nil {
		return nil, err
	}
	pieces, err := manifest.PiecesOf(s, d.New)
	if err != nil {
		return nil, err
	}
	at := make(map[int64]manifest.Piece, len(old))
	for _, p := range old {
		at[p.Off] = p
	}
	both := map[int64]manifest.Piece{}
	for _, p := range pieces {
		if at[p.Off] == p {
			both[p.Off] = p
		}
	}
	return both, nil
}

// present opens the file that s replaces, if pieces can be copied from it. Otherwise it returns nil.
func (h *Job) present(s *staged) *os.File {
	if s.was.Kind() != unix.S_IFREG {
		return nil
	}
	folder, name := relpath.Split(s.d.Path)
	dir, err := h.folder(folder)
	if err != nil {
		return nil
	}
	f, err := openSame(dir, name, s.was)
	if err != nil {
		return nil // the store has all pieces
	}
	return f
}

// fill writes the new content of s to f, which is empty. What is all zeros stays a hole.
func (h *Job) fill(f *os.File, s *staged) error {
	w := &filler{job: h.job, to: f, path: s.d.Path}
	var err error
	if w.both, err = inBoth(h.p.Store, s.d); err != nil {
		return err
	}
	if len(w.both) > 0 {
		if w.from = h.present(s); w.from != nil {
			defer w.from.Close() // opened for reading: nothing can be lost
		}
	}
	return w.write(s.d.New)
}

// fromStore writes a piece as the store has it.
func (a *job) fromStore(f *os.File, p manifest.Piece) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	text, err := p.Read(a.p.Store)
	if err != nil {
		return err
	}
	return writeAt(f, text, p.Off)
}

func writeAt(f *os.File, p []byte, off int64) error {
	n, err := f.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// filler writes a large file.
type filler struct {
	*job
	to     *os.File
	from   *os.File // the file that is replaced; nil: nothing can be copied from it
	both   map[int64]manifest.Piece
	cloned bool // to shares the blocks of from
	path   string
	as     *reflink.Reading // which pieces of to are as they were captured; nil: it is not known
}

// write writes the content of e.
func (w *filler) write(e *manifest.Entry) error {
	pieces, err := manifest.PiecesOf(w.p.Store, e)
	if err != nil {
		return err
	}
	if e.Size > cas.ChunkSize {
		err = w.clone(pieces, e.Size)
		if err == nil {
			err = w.to.Truncate(e.Size) // there may be a hole at the end
		}
	}
	if err != nil {
		return err
	}
	return parallel.InRuns(len(pieces), func() (func(int) error, func()) {
		var buf []byte // for a piece that is copied
		return func(i int) error {
			if w.from != nil && buf == nil {
				buf = make([]byte, cas.ChunkSize)
			}
			return w.piece(pieces[i], buf)
		}, func() {}
	})
}

// clone makes the new file share the blocks of the one that is replaced, if the filesystem can do that, with holes where the new content has no pieces.
func (w *filler) clone(pieces []manifest.Piece, size int64) error {
	if w.from == nil || unix.IoctlFileClone(int(w.to.Fd()), int(w.from.Fd())) != nil {
		return nil
	}
	if old, err := w.from.Stat(); err == nil {
		w.as = w.p.Walker.Copies.Compare(w.to, w.path, old.Size())
	}
	end := int64(0)
	for _, p := range append(pieces[:len(pieces):len(pieces)], manifest.Piece{Off: size}) {
		if p.Off > end && unix.Fallocate(int(w.to.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, p.Off-end) != nil {
			return w.to.Truncate(0) // this filesystem has no holes: all is written
		}
		end = p.Off + p.Size
	}
	w.cloned = true
	return nil
}

// piece writes a piece. buf has room for one.
func (w *filler) piece(p manifest.Piece, buf []byte) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.from == nil || w.both[p.Off] != p {
		return w.fromStore(w.to, p)
	}
	source := w.from
	if w.cloned {
		source = w.to // nobody else can change it
		if h, ok := w.as.Known(p.Off / cas.ChunkSize); ok && h == p.Hash {
			return nil
		}
	}
	buf = buf[:p.Size]
	if _, err := source.ReadAt(buf, p.Off); err != nil || cas.BlobHash(buf) != p.Hash {
		return w.fromStore(w.to, p)
	}
	if w.cloned {
		return nil
	}
	return writeAt(w.to, buf, p.Off)
}

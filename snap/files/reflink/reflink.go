// Package reflink finds out which parts of a large file have changed since it was last read, so that only these are read. On a filesystem whose files can share their
// blocks, it keeps a copy of the file that shares all of them. Whoever then writes to the file is given other blocks; so the parts that file and copy still share are as
// they were.
package reflink

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
	"mulligan/snap/fiemap"
	"mulligan/snap/files/manifest"
)

// Least is the size of the smallest files, in bytes, that are copied. Smaller ones are read as quickly.
const Least = 16 << 20

// The limits of what is kept.
const (
	mostFiles   = 64
	mostExtents = 4096             // of a file: more take much memory, and a file in so many parts should not be divided further
	lookEvery   = 10 * time.Second // how often the age of the copies, and the room on the disk, are looked at
	unused      = 15 * time.Minute // after which a copy is given up
)

// Copies has the copies of the files of a workspace. They have no names, and are gone with the process. Safe for concurrent use. Its zero value keeps nothing.
type Copies struct {
	dir string

	// mu is held for reading while the extents of a file are compared with those of a copy. The copy must be there until then: once it is gone, its blocks may become
	// those of another file.
	mu    sync.RWMutex
	files map[string]*file // by path
	timer *time.Timer
}

// file is what was last read of a file.
type file struct {
	size   int64
	hashes map[int64]snap.Hash // of its pieces, except those of zeros
	steady bool                // most of it was the same the time before
	used   time.Time

	copy    *os.File // nil: there is none
	extents []fiemap.Extent
}

// New returns Copies that are kept in dir: only files of the same filesystem are copied.
func New(dir string) *Copies { return &Copies{dir: dir, files: map[string]*file{}} }

// Reading is the reading of one file. Its methods may be called at the same time.
type Reading struct {
	File *os.File // what must be read: the file, or a copy of it that nobody changes

	c       *Copies // nil: nothing is kept
	path    string
	size    int64
	before  *file // what was read the time before; nil: nothing
	copied  bool
	extents []fiemap.Extent // of the copy
	same    []bool          // by the number of a piece
}

// Begin begins to read f, whose size is given in bytes. The path is a name for it. The caller must close the reading.
//
// At first f itself is read, twice: that shows whether it is written anew, as by a compiler, or changed in some places. A copy is made in the second case alone, and from then on as long as
// its blocks are mostly those of the file. For what is new must be written to the disk before it is copied, and is read from there again.
func (c *Copies) Begin(f *os.File, path string, size int64) *Reading {
	r := &Reading{File: f, path: path, size: size}
	if c == nil || c.dir == "" || size < Least || !shares(f) {
		return r
	}
	r.c = c
	if !r.worthCopying() {
		return r
	}
	copied, err := c.clone(f)
	if err != nil {
		return r
	}
	if err = r.compare(copied); err != nil {
		copied.Close() // nothing was written to it
		return r
	}
	r.File, r.copied = copied, true
	return r
}

// worthCopying looks up what was read the time before.
func (r *Reading) worthCopying() bool {
	r.c.mu.RLock()
	defer r.c.mu.RUnlock()
	r.before = r.c.files[r.path]
	if r.before == nil || !r.before.steady {
		return false
	}
	if r.before.copy != nil {
		now, err := extentsOf(r.File, false)
		if err != nil || !mostly(r.before.extents, now) {
			return false
		}
	}
	total := r.size
	for path, k := range r.c.files {
		if path != r.path && k.copy != nil {
			total += k.size
		}
	}
	return r.c.roomFor(total)
}

// Compare compares f, which nobody else can change, with what is known of the file at path. Of the reading, only Known may be called.
func (c *Copies) Compare(f *os.File, path string, size int64) *Reading {
	r := &Reading{File: f, c: c, path: path, size: size}
	if c == nil || size < Least || !shares(f) || r.compare(f) != nil {
		return &Reading{}
	}
	return r
}

// compare determines which pieces of f are those of the copy.
func (r *Reading) compare(f *os.File) error {
	r.c.mu.RLock()
	defer r.c.mu.RUnlock()
	now, err := extentsOf(f, true)
	if err != nil {
		return err
	}
	r.extents = now
	if r.before = r.c.files[r.path]; r.before != nil && r.before.copy != nil {
		r.same = samePieces(r.before.extents, now, r.before.size, r.size)
	}
	return nil
}

// Known returns the hash of the piece i if it is certainly as it was when the file was last read. A piece of zeros has the hash zero. A nil Reading knows nothing.
func (r *Reading) Known(i int64) (h snap.Hash, ok bool) {
	if r == nil || i >= int64(len(r.same)) || !r.same[i] {
		return h, false
	}
	return r.before.hashes[i], true
}

// Done says that the pieces of File have these hashes, except those of zeros. A copy is kept from now on.
func (r *Reading) Done(hashes map[int64]snap.Hash) {
	if r.c == nil {
		return
	}
	k := &file{size: r.size, hashes: hashes, used: time.Now()}
	if r.before != nil {
		same := int64(0)
		for i := range manifest.Pieces(r.size) {
			if i < manifest.Pieces(r.before.size) && hashes[i] == r.before.hashes[i] {
				same++
			}
		}
		k.steady = 2*same >= manifest.Pieces(r.size)
	}
	if r.copied {
		k.copy, k.extents = r.File, r.extents
		r.copied = false
	}
	r.c.put(r.path, k)
}

// Close ends the reading.
func (r *Reading) Close() {
	if r.copied {
		r.File.Close() // nothing was written to it
	}
}

// clone makes a copy of f.
func (c *Copies) clone(f *os.File) (*os.File, error) {
	dir, err := beneath.Open(c.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // it was only read
	to, err := dir.OpenFile(".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlFileClone(int(to.Fd()), int(f.Fd())); err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return to, nil
}

// put keeps k, in the place of what was known of the file at path.
func (c *Copies) put(path string, k *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(path)
	if len(c.files) >= mostFiles {
		oldest := ""
		for p, f := range c.files {
			if oldest == "" || f.used.Before(c.files[oldest].used) {
				oldest = p
			}
		}
		c.forget(oldest)
	}
	c.files[path] = k
	c.tidy()
}

// forget forgets the file at path. c.mu must be held.
func (c *Copies) forget(path string) {
	if k := c.files[path]; k != nil && k.copy != nil {
		k.copy.Close() // nothing was written to it
	}
	delete(c.files, path)
}

// tidy gives up the copies that were not used for a while, and all of them when the disk may need what they hold. c.mu must be held.
func (c *Copies) tidy() {
	total := int64(0)
	for path, k := range c.files {
		if time.Since(k.used) > unused {
			c.forget(path)
		} else if k.copy != nil {
			total += k.size
		}
	}
	if !c.roomFor(total) {
		for path := range c.files {
			c.forget(path)
		}
	}
	if len(c.files) > 0 {
		c.later()
	}
}

// roomFor reports whether the disk has twice as much room as all of total bytes, which files may have to be given when they are overwritten.
func (c *Copies) roomFor(total int64) bool {
	if total == 0 {
		return true
	}
	var st unix.Statfs_t
	return unix.Statfs(c.dir, &st) == nil && int64(st.Bavail)*st.Bsize > 2*total
}

// later has tidy called again. c.mu must be held.
func (c *Copies) later() {
	if c.timer != nil {
		c.timer.Reset(lookEvery)
		return
	}
	c.timer = time.AfterFunc(lookEvery, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tidy()
	})
}

// shares reports whether f lies on a filesystem whose files share blocks, and whose extents say which. Others can share them too, but have several disks with the same
// numbers, or nothing is known of them.
func shares(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && (st.Type == unix.XFS_SUPER_MAGIC || st.Type == unix.BTRFS_SUPER_MAGIC)
}

var errTooMany = errors.New("the file is in too many parts")

// extentsOf lists the extents of f. With written, f is first written to the disk.
func extentsOf(f *os.File, written bool) (list []fiemap.Extent, err error) {
	asked := fiemap.Each(f, written, func(e fiemap.Extent) bool {
		if len(list) == mostExtents {
			err = errTooMany
			return false
		}
		list = append(list, e)
		return true
	})
	return list, errors.Join(err, asked)
}

// samePieces returns for each piece of a file, which has the extents now, whether it is certainly the one of an earlier file. Sizes are in bytes.
func samePieces(before, now []fiemap.Extent, sizeBefore, sizeNow int64) []bool {
	same := make([]bool, manifest.Pieces(sizeNow))
	end := func(i, size int64) uint64 { return uint64(min((i+1)*cas.ChunkSize, size)) }
	equal := equalRanges(before, now, uint64(min(sizeBefore, sizeNow)))
	at := 0
	for i := range same {
		i := int64(i)
		from, to := uint64(i*cas.ChunkSize), end(i, sizeNow)
		for at < len(equal) && equal[at].to < to {
			at++
		}
		same[i] = i < manifest.Pieces(sizeBefore) && to == end(i, sizeBefore) && at < len(equal) && equal[at].from <= from
	}
	return same
}

type span struct{ from, to uint64 }

// equalRanges returns the ranges, up to size, in which two files have the same blocks, or none. They are sorted, and do not touch.
func equalRanges(a, b []fiemap.Extent, size uint64) (list []span) {
	for at := uint64(0); at < size; {
		pa, enda := placeAt(&a, at, size)
		pb, endb := placeAt(&b, at, size)
		end := min(enda, endb)
		if n := len(list); pa.equal(pb) && n > 0 && list[n-1].to == at {
			list[n-1].to = end
		} else if pa.equal(pb) {
			list = append(list, span{at, end})
		}
		at = end
	}
	return list
}

// place is where a part of a file lies on the disk.
type place struct {
	hole      bool
	inexact   bool // it is not known where
	unwritten bool
	at        uint64
}

func (p place) equal(q place) bool { return p == q && !p.inexact }

// placeAt returns the place of the byte at, and up to where the file goes on from there without a gap, size at most. It drops extents before that from list.
func placeAt(list *[]fiemap.Extent, at, size uint64) (p place, end uint64) {
	for len(*list) > 0 && (*list)[0].Logical+(*list)[0].Length <= at {
		*list = (*list)[1:]
	}
	if len(*list) == 0 {
		return place{hole: true}, size
	}
	e := (*list)[0]
	if e.Logical > at {
		return place{hole: true}, min(e.Logical, size)
	}
	end = min(e.Logical+e.Length, size)
	if e.Flags&(fiemap.Placeless|fiemap.Inexact) != 0 {
		return place{inexact: true}, end
	}
	return place{unwritten: e.Flags&fiemap.Unwritten != 0, at: e.Physical + (at - e.Logical)}, end
}

// mostly reports whether at least half of the bytes that the extents now hold lie where they did before.
func mostly(before, now []fiemap.Extent) bool {
	held, end := uint64(0), uint64(0)
	for _, e := range now {
		held, end = held+e.Length, e.Logical+e.Length
	}
	kept := uint64(0)
	holes := end - held // which are equal as well, where both have them
	for _, s := range equalRanges(before, now, end) {
		kept += s.to - s.from
	}
	return held > 0 && kept > holes && kept-holes >= held/2
}

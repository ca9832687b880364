package files

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/filetime"
)

// known is what reading a file told, and the signs by which it is still true.
type known struct {
	mode         uint32
	size         int64
	mtime, ctime inode.Time
	link         string
	xattrs       []inode.Xattr
	hash         snap.Hash
}

// statCache remembers contents by inode and stat, so that what did not change
// is not read again. It is never the truth: without it everything is read.
type statCache struct {
	mu    sync.Mutex
	known map[inode.ID]known
	fresh int // entries that the file on disk lacks
}

// find fills in what e needs beyond st, if that is known.
func (c *statCache) find(st inode.Stat, e *entry) bool {
	c.mu.Lock()
	k, ok := c.known[st.ID]
	c.mu.Unlock()
	if !ok || k.mode != st.Mode || k.size != st.Size || k.mtime != st.Mtime || k.ctime != st.Ctime {
		return false
	}
	e.setLink(k.link)
	e.setXattrs(k.xattrs)
	e.hash = k.hash
	return true
}

// settled reports whether what was read at the time read, while st held, can
// be told from what is written later. The mtime counts too: not every
// filesystem keeps a ctime of its own.
func settled(st inode.Stat, read time.Time) bool {
	ahead := st.Mtime.Nanos() > read.UnixNano() // somebody chose it
	return over(st.Ctime, read) && (ahead || over(st.Mtime, read))
}

// over reports whether a write at the time now, or later, gets another timestamp than t.
func over(t inode.Time, now time.Time) bool { return filetime.Settled(t.Sec, t.Nsec, now) }

// memory is where a walk finds what it need not read, and leaves what it read.
type memory interface {
	find(path string, st inode.Stat, e *entry) bool
	add(st inode.Stat, e *entry, read time.Time)
}

// byInode is a statCache as a walk's memory.
type byInode struct{ *statCache }

func (c byInode) find(_ string, st inode.Stat, e *entry) bool { return c.statCache.find(st, e) }

// onlyFinds is byInode for a walk whose own memory is the tree that it makes.
type onlyFinds struct{ byInode }

func (onlyFinds) add(inode.Stat, *entry, time.Time) {}

// add remembers e, read at the time read or later while st held.
func (c *statCache) add(st inode.Stat, e *entry, read time.Time) {
	if !settled(st, read) {
		return
	}
	k := known{st.Mode, st.Size, st.Mtime, st.Ctime, e.link(), e.xattrs(), e.hash}
	c.mu.Lock()
	c.known[st.ID] = k
	c.fresh++
	c.mu.Unlock()
}

// forget forgets everything: somebody else remembers.
func (c *statCache) forget() {
	c.mu.Lock()
	c.known = map[inode.ID]known{}
	c.mu.Unlock()
}

// fill takes over what a tree surely knows.
func (c *statCache) fill(l *live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, k := range l.surely() {
		c.known[id] = k
		c.fresh++
	}
}

// surely gives what the tree surely knows.
func (l *live) surely() iter.Seq2[inode.ID, known] {
	return func(yield func(inode.ID, known) bool) {
		var visit func(n *node) bool
		visit = func(n *node) bool {
			if n.sure && !n.mount {
				k := known{n.mode, n.size, n.mtime, n.ctime, n.link(), n.xattrs(), n.hash}
				if n.isDir() {
					k.hash = snap.Hash{}
				}
				if !yield(n.id, k) {
					return false
				}
			}
			for _, k := range n.kids {
				if !visit(k) {
					return false
				}
			}
			return true
		}
		visit(l.root)
	}
}

// retain forgets every file that was not seen.
func (c *statCache) retain(seen map[inode.ID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.known {
		if !seen[id] {
			delete(c.known, id)
		}
	}
}

const (
	cacheName  = "stat-cache"
	cacheMagic = "mulligan stat cache 2\n"
)

// loadCache reads what an earlier process saved; whatever is wrong with it
// only costs reading the files again.
func loadCache(dir string) *statCache {
	c := &statCache{known: map[inode.ID]known{}}
	b, err := os.ReadFile(filepath.Join(dir, cacheName))
	if err != nil || len(b) < len(cacheMagic)+32 {
		return c
	}
	body, sum := b[:len(b)-32], b[len(b)-32:]
	want := blake3.Sum256(body)
	if !bytes.Equal(sum, want[:]) || string(body[:len(cacheMagic)]) != cacheMagic {
		return c
	}
	m, err := decodeCache(body[len(cacheMagic):])
	if err != nil {
		return c
	}
	c.known = m
	return c
}

// save writes the cache when so much of it is new that losing it would be
// felt: a full write for every few files would cost more than it saves.
func (c *statCache) save(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh == 0 || c.fresh < len(c.known)/100 {
		return nil
	}
	err := saveKnown(dir, maps.All(c.known))
	if err == nil {
		c.fresh = 0
	}
	return err
}

// saveKnown writes a cache file, piece by piece: all of it at once would take
// much memory. A checksum, not an fsync, guards it.
func saveKnown(dir string, all iter.Seq2[inode.ID, known]) error {
	tmp := filepath.Join(dir, cacheName+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	sum := blake3.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)
	_, err = w.WriteString(cacheMagic)
	var b []byte
	for id, k := range all {
		if err != nil {
			break
		}
		b = k.append(b[:0], id)
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		_, err = f.Write(sum.Sum(nil))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, cacheName))
}

func (k *known) append(b []byte, id inode.ID) []byte {
	for _, v := range []uint64{id.Dev, id.Ino, uint64(k.size)} {
		b = binary.AppendUvarint(b, v)
	}
	for _, t := range []inode.Time{k.mtime, k.ctime} {
		b = binary.AppendVarint(b, t.Sec)
		b = binary.AppendUvarint(b, uint64(t.Nsec))
	}
	b = append(b, k.hash[:]...)
	e := entry{mode: k.mode}
	e.setLink(k.link)
	e.setXattrs(k.xattrs)
	return e.append(b)
}

func decodeCache(b []byte) (map[inode.ID]known, error) {
	out := map[inode.ID]known{}
	r := reader{b: b}
	for len(r.b) > 0 {
		id := inode.ID{Dev: r.uvarint(), Ino: r.uvarint()}
		k := known{size: int64(r.uvarint())}
		k.mtime, k.ctime = inode.Time{Sec: r.varint(), Nsec: r.uint32()}, inode.Time{Sec: r.varint(), Nsec: r.uint32()}
		if len(r.b) < len(k.hash) {
			return nil, errManifest
		}
		r.b = r.b[copy(k.hash[:], r.b):]
		var e entry
		r.fields(&e)
		if r.err != nil {
			return nil, r.err
		}
		k.mode, k.link, k.xattrs = e.mode, e.link(), e.xattrs()
		out[id] = k
	}
	return out, nil
}

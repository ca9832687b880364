package walk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/filetime"
)

// record is the result of reading a file, with the stat values by which a change is recognised.
type record struct {
	mode         uint32
	size         int64
	mtime, ctime inode.Time
	link         string
	xattrs       []inode.Xattr
	hash         snap.Hash
	seen         uint32 // number of the last walk that found or read the file
}

// Cache remembers contents by inode and stat, so that unchanged files are not read again. It only saves time: without it,
// everything is read. Safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	known map[inode.ID]*record
	fresh int    // entries that the cache file lacks
	walk  uint32 // number of the last walk that began
	below func() map[uint64]*record
}

// Under adds what the cache file in dir knows of the files below a mount: a file that the mount shows unchanged has the number, the times and the size
// of the file below, and only another device. The file is read when a walk first needs it, and not after the first whole walk.
func (c *Cache) Under(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.below = sync.OnceValue(func() map[uint64]*record {
		files := map[uint64]*record{}
		for id, k := range LoadCache(dir).known {
			files[id.Ino] = k
		}
		return files
	})
}

// find returns the record for st, from below if the cache has none.
func (c *Cache) find(st inode.Stat) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.known[st.ID]
	if (!ok || !k.is(st)) && c.below != nil {
		if k, ok = c.below()[st.ID.Ino]; ok && k.is(st) {
			c.known[st.ID] = k
			c.fresh++
		}
	}
	if !ok || !k.is(st) {
		return record{}, false
	}
	k.seen = c.walk
	return *k, true
}

// is reports whether the record is of a file with this stat.
func (k *record) is(st inode.Stat) bool {
	return k.mode == st.Mode && k.size == st.Size && k.mtime == st.Mtime && k.ctime == st.Ctime
}

// size returns the number of entries, which is about that of the workspace's files: 0 before the first walk.
func (c *Cache) size() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.known))
}

// Find copies link target, attributes and hash into e, and returns true, if the cache has them for st.
func (c *Cache) Find(_ string, st inode.Stat, e *manifest.Entry) bool {
	k, ok := c.find(st)
	if !ok {
		return false
	}
	e.SetLink(k.link)
	e.SetXattrs(k.xattrs)
	e.Hash = k.hash
	return true
}

// Reliable reports whether any write after the time read changes a stat that was st at that time. The mtime must be old enough
// too, because not every filesystem keeps a ctime of its own.
func Reliable(st inode.Stat, read time.Time) bool {
	ahead := st.Mtime.Nanos() > read.UnixNano() // a program set it
	return over(st.Ctime, read) && (ahead || over(st.Mtime, read))
}

// over reports whether a write at the time now, or later, gets another timestamp than t.
func over(t inode.Time, now time.Time) bool { return filetime.Reliable(t.Sec, t.Nsec, now) }

// Memory has the results of earlier readings, and gets the new ones. Find fills in e and returns true if it knows the file.
type Memory interface {
	Find(path string, st inode.Stat, e *manifest.Entry) bool
	Add(st inode.Stat, e *manifest.Entry, read time.Time)
}

// ReadOnly is a cache to which nothing is added, because the tree that the walk builds has the results.
type ReadOnly struct{ *Cache }

func (ReadOnly) Add(inode.Stat, *manifest.Entry, time.Time) {}

// Add stores e, which was read at or after the time read, while the file's stat was st. Add does nothing if st is not reliable.
func (c *Cache) Add(st inode.Stat, e *manifest.Entry, read time.Time) {
	if !Reliable(st, read) {
		return
	}
	k := &record{st.Mode, st.Size, st.Mtime, st.Ctime, e.Link(), e.Xattrs(), e.Hash, 0}
	c.mu.Lock()
	k.seen = c.walk
	c.known[st.ID] = k
	c.fresh++
	c.mu.Unlock()
}

// Forget empties the cache, because a tree in memory has the same results.
func (c *Cache) Forget() {
	c.mu.Lock()
	c.known, c.below = map[inode.ID]*record{}, nil
	c.mu.Unlock()
}

// Fill adds the reliable entries of a tree.
func (c *Cache) Fill(root *manifest.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, k := range Known(root) {
		c.known[id] = &k
		c.fresh++
	}
}

// Known yields the reliable entries of a tree.
func Known(root *manifest.Node) iter.Seq2[inode.ID, record] {
	return func(yield func(inode.ID, record) bool) {
		var visit func(n *manifest.Node) bool
		visit = func(n *manifest.Node) bool {
			if n.Sure && !n.Mount {
				k := record{n.Mode, n.Size, n.Mtime, n.Ctime, n.Link(), n.Xattrs(), n.Hash, 0}
				if n.IsDir() {
					k.hash = snap.Hash{}
				}
				if !yield(n.ID, k) {
					return false
				}
			}
			for k := range n.All {
				if !visit(k) {
					return false
				}
			}
			return true
		}
		visit(root)
	}
}

// begin returns the number of a new walk.
func (c *Cache) begin() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.walk++
	return c.walk
}

// retain removes every file that neither the whole walk of this number nor a later one met.
func (c *Cache) retain(walk uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.below = nil // known has what is used of it
	for id, k := range c.known {
		if k.seen < walk {
			delete(c.known, id)
		}
	}
}

const (
	cacheName  = "stat-cache"
	cacheMagic = "mulligan stat cache 2\n"
)

// LoadCache reads the cache file that an earlier process saved in dir. If the file is missing or damaged, the cache is empty,
// and the workspace's files are read again.
func LoadCache(dir string) *Cache {
	c := &Cache{known: map[inode.ID]*record{}}
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

// Save writes the cache file if at least a hundredth of the cache is new. To write it for fewer files would cost more than it
// saves.
func (c *Cache) Save(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh == 0 || c.fresh < len(c.known)/100 {
		return nil
	}
	err := SaveCache(dir, func(yield func(inode.ID, record) bool) {
		for id, k := range c.known {
			if !yield(id, *k) {
				return
			}
		}
	})
	if err == nil {
		c.fresh = 0
	}
	return err
}

// SaveCache writes a cache file record by record, which needs less memory than to encode all of it first. The file has a
// checksum and is not synced to disk.
func SaveCache(dir string, all iter.Seq2[inode.ID, record]) error {
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

func (k *record) append(b []byte, id inode.ID) []byte {
	for _, v := range []uint64{id.Dev, id.Ino, uint64(k.size)} {
		b = binary.AppendUvarint(b, v)
	}
	for _, t := range []inode.Time{k.mtime, k.ctime} {
		b = binary.AppendVarint(b, t.Sec)
		b = binary.AppendUvarint(b, uint64(t.Nsec))
	}
	b = append(b, k.hash[:]...)
	e := manifest.Entry{Mode: k.mode}
	e.SetLink(k.link)
	e.SetXattrs(k.xattrs)
	return e.Append(b)
}

// recordSize is about the number of bytes of a record in the cache file.
const recordSize = 80

func decodeCache(b []byte) (map[inode.ID]*record, error) {
	out := make(map[inode.ID]*record, len(b)/recordSize)
	r := manifest.Decoder{Rest: b}
	for len(r.Rest) > 0 {
		id := inode.ID{Dev: r.Uvarint(), Ino: r.Uvarint()}
		k := &record{size: int64(r.Uvarint())}
		k.mtime, k.ctime = inode.Time{Sec: r.Varint(), Nsec: r.Uint32()}, inode.Time{Sec: r.Varint(), Nsec: r.Uint32()}
		k.hash = r.Digest()
		var e manifest.Entry
		r.Fields(&e)
		if r.Err != nil {
			return nil, r.Err
		}
		k.mode, k.link, k.xattrs = e.Mode, e.Link(), e.Xattrs()
		out[id] = k
	}
	return out, nil
}

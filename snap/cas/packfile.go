package cas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"mulligan/durable"
	"mulligan/snap/cas/mark"
)

// A pack is a segment that is written as a whole and never grows: a file NNNNNNNN.pack with groups. The numbers of packs begin
// at firstPack, so that they differ from those of the log's segments.
const firstPack = 1 << 31

func packPath(dir string, seq uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%08x.pack", seq-firstPack))
}

func (g *segment) isPack() bool { return g.seq >= firstPack }

// packWriter writes one pack, under a temporary name until finish.
type packWriter struct {
	s *Store
	g *segment
}

func (s *Store) newPack() (*packWriter, error) {
	seq := max(s.lastPack, firstPack-1) + 1
	g := &segment{seq: seq, path: packPath(s.dir, seq)}
	f, err := os.OpenFile(g.path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	g.f = f
	g.size.Store(segHeaderSize)
	w := &packWriter{s: s, g: g}
	if _, err := f.WriteAt(mark.Header(mark.Pack, s.salt, seq), 0); err != nil {
		w.abandon()
		return nil, err
	}
	s.lastPack = seq
	return w, nil
}

// add appends a record and returns its offset.
func (w *packWriter) add(r *record) (off int64, err error) {
	if err := w.s.opt.Failpoint.At("pack-group"); err != nil {
		return 0, err
	}
	off = w.g.size.Load()
	r.put(r.buf, w.s.salt, w.g.seq, off)
	if _, err := w.g.f.WriteAt(r.buf, off); err != nil {
		return 0, err
	}
	w.g.size.Store(off + r.size())
	return off, nil
}

// finish makes the pack durable and renames it to its final name.
func (w *packWriter) finish() error {
	if err := w.s.opt.Failpoint.At("sync-pack"); err != nil {
		return err
	}
	if err := fdatasync(w.g.f); err != nil {
		return err
	}
	if err := w.s.opt.Failpoint.At("name-pack"); err != nil {
		return err
	}
	if err := os.Rename(w.g.path+".tmp", w.g.path); err != nil {
		return err
	}
	if err := durable.Sync(w.s.dir); err != nil {
		os.Remove(w.g.path)
		return err
	}
	return nil
}

func (w *packWriter) abandon() {
	w.g.f.Close()
	os.Remove(w.g.path + ".tmp")
	os.Remove(w.g.path) // finish may have renamed the pack; nothing points to it
}

// span is one group of a pack: its offset, its size in bytes, and its objects.
type span struct {
	off, size int64
	objects   []object
}

// scanPack returns the groups of a pack. If refs is set, it also reads the refs of nodes. Groups that cannot be read are left
// out. Nodes whose refs cannot be read are bad.
func (s *Store) scanPack(g *segment, refs bool) (spans []span, err error) {
	sc := &scanner{r: g, size: g.size.Load(), seq: g.seq, salt: s.salt}
	for off := int64(segHeaderSize); off < sc.size; {
		h, objects, err := s.scanGroup(g, off, refs)
		if errors.Is(err, errGroup) {
			if off, err = sc.find(off + 1); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		spans = append(spans, span{off, h.size(), objects})
		off += h.size()
	}
	return spans, nil
}

// scanGroup reads the header and the table of the group at off. It returns errGroup if there is no valid group.
func (s *Store) scanGroup(g *segment, off int64, refs bool) (h header, objects []object, err error) {
	var hb [headerSize]byte
	if off+headerSize > g.size.Load() {
		return h, nil, errGroup
	}
	if err := readFull(g, hb[:], off); err != nil {
		return h, nil, err
	}
	h, ok := parseHeader(hb[:], s.salt, g.seq, off)
	size, _, fits := h.tableSize()
	if !ok || h.kind < kindBlobs || !fits || off+h.size() > g.size.Load() {
		return h, nil, errGroup
	}
	p := make([]byte, size)
	if err := readFull(g, p, off+headerSize); err != nil {
		return h, nil, err
	}
	gr, err := parseTable(&h, p)
	if err != nil {
		return h, nil, err
	}
	objects = gr.objects(&h, off)
	if refs && h.kind == kindNodes {
		err = s.nodeRefs(g, off, objects)
	}
	return h, objects, err
}

// nodeRefs sets the refs of a group's nodes, and sets bad for those that are damaged.
func (s *Store) nodeRefs(g *segment, off int64, objects []object) error {
	gr, err := s.readGroup(g, off)
	if durable.Unreadable(err) {
		return err
	}
	if err != nil || len(gr.table) != len(objects) {
		for i := range objects {
			objects[i].bad = true
		}
		return nil
	}
	gr.each(func(i int, p []byte, err error) {
		if objects[i].bad = err != nil; err == nil {
			objects[i].refs, _ = gr.table[i].split(p)
		}
	})
	return nil
}

// readGroup reads the group at off.
func (s *Store) readGroup(g *segment, off int64) (*group, error) {
	r, err := s.groupRecord(g, off)
	if err != nil {
		return nil, err
	}
	return parseGroup(r)
}

func (s *Store) groupRecord(g *segment, off int64) (*record, error) {
	var hb [headerSize]byte
	if err := readFull(g, hb[:], off); err != nil {
		return nil, err
	}
	h, ok := parseHeader(hb[:], s.salt, g.seq, off)
	if !ok || h.kind < kindBlobs || off+h.size() > g.size.Load() {
		return nil, errGroup
	}
	r := &record{header: h, buf: make([]byte, h.size())}
	return r, readFull(g, r.buf, off)
}

// loadGrouped reads and verifies the object h, whose entry e is in a group of g.
func (s *Store) loadGrouped(g *segment, h Hash, e entry) (c content, err error) {
	gr, err := s.cachedGroup(g, int64(e.off))
	if err != nil {
		return c, err
	}
	if int(e.slot) >= len(gr.table) || gr.table[e.slot].hash != h {
		return c, errors.New("no such object at its place")
	}
	p, err := gr.bytes(int(e.slot))
	if err != nil {
		return c, err
	}
	m := &gr.table[e.slot]
	c = content{kind: gr.kind, series: m.series}
	if c.kind == kindNode {
		c.refs, p = m.split(p)
	}
	c.data = p
	if m.back == 0 { // the caller may change the data, and must not change the cached group
		c.data = slices.Clone(p)
	}
	return c, verify(c.kind, h, c.refs, c.data)
}

// groupCache keeps the groups that were read last, because objects that are restored together are mostly stored together.
type groupCache struct {
	mu   sync.Mutex
	list []cachedGroup // least recently used first
	size int
}

type cachedGroup struct {
	seq uint32
	off int64
	g   *group
}

// cacheBytes is the size of the cache in bytes. A single group may be larger.
const cacheBytes = 4 << 20

func (s *Store) cachedGroup(g *segment, off int64) (*group, error) {
	c := &s.groups
	if gr := c.get(g.seq, off); gr != nil {
		return gr, nil
	}
	gr, err := s.readGroup(g, off)
	if err == nil {
		c.add(cachedGroup{g.seq, off, gr})
	}
	return gr, err
}

func (c *groupCache) get(seq uint32, off int64) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.list {
		if x.seq == seq && x.off == off {
			c.list = append(slices.Delete(c.list, i, i+1), x)
			return x.g
		}
	}
	return nil
}

func (c *groupCache) add(x cachedGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.size = append(c.list, x), c.size+x.g.memory()
	for c.size > cacheBytes && len(c.list) > 1 {
		c.size -= c.list[0].g.memory()
		c.list = slices.Delete(c.list, 0, 1)
	}
}

// memory returns the approximate size of a group in memory, in bytes.
func (g *group) memory() int { return len(g.stream) + 64*len(g.table) }

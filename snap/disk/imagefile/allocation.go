package imagefile

import (
	"sync"

	"mulligan/errs"
)

// Allocation describes the ranges that an image stores itself.
type Allocation struct {
	List    []Extent // ranges with an entry in its tables
	data    []Extent // the part of List that occupies space; the rest reads as zeros
	tables  int      // L2 tables
	cluster int64    // bytes
	span    int64    // bytes that one L2 table describes
	Blocks  int64    // bytes on disk
}

// MapCache caches the allocations of frozen images. It is safe for concurrent use.
type MapCache struct {
	mu sync.Mutex
	of map[string]cachedMap // by path
}

type cachedMap struct {
	stat Stat
	Allocation
}

// MapOf returns the allocation of the image at path, from the cache if it is there.
func (c *MapCache) MapOf(path string) (Allocation, error) {
	st, err := StatOf(path)
	if err != nil {
		return Allocation{}, err
	}
	c.mu.Lock()
	known, ok := c.of[path]
	c.mu.Unlock()
	if ok && known.stat == st {
		return known.Allocation, nil
	}
	img, r, err := OpenImage(path)
	if err != nil {
		return Allocation{}, err
	}
	defer r.Close() // only read
	a := Allocation{cluster: img.Cluster, span: img.Span(), Blocks: Blocks(path)}
	if a.List, a.data, a.tables, err = img.allocated(r); err != nil {
		return Allocation{}, errs.New(errs.Corrupt, "", "%s: %v", path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]cachedMap{}
	}
	c.of[path] = cachedMap{st, a}
	return a, nil
}

// page is the unit of allocated space and holes in a file, in bytes.
const page = 4 << 10

// Over returns the allocation of an image after its backing file p was merged into it.
func (a Allocation) Over(p Allocation) Allocation {
	m := a
	brought := Without(p.data, a.List)
	m.List, m.data = Union(a.List, p.List), Union(a.data, brought)
	m.tables = windows(m.List, a.span)
	full := max(a.Blocks-Total(a.data), 0) + int64(m.tables-a.tables)*a.cluster
	m.Blocks = Total(m.data) + min(full, m.thin(brought))
	return m
}

// Most returns the most bytes that a copy of the image can occupy after the contents of the images below were written to it. QEMU
// may write zeros as data.
func (a Allocation) Most(below []Allocation) int64 {
	list := a.List
	for _, b := range below {
		list = Union(list, b.List)
	}
	return a.Blocks + Total(list) - Total(a.List) + int64(windows(list, a.span)-a.tables)*a.cluster
}

// thin returns the space in bytes of the tables of an image that was copied with holes for zeros, and to which brought was
// written afterwards. QEMU writes the header and changed tables as whole clusters.
func (a Allocation) thin(brought []Extent) int64 {
	pages := 2 + windows(a.List, a.span*page/a.cluster) // of the two top tables, and the L2 tables
	pages += int((Total(a.data)/a.cluster)*2/page) + 1  // of the reference counts, 2 bytes each
	written := 0
	if len(brought) > 0 {
		written = 1 + windows(brought, a.span)
	}
	return a.cluster + int64(pages)*page + int64(written)*(a.cluster-page)
}

// windows counts the consecutive windows of size bytes that overlap with an extent.
func windows(list []Extent, size int64) (n int) {
	last := int64(-1)
	for _, e := range list {
		first, end := max(e.from/size, last+1), (e.to-1)/size
		if end >= first {
			n += int(end - first + 1)
			last = end
		}
	}
	return n
}

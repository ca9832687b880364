package cas

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/cas/mark"
)

const opOpen = "open the store"

// Open opens the store in the folder dir, and creates it if it does not exist. Open locks the folder. The error is of kind
// errs.Busy if another process has the store open, and errs.Unsupported if this build does not know its format. Open returns no
// error for damaged objects: Get and Check find them. What the disk cannot read is damaged too, see [Store.Unread].
func Open(dir string, o Options) (*Store, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 128 << 20
	}
	o.SegmentBytes = min(o.SegmentBytes, 1<<30)
	if o.PackBytes == 0 {
		o.PackBytes = 256 << 10
	}
	s := &Store{dir: dir, opt: o, index: map[Hash]entry{}, roots: map[string]Root{}, segs: map[uint32]*segment{}}
	op := opener{s}
	if err := op.lockDir(); err != nil {
		return nil, err
	}
	if err := op.loadAll(); err != nil {
		return nil, errors.Join(s.ioErrorOr(opOpen, err), s.drop())
	}
	return s, nil
}

// ioErrorOr returns err as it is if it has a kind, and otherwise like ioError.
func (s *Store) ioErrorOr(op string, err error) error {
	var e *errs.Error
	if errors.As(err, &e) {
		return err
	}
	return s.ioError(op, err)
}

// opener reads a store's folder into memory. The store is not yet shared.
type opener struct{ *Store }

// lockDir creates the folder if it is missing, makes it private to its owner, and locks it.
func (op opener) lockDir() error {
	if err := os.MkdirAll(op.dir, 0o700); err != nil {
		return op.ioError(opOpen, err)
	}
	d, err := os.Open(op.dir)
	if err != nil {
		return op.ioError(opOpen, err)
	}
	if err := d.Chmod(0o700); err != nil {
		d.Close()
		return op.ioError(opOpen, err)
	}
	if err := durable.Lock(d); err != nil {
		d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errs.New(errs.Busy, opOpen, "%s is in use by another process", op.dir).
				WithHint("stop the other daemon, or give this one another state folder")
		}
		return op.ioError(opOpen, err)
	}
	op.lock = d
	return nil
}

// loadAll reads the store in the folder, or begins a new one.
func (op opener) loadAll() error {
	seqs, packs, err := op.sweep()
	if err != nil {
		return err
	}
	if err := op.format(seqs, packs); err != nil {
		return err
	}
	if len(seqs) == 0 {
		return op.begin(1)
	}
	var last *scan
	for i, seq := range seqs {
		sc, err := op.openSegment(seq, i == len(seqs)-1)
		if err != nil {
			return err
		}
		last = sc
	}
	for _, seq := range packs {
		if err := op.openPack(seq); err != nil {
			return err
		}
	}
	if err := op.trimTorn(last); err != nil {
		return err
	}
	replayed, err := op.readRoots(seqs, last)
	if err != nil {
		return err
	}
	op.count()
	switch {
	case op.active.patchy || op.active.size.Load() < segHeaderSize+headerSize:
		return op.begin(op.active.seq + 1) // trimTorn left it whole, or cut all records off: leave this segment as it is
	case replayed && !op.unsure:
		return op.roll() // a segment with all roots, so that Collect can remove those that have them now
	}
	return nil
}

// despite reads from a segment. If the disk cannot read all of it, despite reads the rest again.
func (op opener) despite(g *segment, read func() error) error {
	err := read()
	if durable.Unreadable(err) {
		g.patchy, op.unread = true, append(op.unread, g.path)
		err = read()
	}
	return err
}

// begin creates the segment seq and makes it the active one.
func (op opener) begin(seq uint32) error {
	g, err := op.create(seq)
	if err != nil {
		return err
	}
	op.segs[seq], op.active = g, g
	_ = op.setAside(g.size.Load())
	return nil
}

// sweep removes unfinished files, and returns the numbers of the segments and of the packs, each in order.
func (op opener) sweep() (seqs, packs []uint32, err error) {
	entries, err := os.ReadDir(op.dir)
	if err != nil {
		return nil, nil, err
	}
	have := map[string]bool{}
	for _, e := range entries {
		have[e.Name()] = true
	}
	for name := range have {
		base, isSeg := strings.CutSuffix(name, ".seg")
		index, isIndex := strings.CutSuffix(name, ".idx")
		pack, isPack := strings.CutSuffix(name, ".pack")
		switch {
		case strings.HasSuffix(name, ".tmp"), isIndex && !have[index+".seg"]:
			if err := os.Remove(filepath.Join(op.dir, name)); err != nil {
				return nil, nil, err
			}
		case isSeg:
			n, err := strconv.ParseUint(base, 16, 32)
			if err == nil && n > 0 && name == filepath.Base(segPath(op.dir, uint32(n))) {
				seqs = append(seqs, uint32(n))
			}
		case isPack:
			n, err := strconv.ParseUint(pack, 16, 31)
			if err == nil && name == filepath.Base(packPath(op.dir, firstPack+uint32(n))) {
				packs = append(packs, firstPack+uint32(n))
			}
		}
	}
	slices.Sort(seqs)
	slices.Sort(packs)
	return seqs, packs, nil
}

// openPack opens one pack and adds its objects to the index.
func (op opener) openPack(seq uint32) error {
	g := &segment{seq: seq, path: packPath(op.dir, seq)}
	op.lastPack = seq
	f, err := os.OpenFile(g.path, os.O_RDWR, 0)
	if durable.Unreadable(err) { // its objects are missing
		op.unread = append(op.unread, g.path)
		return nil
	}
	if err != nil {
		return err
	}
	g.f = f
	op.segs[seq] = g
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	g.size.Store(fi.Size())
	g.measure()
	return op.despite(g, func() error {
		spans, err := op.scanPack(g, true)
		for _, sp := range spans {
			op.enter(g, sp.objects)
		}
		return err
	})
}

// format reads the store's salt, and begins a new store.
func (op opener) format(seqs, packs []uint32) (err error) {
	var files []mark.File
	for _, seq := range seqs {
		files = append(files, mark.File{Path: segPath(op.dir, seq), Seq: seq})
	}
	for _, seq := range packs {
		files = append(files, mark.File{Path: packPath(op.dir, seq), Seq: seq})
	}
	op.salt, err = mark.Open(op.dir, files)
	return err
}

// openSegment opens one segment and adds its objects to the index. The last segment becomes the active one, and openSegment
// returns its scan.
func (op opener) openSegment(seq uint32, last bool) (*scan, error) {
	g := &segment{seq: seq, path: segPath(op.dir, seq)}
	nothing := errs.New(errs.Corrupt, opOpen, "nothing in %s can be read", g.path).WithHint("put the store back from a backup")
	f, err := os.OpenFile(g.path, os.O_RDWR, 0)
	switch {
	case durable.Unreadable(err) && !last: // its objects are missing
		op.unread = append(op.unread, g.path)
		return nil, nil
	case durable.Unreadable(err):
		return nil, errs.Also(nothing, err)
	case err != nil:
		return nil, err
	}
	g.f = f
	op.segs[seq] = g
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	g.size.Store(fi.Size())
	if !last {
		g.measure()
		return nil, op.despite(g, func() error {
			objects, err := op.objectsOf(g)
			op.enter(g, objects)
			return err
		})
	}
	var sc *scan
	err = op.despite(g, func() (err error) {
		sc, err = scanSegment(g, fi.Size(), seq, op.salt, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(sc.objects)+len(sc.changes) == 0 {
		// Its header and its roots were durable before it got its name: no crash leaves it so, and nothing may be cut off.
		if whole, err := (mark.File{Path: g.path, Seq: seq}).Whole(); !whole {
			return nil, errs.Also(err, nothing)
		}
	}
	op.active = g
	g.objects = sc.objects
	op.enter(g, sc.objects)
	g.dropRefs()
	return sc, nil
}

// trimTorn cuts the torn end off the active segment and makes the rest durable: the store now relies on these records. It cuts nothing off
// where the disk cannot read the segment: then the end may be whole.
func (op opener) trimTorn(sc *scan) error {
	g := op.active
	if g.patchy {
		return fdatasync(g.f)
	}
	if sc.end < g.size.Load() {
		if err := g.f.Truncate(sc.end); err != nil {
			return err
		}
	}
	if err := fdatasync(g.f); err != nil {
		return err
	}
	end := min(sc.end, g.size.Load())
	g.size.Store(end)
	g.durable, g.alloc = end, end
	_ = op.setAside(end)
	return nil
}

// enter adds the objects of one segment to the index, and counts the refs of nodes that are new there.
func (op opener) enter(g *segment, objects []object) {
	for i := range objects {
		o := &objects[i]
		e, ok := op.index[o.hash]
		if ok && e.seg != 0 && (!e.has(isBad) || o.bad) {
			continue // a second copy of the object
		}
		e.seg, e.off, e.slot, e.stored = g.seq, o.off, o.slot, o.stored
		e.flags = 0
		if o.bad {
			e.flags |= isBad
		}
		if o.kind == kindNode {
			e.flags |= isNode
			if !o.bad {
				e.flags |= counted
			}
		}
		op.index[o.hash] = e
		for _, ref := range o.refs {
			op.countUp(ref)
		}
	}
}

func (op opener) countUp(h Hash) {
	if h.IsZero() {
		return
	}
	e := op.index[h]
	e.refs++
	op.index[h] = e
}

// readRoots replays the changes of the roots. If the last segment begins with all roots, it is enough. Otherwise, because that record is damaged or
// some roots were not known, readRoots replays all segments, and scans each as the last one: what was torn off when it was that still does not count.
func (op opener) readRoots(seqs []uint32, last *scan) (replayed bool, err error) {
	op.unsure = op.active.patchy
	if replayed = len(last.changes) == 0 || !last.changes[0].all; replayed {
		for _, seq := range seqs[:len(seqs)-1] {
			g := op.segs[seq]
			if g == nil { // the disk could not read it
				op.unsure = true
				continue
			}
			var sc *scan
			err := op.despite(g, func() (err error) {
				sc, err = scanSegment(g, g.size.Load(), seq, op.salt, false)
				return err
			})
			if err != nil {
				return replayed, err
			}
			op.replay(sc.changes)
			op.unsure = op.unsure || g.patchy
		}
	}
	op.replay(last.changes)
	for _, r := range op.roots {
		op.countUp(r.Hash)
	}
	return replayed, nil
}

func (op opener) replay(list []change) {
	for i := range list {
		c := &list[i]
		if c.all {
			clear(op.roots)
		}
		for _, r := range c.set {
			if _, known := op.roots[r.Name]; !known || !c.unsure() {
				op.roots[r.Name] = r
			}
		}
		for _, name := range c.drop {
			delete(op.roots, name)
		}
		op.changeID = max(op.changeID, c.id)
	}
}

// count subtracts the references of dead nodes, and sums up the live bytes of each segment.
func (op opener) count() {
	var dead []Hash
	for h, e := range op.index {
		if e.refs == 0 && e.has(counted) {
			dead = append(dead, h)
		}
	}
	for _, h := range dead {
		op.uncount(h)
	}
	for _, g := range op.segs {
		g.live = 0
	}
	for _, e := range op.index {
		if e.refs > 0 && (e.seg == 0 || e.has(isBad)) {
			op.suspect.Store(true)
		}
		if g := op.segs[e.seg]; g != nil && e.refs > 0 {
			g.live += e.size()
		}
	}
}

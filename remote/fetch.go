package remote

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Fetch puts the objects of a checkpoint into a content store. The batch that it returns keeps them there until the caller ends
// it. spool is an empty folder in which Fetch keeps packs that are not all used while it works; what is in it is not sealed.
func (h *History) Fetch(ctx context.Context, cp *Checkpoint, into *cas.Store, spool string) (*cas.Batch, error) {
	op := "fetch " + cp.ID
	parts, err := cp.Snapshots()
	if err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	reading, cancel := context.WithCancel(ctx)
	f := &fetcher{h: h, ctx: reading, b: into.Begin(), spool: spool, packs: map[string]*opened{}, begun: map[string]bool{}, meter: snap.NewMeter(ctx, "fetched", snap.UnitBytes, 0)}
	defer f.close()
	defer cancel()
	var roots []snap.Hash
	for _, part := range parts {
		roots = append(roots, part.Portable.Object)
	}
	if err := f.getAll(roots); err != nil {
		f.b.Discard()
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	return f.b, nil
}

// Of the packs that a fetch needs, hotPacks are in memory at the same time, of which aheadPacks are got before they are needed. storeAtOnce is
// the number of objects below a node that are stored at the same time.
const (
	hotPacks    = 4
	aheadPacks  = 2
	storeAtOnce = 2
)

// fetcher puts objects into a batch, those below a node before it. One goroutine uses it; others get packs and store objects.
type fetcher struct {
	h     *History
	ctx   context.Context
	b     *cas.Batch
	spool string
	meter *snap.Meter // counts the bytes of packs

	packs map[string]*opened // those that may be read from
	begun map[string]bool    // packs that were ever among them
	hot   []*opened          // those in memory, in the order in which they were begun
	ahead []*Pack            // packs that will be needed, the next one first
	work  sync.WaitGroup     // of getting packs
}

// opened is a pack: in memory, or in a file of the spool.
type opened struct {
	pack  *Pack
	ready chan struct{} // closed when plain and left are set, or err
	plain []byte        // nil: it is in the file
	left  int           // the number of objects that were not read yet
	err   error         // why it cannot be used
	used  bool          // an object was asked for
	file  *os.File
}

// getAll puts objects, and those below them, into the batch.
func (f *fetcher) getAll(list []snap.Hash) error {
	f.expect(list)
	var blobs errgroup.Group
	blobs.SetLimit(storeAtOnce)
	for _, h := range list {
		if err := f.get(h, &blobs); err != nil {
			_ = blobs.Wait() // that one counts
			return err
		}
	}
	return blobs.Wait()
}

// get puts an object, and those below it, into the batch. blobs is where a blob is stored.
func (f *fetcher) get(h snap.Hash, blobs *errgroup.Group) error {
	if h.IsZero() || f.b.Keep(h) {
		return nil
	}
	if err := f.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "", err)
	}
	var why error
	for _, at := range f.h.at[h] {
		p, err := f.read(at)
		if err == nil && at.node {
			return f.putNode(h, p)
		}
		if err == nil {
			blobs.Go(func() error { return same(h)(f.b.Blob(p)) })
			return nil
		}
		if k := errs.KindOf(err); k != errs.Corrupt && k != errs.NotFound {
			return err
		}
		why = errs.Also(why, err)
	}
	if why == nil {
		why = errs.New(errs.Corrupt, "", "an object of the checkpoint is in no pack that the remote's log names")
	}
	hint := "use another checkpoint; the host that sent it can send it again: `mulligan verify --remote`"
	if f.h.denied != nil { // the object may be in a pack that an entry for others names
		hint = errs.HintOf(f.h.denied)
	}
	return &errs.Error{Kind: errs.Corrupt, Message: "the checkpoint is not whole on the remote", Err: why, Hint: hint}
}

// putNode stores a node, after the objects to which it refers.
func (f *fetcher) putNode(h snap.Hash, p []byte) error {
	data, refs, err := splitNode(p)
	if err != nil {
		return err
	}
	if cas.NodeHash(data, refs) != h {
		return errs.New(errs.Corrupt, "", "a node in a pack does not have its hash")
	}
	if err := f.getAll(refs); err != nil {
		return err
	}
	return same(h)(f.b.Node(data, refs))
}

// same returns a function that checks the hash of what was stored.
func same(h snap.Hash) func(snap.Hash, error) error {
	return func(got snap.Hash, err error) error {
		if err == nil && got != h {
			err = errs.New(errs.Corrupt, "", "an object in a pack does not have its hash")
		}
		return err
	}
}

// expect notes that objects will be read, before those that were expected until now.
func (f *fetcher) expect(list []snap.Hash) {
	var packs []*Pack
	for _, h := range list {
		at := f.h.at[h]
		if len(at) == 0 || f.begun[at[0].pack.Name] || len(packs) > 0 && packs[len(packs)-1] == at[0].pack || f.b.Keep(h) {
			continue
		}
		packs = append(packs, at[0].pack)
	}
	f.ahead = append(packs, f.ahead...)
}

// read reads an object's bytes from its pack.
func (f *fetcher) read(at location) ([]byte, error) {
	o := f.packs[at.pack.Name]
	if o == nil {
		if _, err := f.makeRoom(func(*opened) bool { return true }); err != nil {
			return nil, err
		}
		o = f.begin(at.pack)
	}
	o.used = true
	if err := f.getAhead(o); err != nil {
		return nil, err
	}
	<-o.ready
	if o.err != nil {
		f.cool(o)
		return nil, o.err
	}
	o.left--
	if o.plain == nil {
		p := make([]byte, at.n)
		_, err := o.file.ReadAt(p, int64(at.off))
		return p, errs.Wrap(errs.Failed, "read the spool", err)
	}
	p := o.plain[at.off : at.off+at.n : at.off+at.n]
	if o.left == 0 {
		f.cool(o)
		delete(f.packs, o.pack.Name)
	}
	return p, nil
}

// begin begins to get a pack.
func (f *fetcher) begin(p *Pack) *opened {
	o := &opened{pack: p, ready: make(chan struct{})}
	f.packs[p.Name], f.begun[p.Name] = o, true
	f.hot = append(f.hot, o)
	f.work.Go(func() {
		defer close(o.ready)
		if o.plain, o.left, o.err = f.h.reader.pack(f.ctx, p); o.err == nil {
			f.meter.Add(p.Size)
		}
	})
	return o
}

// getAhead begins to get the packs that are needed after the one that is in use.
func (f *fetcher) getAhead(inUse *opened) error {
	unused := 0
	for _, o := range f.hot {
		if !o.used {
			unused++
		}
	}
	for len(f.ahead) > 0 && unused < aheadPacks {
		p := f.ahead[0]
		if !f.begun[p.Name] {
			if room, err := f.makeRoom(func(o *opened) bool { return o.used && o != inUse }); err != nil || !room {
				return err
			}
			f.begin(p)
			unused++
		}
		f.ahead = f.ahead[1:]
	}
	return nil
}

// makeRoom reports whether there is room for a pack in memory. If not, it writes the first pack that may go to the spool.
func (f *fetcher) makeRoom(may func(*opened) bool) (bool, error) {
	if len(f.hot) < hotPacks {
		return true, nil
	}
	i := slices.IndexFunc(f.hot, may)
	if i < 0 {
		return false, nil
	}
	o := f.hot[i]
	<-o.ready
	f.cool(o)
	if o.err != nil {
		return true, nil
	}
	var err error
	if o.file, err = os.OpenFile(filepath.Join(f.spool, o.pack.Name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_, err = o.file.Write(o.plain)
	}
	o.plain = nil
	return true, errs.Wrap(errs.Failed, "write the spool", err)
}

// cool takes a pack out of those in memory.
func (f *fetcher) cool(o *opened) {
	f.hot = slices.DeleteFunc(f.hot, func(h *opened) bool { return h == o })
}

// pack returns what a pack holds, and of how many objects.
func (r Reader) pack(ctx context.Context, p *Pack) (plain []byte, objects int, err error) {
	op := "read pack " + p.Name
	sealed, err := r.Bucket.Get(ctx, packName(r.Place, p.Name))
	if err != nil {
		return nil, 0, errs.Wrap(errs.Failed, op, err)
	}
	if int64(len(sealed)) != p.Size || !bytes.Equal(sum(sealed), p.Sum) {
		return nil, 0, errs.New(errs.Corrupt, op, "the pack is not as it was sent")
	}
	plain, err = open(sealed, r.Identities)
	if err != nil {
		return nil, 0, errs.Wrap(errs.Corrupt, op, err)
	}
	list, err := p.objects()
	if err != nil {
		return nil, 0, err
	}
	if n := len(list); n == 0 || list[n-1].off+list[n-1].n != len(plain) {
		return nil, 0, errs.New(errs.Corrupt, op, "the pack does not hold what its index says")
	}
	return plain, len(list), nil
}

func (f *fetcher) close() {
	f.work.Wait()
	for name, o := range f.packs {
		if o.file != nil {
			_ = o.file.Close() // only read; the caller removes the spool
			_ = os.Remove(filepath.Join(f.spool, name))
		}
	}
}

package remote

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Fetch puts the objects of a checkpoint into a content store. The batch that it returns keeps them there until the caller ends
// it. spool is an empty folder in which Fetch keeps packs while it works; what is in it is not sealed.
func (h *History) Fetch(ctx context.Context, cp *Checkpoint, into *cas.Store, spool string) (*cas.Batch, error) {
	op := "fetch " + cp.ID
	parts, err := cp.Snapshots()
	if err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	f := &fetcher{h: h, ctx: ctx, b: into.Begin(), spool: spool, packs: map[string]*opened{}, meter: snap.NewMeter(ctx, "fetched", snap.UnitBytes, 0)}
	defer f.close()
	for _, part := range parts {
		if err := f.get(part.Portable.Object); err != nil {
			f.b.Discard()
			return nil, errs.Wrap(errs.Corrupt, op, err)
		}
	}
	return f.b, nil
}

// fetcher puts objects into a batch, those below a node before it.
type fetcher struct {
	h     *History
	ctx   context.Context
	b     *cas.Batch
	spool string
	packs map[string]*opened
	meter *snap.Meter // counts the bytes of packs
}

// opened is a pack that was read: its file in the spool, or why it cannot be used.
type opened struct {
	f   *os.File
	err error
}

func (f *fetcher) get(h snap.Hash) error {
	if h.IsZero() || f.b.Keep(h) {
		return nil
	}
	if err := f.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "", err)
	}
	var why error
	for _, at := range f.h.at[h] {
		p, err := f.read(at)
		if err == nil {
			return f.put(h, p, at.node)
		}
		if k := errs.KindOf(err); k != errs.Corrupt && k != errs.NotFound {
			return err
		}
		why = errs.Also(why, err)
	}
	if why == nil {
		why = errs.New(errs.Corrupt, "", "an object of the checkpoint is in no pack that the remote's log names")
	}
	return &errs.Error{Kind: errs.Corrupt, Message: "the checkpoint is not whole on the remote", Err: why,
		Hint: "use another checkpoint; the host that sent it can send it again: `mulligan verify --remote`"}
}

// put stores one object, after those to which it refers.
func (f *fetcher) put(h snap.Hash, p []byte, node bool) (err error) {
	var got snap.Hash
	if node {
		data, refs, err := splitNode(p)
		if err != nil {
			return err
		}
		if cas.NodeHash(data, refs) != h {
			return errs.New(errs.Corrupt, "", "a node in a pack does not have its hash")
		}
		for _, r := range refs {
			if err := f.get(r); err != nil {
				return err
			}
		}
		got, err = f.b.Node(data, refs)
		if err != nil {
			return err
		}
	} else if got, err = f.b.Blob(p); err != nil {
		return err
	}
	if got != h {
		return errs.New(errs.Corrupt, "", "an object in a pack does not have its hash")
	}
	return nil
}

// read reads an object's bytes from its pack.
func (f *fetcher) read(at location) ([]byte, error) {
	o := f.packs[at.pack.Name]
	if o == nil {
		o = &opened{}
		o.f, o.err = f.open(at.pack)
		f.packs[at.pack.Name] = o
	}
	if o.err != nil {
		return nil, o.err
	}
	p := make([]byte, at.n)
	_, err := o.f.ReadAt(p, int64(at.off))
	return p, errs.Wrap(errs.Failed, "read the spool", err)
}

// open gets a pack, checks it and writes what it holds to the spool.
func (f *fetcher) open(p *Pack) (*os.File, error) {
	plain, err := f.h.reader.pack(f.ctx, p)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(f.spool, p.Name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "write the spool", err)
	}
	if _, err := file.Write(plain); err != nil {
		return nil, errs.Wrap(errs.Failed, "write the spool", errs.Also(err, file.Close()))
	}
	f.meter.Add(p.Size)
	return file, nil
}

// pack returns what a pack holds.
func (r Reader) pack(ctx context.Context, p *Pack) ([]byte, error) {
	op := "read pack " + p.Name
	sealed, err := r.Bucket.Get(ctx, packName(r.Place, p.Name))
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if int64(len(sealed)) != p.Size || !bytes.Equal(sum(sealed), p.Sum) {
		return nil, errs.New(errs.Corrupt, op, "the pack is not as it was sent")
	}
	plain, err := open(sealed, r.Identities)
	if err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	list, err := p.objects()
	if err != nil {
		return nil, err
	}
	if n := len(list); n == 0 || list[n-1].off+list[n-1].n != len(plain) {
		return nil, errs.New(errs.Corrupt, op, "the pack does not hold what its index says")
	}
	return plain, nil
}

func (f *fetcher) close() {
	for name, o := range f.packs {
		if o.f != nil {
			_ = o.f.Close() // only read; the caller removes the spool
			_ = os.Remove(filepath.Join(f.spool, name))
		}
	}
}

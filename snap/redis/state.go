package redis

import (
	"context"
	"io"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/cas/chunked"
	"mulligan/snap/database"
)

// meta is the metadata in a snapshot's root.
type meta struct {
	Hash     string   `json:"hash"`
	Position position `json:"position"` // of the server when it was captured
	Version  int      `json:"version"`  // of the RDB format
	Size     int64    `json:"size"`     // of the RDB file, in bytes
}

func (s summary) hash() snap.Hash { return s.scanned.hash() }

func (s summary) meta() meta {
	return meta{Hash: s.hash().String(), Position: s.at, Version: s.scanned.version, Size: s.size}
}

func parseMeta(root cas.Root) (m meta, h snap.Hash, err error) {
	if m, err = database.Meta[meta](root); err == nil {
		h, err = database.HashOf(root)
	}
	return m, h, err
}

// The content of an RDB file decides where its chunks end, so a key that grows affects chunks only up to the next cut.
const (
	minChunk  = 16 << 10
	maxChunk  = 512 << 10
	cutMask   = 1<<16 - 1 // on average a chunk ends after 64 KiB more
	hashShift = 48        // the top bits of the rolling hash depend on the last 64 bytes
)

// gear is a table of random numbers for the rolling hash, one for each byte (W. Xia et al., "Ddelta: A deduplication-inspired
// fast delta compression approach", 2014). Other numbers would only make new snapshots share fewer chunks with old ones.
var gear = func() (t [256]uint64) {
	x := uint64(0x9e3779b97f4a7c15)
	for i := range t { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		t[i] = z ^ z>>31
	}
	return t
}()

// storer stores the bytes that are written to it in a batch.
type storer struct {
	chunks *chunked.Writer
	buf    []byte
	sum    uint64
}

func newStorer(b *cas.Batch) *storer {
	return &storer{chunks: chunked.NewWriter(b), buf: make([]byte, 0, maxChunk)}
}

// Write stores the chunks that are complete.
func (s *storer) Write(p []byte) (int, error) {
	for _, c := range p {
		s.buf = append(s.buf, c)
		s.sum = s.sum<<1 + gear[c]
		if len(s.buf) >= minChunk && s.sum>>hashShift&cutMask == 0 || len(s.buf) == maxChunk {
			if err := s.cut(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (s *storer) cut() error {
	err := s.chunks.Put(s.buf)
	s.buf, s.sum = s.buf[:0], 0
	return err
}

// node stores the rest and returns the node of the whole content.
func (s *storer) node() (cas.Hash, error) {
	if len(s.buf) > 0 {
		if err := s.cut(); err != nil {
			return cas.Hash{}, err
		}
	}
	return s.chunks.End([]byte("mulligan redis 1"))
}

// content returns a reader of a stored RDB file.
func (d *Driver) content(ctx context.Context, root cas.Root) (io.Reader, error) {
	_, lists, err := d.cfg.Store.Node(root.Hash)
	return chunked.NewReader(ctx, d.cfg.Store, lists), database.Damaged(err)
}

// scanStored reads a stored snapshot and checks its hash. The caller must close the result.
func (d *Driver) scanStored(ctx context.Context, root cas.Root, each func(item) error) (*scanned, error) {
	_, hash, err := parseMeta(root)
	if err != nil {
		return nil, err
	}
	c, err := d.content(ctx, root)
	if err != nil {
		return nil, err
	}
	s, err := scan(d.cfg.StateDir, c, each)
	if err != nil {
		return nil, database.Damaged(err)
	}
	if got := s.hash(); got != hash {
		s.close()
		return nil, errs.New(errs.Corrupt, "", "the stored content hashes to %s, not to %s", got, hash).WithHint("use another checkpoint")
	}
	return s, nil
}

// Package carried has the form in which the state of a cluster leaves its host: as objects of a content store.
//
//	root    a node: a State as JSON; it refers to the tree, and to the pieces of the log's files in their order
//	tree    a node: the folders and files of a base backup as JSON; it refers to the pieces of the files in their order
//	piece   a blob: at most 1 MiB of a file
//
// So two states that rest on the same base have its tree in common, and all of the log but what was written between them. The objects are
// made from the files when they are asked for: nothing is copied for that.
package carried

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/physical/wal"
)

// pieceSize is the size of a piece in bytes. The last one of a file is shorter.
const pieceSize = 1 << 20

// State is a marker of a cluster, with what another host has to know of the cluster.
type State struct {
	Format    int          `json:"format"`  // 1
	Version   int          `json:"version"` // of the server, such as 150004
	System    string       `json:"system"`
	Bootstrap string       `json:"bootstrap"` // name of the cluster's first role
	Segments  wal.Segments `json:"segments"`
	TLI       wal.Timeline `json:"tli"`
	LSN       wal.LSN      `json:"lsn"`
	Point     string       `json:"point"`             // name of the restore point; "": the files are of a server that was shut down in order
	History   []byte       `json:"history,omitempty"` // of TLI
	Log       []File       `json:"log"`
}

// Tree are the folders and files of a base backup.
type Tree struct {
	Folders []string `json:"folders"` // each after the one that it is in
	Files   []File   `json:"files"`
}

// File is a file: its path in the data folder, or its name if it is of the log, and its size in bytes.
type File struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// pieces returns the number of pieces of the file.
func (f File) pieces() int { return int((f.Size + pieceSize - 1) / pieceSize) }

// Source is a file on this host.
type Source struct {
	File
	At   string // its path
	Upto int64  // what comes after is taken for zeros
	Sum  string // BLAKE3 of its content in hex, or "" if it is not known
}

// Index says which pieces files consist of.
type Index struct {
	Files []File
	refs  []snap.Hash
	at    map[snap.Hash]place
}

// place is where a piece is.
type place struct {
	src Source
	off int64
}

// Opener opens a file for reading.
type Opener func(path string) (*os.File, error)

// Add reads a file, and adds it to the index. check, if it is not nil, is called with the file when it has been read.
func (x *Index) Add(open Opener, src Source, check func(*os.File) error) error {
	f, err := open(src.At)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	sum, buf := blake3.New(), make([]byte, min(pieceSize, src.Size))
	var refs []snap.Hash
	if x.at == nil {
		x.at = map[snap.Hash]place{}
	}
	for off := int64(0); off < src.Size; off += pieceSize {
		p, err := read(f, src, off, buf)
		if err != nil {
			return err
		}
		_, _ = sum.Write(p) // never fails
		h := cas.BlobHash(p)
		x.at[h] = place{src, off}
		refs = append(refs, h)
	}
	if src.Sum != "" && hex(sum.Sum(nil)) != src.Sum {
		return errs.New(errs.Corrupt, "", "%s is damaged", src.At).WithHint("use a checkpoint that rests on another base")
	}
	if check != nil {
		if err := check(f); err != nil {
			return err
		}
	}
	x.Files, x.refs = append(x.Files, src.File), append(x.refs, refs...)
	return nil
}

// Join adds all of another index.
func (x *Index) Join(o *Index) {
	if x.at == nil {
		x.at = map[snap.Hash]place{}
	}
	for h, at := range o.at {
		x.at[h] = at
	}
	x.Files, x.refs = append(x.Files, o.Files...), append(x.refs, o.refs...)
}

// read reads one piece of a file.
func read(f io.ReaderAt, src Source, off int64, buf []byte) ([]byte, error) {
	p := buf[:min(pieceSize, src.Size-off)]
	here := max(0, min(int64(len(p)), src.Upto-off))
	if n, err := f.ReadAt(p[:here], off); int64(n) < here {
		return nil, errs.Also(errs.New(errs.Unavailable, "", "%s changed meanwhile", src.At).WithHint("try again"), err)
	}
	clear(p[here:])
	return p, nil
}

// Contents are the objects of one state. Not safe for concurrent use.
type Contents struct {
	Root  snap.Hash
	open  Opener
	nodes map[snap.Hash]node
	at    []map[snap.Hash]place

	f    *os.File // the file that was read last
	path string
}

type node struct {
	data []byte
	refs []snap.Hash
}

// New returns the objects of a state that rests on a base with this tree and consists of the files in log.
func New(st State, tree Tree, base, log *Index, open Opener) (*Contents, error) {
	tree.Files, st.Log, st.Format = base.Files, log.Files, 1
	c := &Contents{open: open, nodes: map[snap.Hash]node{}, at: []map[snap.Hash]place{base.at, log.at}}
	add := func(v any, refs []snap.Hash) (h snap.Hash, err error) {
		data, err := json.Marshal(v)
		if err == nil {
			h = cas.NodeHash(data, refs)
			c.nodes[h] = node{data, refs}
		}
		return h, err
	}
	h, err := add(tree, base.refs)
	if err == nil {
		c.Root, err = add(st, append([]snap.Hash{h}, log.refs...))
	}
	return c, err
}

// errChanged is the error of a file that is not as it was indexed.
func errChanged(path string) error {
	return errs.New(errs.Unavailable, "", "%s changed while it was read", path).WithHint("try again")
}

// Object returns an object of the state. It is of kind errs.NotFound if the object is not of the state.
func (c *Contents) Object(h snap.Hash) (data []byte, refs []snap.Hash, isNode bool, err error) {
	if n, ok := c.nodes[h]; ok {
		return n.data, n.refs, true, nil
	}
	for _, at := range c.at {
		if p, ok := at[h]; ok {
			data, err = c.read(h, p)
			return data, nil, false, err
		}
	}
	return nil, nil, false, errs.New(errs.NotFound, "", "%s is not of the cluster", h)
}

func (c *Contents) read(h snap.Hash, p place) (data []byte, err error) {
	if c.path != p.src.At {
		c.Close()
		if c.f, err = c.open(p.src.At); err != nil {
			c.f = nil
			return nil, err
		}
		c.path = p.src.At
	}
	data, err = read(c.f, p.src, p.off, make([]byte, min(pieceSize, p.src.Size-p.off)))
	if err == nil && cas.BlobHash(data) != h {
		err = errChanged(p.src.At)
	}
	return data, err
}

// Close closes what is open.
func (c *Contents) Close() {
	if c.f != nil {
		_ = c.f.Close() // it was only read
	}
	c.f, c.path = nil, ""
}

// Objects is where a state is read from. *cas.Store is one.
type Objects interface {
	Object(h snap.Hash) (data []byte, refs []snap.Hash, node bool, err error)
}

// Open reads the description of a state.
func Open(from Objects, root snap.Hash) (st State, tree Tree, r *Reader, err error) {
	r = &Reader{from: from}
	data, refs, err := r.node(root)
	if err == nil && (json.Unmarshal(data, &st) != nil || len(refs) == 0) {
		err = damaged()
	}
	if err != nil {
		return st, tree, nil, err
	}
	if st.Format != 1 {
		return st, tree, nil, errs.New(errs.Unsupported, "", "the cluster was sent in format %d, which this version of mulligan does not know", st.Format).WithHint("use a newer version")
	}
	r.log = refs[1:]
	data, r.base, err = r.node(refs[0])
	if err == nil && (json.Unmarshal(data, &tree) != nil || !sound(tree, st, r)) {
		err = damaged()
	}
	return st, tree, r, err
}

func damaged() error {
	return errs.New(errs.Corrupt, "", "the description of the cluster is damaged").WithHint("use another checkpoint")
}

// sound reports whether all names stay in the data folder, and the numbers of pieces are right. Whoever could write to the remote made
// them.
func sound(tree Tree, st State, r *Reader) bool {
	plain := func(path string) bool {
		return filepath.IsLocal(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, "\x00\n")
	}
	count := func(files []File) (n int, ok bool) {
		for _, f := range files {
			if f.Size < 0 || f.Size > 1<<40 || !plain(f.Path) {
				return 0, false
			}
			n += f.pieces()
		}
		return n, true
	}
	files, ok1 := count(tree.Files)
	log, ok2 := count(st.Log)
	logs := !slices.ContainsFunc(st.Log, func(f File) bool { return !wal.IsSegment(f.Path) })
	return ok1 && ok2 && logs && files == len(r.base) && log == len(r.log) && st.TLI > 0 &&
		!slices.ContainsFunc(tree.Folders, func(path string) bool { return !plain(path) })
}

// Reader reads the files of a state.
type Reader struct {
	from      Objects
	base, log []snap.Hash
}

func (r *Reader) node(h snap.Hash) (data []byte, refs []snap.Hash, err error) {
	data, refs, is, err := r.from.Object(h)
	if err == nil && !is {
		err = damaged()
	}
	return data, refs, err
}

// Write writes files to where create leads: those of a tree, in their order, or those of the log.
func (r *Reader) Write(files []File, log bool, create func(path string) (*os.File, error)) error {
	refs := r.base
	if log {
		refs = r.log
	}
	for _, f := range files {
		if err := r.write(f, refs[:f.pieces()], create); err != nil {
			return err
		}
		refs = refs[f.pieces():]
	}
	return nil
}

func (r *Reader) write(f File, refs []snap.Hash, create func(path string) (*os.File, error)) error {
	out, err := create(f.Path)
	if err != nil {
		return err
	}
	n := int64(0)
	for _, h := range refs {
		p, _, is, err := r.from.Object(h)
		if err == nil && is {
			err = damaged()
		}
		if err == nil {
			_, err = out.Write(p)
		}
		if err != nil {
			return errors.Join(err, out.Close())
		}
		n += int64(len(p))
	}
	if n != f.Size {
		return errors.Join(damaged(), out.Close())
	}
	return out.Close()
}

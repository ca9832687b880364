package sqlite

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// rawState holds the entries at the file names of a database, whatever their type: the database file
// and its companions, and, for a folder, its entries in the order of their names.
type rawState struct {
	Entries []rawEntry `json:"entries"`
}

type rawEntry struct {
	// Path is relative to the database's path: "" is the database, "-wal" its log, and
	// "/x" the entry x of a folder in place of the database.
	Path    []byte            `json:"path"`
	Kind    rawKind           `json:"kind"`
	Mode    uint32            `json:"mode"`
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Size    int64             `json:"size,omitempty"`
	Content string            `json:"content,omitempty"` // of a file, as in state
	Chunks  int               `json:"chunks,omitempty"`  // number of the snapshot's chunks that belong to the file
	Target  []byte            `json:"target,omitempty"`  // of a link
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
}

type rawKind string

const (
	rawFile   rawKind = "file"
	rawLink   rawKind = "link"
	rawFifo   rawKind = "fifo"
	rawFolder rawKind = "folder"
)

const rawFormatName = "mulligan sqlite raw state 1\n"

// suffixes of the file names that belong to a database.
var suffixes = []string{"", "-wal", "-journal", "-shm"}

// Limits for a folder in place of a database.
const (
	mostEntries = 10_000
	mostDepth   = 100
)

// hash returns the digest of a snapshot's state.
func (r record) hash() snap.Hash {
	if r.Raw == nil {
		return r.State.hash()
	}
	data, err := json.Marshal(r.Raw)
	if err != nil {
		panic(err) // strings, numbers and bytes always marshal
	}
	return blake3.Sum256(append([]byte(rawFormatName), data...))
}

// entries returns the state as files: for a database that could be read, a single file with journal and
// log applied.
func (r record) entries() []rawEntry {
	switch {
	case r.Raw != nil:
		return r.Raw.Entries
	case r.State.Absent:
		return nil
	}
	s := r.State
	return []rawEntry{{
		Path: []byte{}, Kind: rawFile, Mode: s.Mode, UID: s.UID, GID: s.GID, Size: s.Size, Content: s.Content,
		Chunks: int((s.Size + chunkSize - 1) / chunkSize), Xattrs: s.Xattrs,
	}}
}

// at returns the entries at one of the database's file names.
func at(entries []rawEntry, suffix string) (list []rawEntry) {
	for _, e := range entries {
		if rest, ok := bytes.CutPrefix(e.Path, []byte(suffix)); ok && (len(rest) == 0 || rest[0] == '/') {
			list = append(list, e)
		}
	}
	return list
}

func sameEntries(a, b []rawEntry) bool {
	return record{Raw: &rawState{a}}.hash() == record{Raw: &rawState{b}}.hash()
}

// Salvage stores the entries at the database's file names under req.ID as raw bytes, without reading
// them as a database.
func (d *Driver) Salvage(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	return d.CaptureWith(ctx, "keep the bytes of database", req, func(ctx context.Context, b *cas.Batch) (database.State, error) {
		r, chunks, err := d.readRaw(ctx, b.Blob)
		if err != nil {
			return database.State{}, err
		}
		node, err := storeRecord(b, r, chunks)
		return database.State{Node: node, Hash: r.hash(), Meta: meta{Hash: r.hash().String()}, Position: "raw bytes", Raw: true}, err
	})
}

// readRaw reads the entries at the database's file names, and starts again if one changed meanwhile. It
// calls put with each chunk of a file.
func (d *Driver) readRaw(ctx context.Context, put func([]byte) (cas.Hash, error)) (record, []cas.Hash, error) {
	for tries := 0; ; tries++ {
		r, chunks, err := d.tryRaw(ctx, put)
		if !errors.Is(err, errMoved) {
			return r, chunks, err
		}
		if tries == 10 {
			return r, nil, snap.Changed("", "database "+d.cfg.Path)
		}
	}
}

func (d *Driver) tryRaw(ctx context.Context, put func([]byte) (cas.Hash, error)) (record, []cas.Hash, error) {
	r := record{Raw: &rawState{Entries: []rawEntry{}}}
	root, err := openDir(d.cfg)
	if err != nil {
		r.Missing = true
		return r, nil, ignoreMissing(err)
	}
	defer root.Close() // only read
	if r.Folders, err = foldersOf(root, d.cfg.Path); err != nil {
		return r, nil, err
	}
	dir, name, err := root.Parent(d.cfg.Path)
	if noFolder(err) {
		r.Missing = true
		return r, nil, nil
	}
	if err != nil {
		return r, nil, err
	}
	defer dir.Close()
	w := rawReader{ctx: ctx, cfg: d.cfg, put: put}
	for _, suffix := range suffixes {
		if err := w.read(dir, name+suffix, suffix, 0); err != nil {
			return r, nil, err
		}
	}
	r.Raw.Entries = append(r.Raw.Entries, w.entries...)
	return r, w.chunks, d.cfg.Failpoint.At("salvage: read")
}

// noFolder reports whether err says that the database's folder is missing or is not a folder.
func noFolder(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// foldersOf describes the folders above path, up to the first entry that is not a folder.
func foldersOf(root *beneath.Root, path string) (list []folder, err error) {
	l := live{root: root}
	if list, err = l.folders(path); noFolder(err) {
		err = nil
	}
	return list, err
}

// rawReader collects entries and the chunks of their contents.
type rawReader struct {
	ctx             context.Context
	cfg             Config
	put             func([]byte) (cas.Hash, error)
	entries         []rawEntry
	chunks          []cas.Hash
	size, allocated int64 // of all files, in bytes
}

// read adds the entry called name and everything within it.
func (w *rawReader) read(dir *beneath.Root, name, path string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir.FD(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) && depth == 0 {
		return nil
	}
	full := w.cfg.Path + path
	switch {
	case errors.Is(err, unix.ENOENT):
		return errMoved
	case err != nil:
		return err
	case !w.cfg.owns(st):
		return foreign(full)
	case len(w.entries) == mostEntries || depth > mostDepth:
		return errs.New(errs.Unsupported, "", "the folder in place of %s has too many entries or too many levels", w.cfg.Path).
			WithHint("move it away: a folder is kept up to %d entries and %d levels", mostEntries, mostDepth)
	}
	e := rawEntry{Path: []byte(path), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind = rawFile
		if err := w.file(dir, name, st, &e); err != nil {
			return err
		}
	case unix.S_IFDIR:
		return w.folder(dir, name, st, e, depth)
	case unix.S_IFLNK:
		e.Kind = rawLink
		if e.Target, err = readlink(dir, name); err != nil {
			return err
		}
	case unix.S_IFIFO:
		e.Kind = rawFifo
	default:
		return errs.New(errs.Unsupported, "", "%s is a socket or a device, which cannot be captured", full).WithHint("move it away")
	}
	w.entries = append(w.entries, e)
	return nil
}

func readlink(dir *beneath.Root, name string) ([]byte, error) {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(dir.FD(), name, buf)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = errMoved
	}
	return buf[:max(n, 0)], err
}

// file reads a regular file, which st describes, into e.
func (w *rawReader) file(dir *beneath.Root, name string, st unix.Stat_t, e *rawEntry) error {
	f, err := dir.OpenFile(name, unix.O_RDONLY, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return errMoved
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read
	if err := unmoved(f, st); err != nil {
		return err
	}
	w.size, w.allocated = w.size+st.Size, w.allocated+st.Blocks*512
	if w.size > sparseness*w.allocated+leeway {
		return errs.New(errs.Invalid, "", "%s claims to be %s large, and takes %s on the disk", f.Name(), size(w.size), size(w.allocated)).
			WithHint("the file consists almost entirely of holes: move it away")
	}
	if e.Xattrs, err = readXattrs(f); err != nil {
		return err
	}
	e.Size = st.Size
	digest, buf := blake3.New(), make([]byte, chunkSize)
	for off := int64(0); off < st.Size; off += chunkSize {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(chunkSize, st.Size-off)]
		if err := readFull(f, part, off); errors.Is(err, io.ErrUnexpectedEOF) {
			return errMoved
		} else if err != nil {
			return err
		}
		h, err := w.put(part)
		if err != nil {
			return err
		}
		_, _ = digest.Write(h[:]) // never fails
		w.chunks, e.Chunks = append(w.chunks, h), e.Chunks+1
	}
	e.Content = hex.EncodeToString(digest.Sum(nil))
	return unmoved(f, st)
}

// unmoved returns errMoved unless st describes f.
func unmoved(f *os.File, st unix.Stat_t) error {
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		return err
	}
	if now.Dev != st.Dev || now.Ino != st.Ino || now.Mode != st.Mode || now.Size != st.Size || now.Mtim != st.Mtim || now.Ctim != st.Ctim {
		return errMoved
	}
	return nil
}

// folder reads a folder, which st describes, and its entries.
func (w *rawReader) folder(dir *beneath.Root, name string, st unix.Stat_t, e rawEntry, depth int) error {
	e.Kind = rawFolder
	sub, err := dir.OpenDir(name)
	if noFolder(err) {
		return errMoved
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	f, err := sub.OpenFile(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unmoved(f, st); err != nil {
		return err
	}
	if e.Xattrs, err = readXattrs(f); err != nil {
		return err
	}
	names, err := f.Readdirnames(mostEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	w.entries = append(w.entries, e)
	slices.Sort(names)
	for _, child := range names {
		if err := w.read(sub, child, string(e.Path)+"/"+child, depth+1); err != nil {
			return err
		}
	}
	return unmoved(f, st)
}

// checkStored reads all contents of a raw state and checks their digests.
func (s *stored) checkStored(ctx context.Context) error {
	chunks, err := s.chunks()
	if err != nil {
		return err
	}
	for _, e := range s.entries() {
		if err := s.writeEntry(ctx, io.Discard, e, chunks[:min(e.Chunks, len(chunks))]); err != nil {
			return err
		}
		chunks = chunks[min(e.Chunks, len(chunks)):]
	}
	return nil
}

// writeEntry writes the content of a file, which consists of chunks, to w.
func (s *stored) writeEntry(ctx context.Context, w io.Writer, e rawEntry, chunks []cas.Hash) error {
	if e.Kind != rawFile {
		return nil
	}
	one := stored{store: s.store, record: record{State: state{Content: e.Content}}}
	return one.writeChunks(ctx, w, chunks)
}

// summary describes a raw state in a few words.
func (r *rawState) summary() string {
	if len(r.Entries) == 0 {
		return "nothing"
	}
	var words []string
	for _, suffix := range suffixes {
		list := at(r.Entries, suffix)
		if len(list) == 0 {
			continue
		}
		what := string(list[0].Kind)
		switch list[0].Kind {
		case rawFile:
			what = size(list[0].Size)
		case rawFolder:
			what = "a folder"
		case rawLink, rawFifo:
			what = "a " + what
		}
		words = append(words, strings.TrimSpace(strings.TrimPrefix(suffix, "-")+" "+what))
	}
	return strings.Join(words, ", ") + ", as raw bytes"
}

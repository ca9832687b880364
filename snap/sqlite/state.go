package sqlite

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/cas/chunked"
	"mulligan/snap/database"
)

const (
	chunkSize  = 64 << 10 // bytes of content in a blob; every page size divides it
	formatName = "mulligan sqlite state 1\n"
)

// state is everything of a database that a restore brings back, in the form that is hashed.
type state struct {
	Absent  bool              `json:"absent,omitempty"` // the file does not exist; all other fields are zero
	Size    int64             `json:"size"`             // bytes, with journal and log applied
	Content string            `json:"content"`          // BLAKE3-256 over the BLAKE3-256 of each chunk of those bytes, in hex
	Mode    uint32            `json:"mode"`             // permission bits
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
}

// hash returns the state's digest.
func (s state) hash() snap.Hash {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings, numbers and bytes always marshal
	}
	return blake3.Sum256(append([]byte(formatName), data...))
}

// record is a snapshot's node in the store; its references are lists of chunks. Folders is not part of
// the hash, since folders belong to the files layer: it serves to create missing folders.
type record struct {
	State   state    `json:"state"`
	Folders []folder `json:"folders"` // from the outermost below Dir to the first missing one
	Missing bool     `json:"missing"` // the folder of the database did not exist
	// Raw is set if the live state could not be read as a database; State is zero then.
	Raw *rawState `json:"raw,omitempty"`
}

type folder struct {
	Mode     uint32 `json:"mode"`
	UID, GID uint32
}

// attributes returns the state of l without its content.
func (l *live) attributes() (state, error) {
	if l.db == nil {
		return state{Absent: true}, nil
	}
	x, err := readXattrs(l.db)
	return state{Mode: l.stat.Mode & 0o7777, UID: l.stat.Uid, GID: l.stat.Gid, Xattrs: x}, err
}

// folders describes the folders between Dir and the database.
func (l *live) folders(path string) ([]folder, error) {
	if l.root == nil {
		return nil, nil
	}
	var list []folder
	parts := strings.Split(path, "/")
	for i := 1; i < len(parts); i++ {
		dir, err := l.root.OpenDir(strings.Join(parts[:i], "/"))
		if errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := errors.Join(unix.Fstat(dir.FD(), &st), dir.Close()); err != nil {
			return nil, err
		}
		list = append(list, folder{st.Mode & 0o7777, st.Uid, st.Gid})
	}
	return list, nil
}

// errMoved says that the log was reset while the image was read.
var errMoved = errors.New("the write-ahead log was reset")

// stream reads the image chunk by chunk and returns the digest of the whole. It calls put with each
// chunk for its hash. Chunks whose hash known returns, by their number, are not read.
func (l *live) stream(ctx context.Context, known func(int) (cas.Hash, bool), put func([]byte) (cas.Hash, error)) (string, []cas.Hash, error) {
	digest, buf := blake3.New(), make([]byte, chunkSize)
	var chunks []cas.Hash
	for off := int64(0); off < l.length(); off += chunkSize {
		if err := ctx.Err(); err != nil {
			return "", nil, err
		}
		h, ok := known(len(chunks))
		if !ok {
			n, err := l.readAt(buf, off)
			if err == nil {
				h, err = put(buf[:n])
			}
			if err != nil {
				return "", nil, l.orMoved(err)
			}
		}
		_, _ = digest.Write(h[:]) // never fails
		chunks = append(chunks, h)
	}
	return hex.EncodeToString(digest.Sum(nil)), chunks, l.orMoved(nil)
}

// orMoved returns errMoved if the log was reset, else err.
func (l *live) orMoved(err error) error {
	moved, e := l.moved()
	if e == nil && moved {
		return errMoved
	}
	return errors.Join(err, e)
}

// readAll is a known function for stream that knows no chunk.
func readAll(int) (cas.Hash, bool) { return cas.Hash{}, false }

// sum is a put function for stream that hashes a chunk without storing it.
func sum(p []byte) (cas.Hash, error) { return blake3.Sum256(p), nil }

// readState reads the live state and its chunks' hashes without storing anything.
func (l *live) readState(ctx context.Context) (s state, chunks []cas.Hash, err error) {
	return l.readStateWith(ctx, readAll, sum)
}

func (l *live) readStateWith(ctx context.Context, known func(int) (cas.Hash, bool), put func([]byte) (cas.Hash, error)) (state, []cas.Hash, error) {
	s, err := l.attributes()
	if err != nil || s.Absent {
		return s, nil, err
	}
	var chunks []cas.Hash
	s.Size = l.length()
	s.Content, chunks, err = l.stream(ctx, known, put)
	return s, chunks, err
}

// store puts the live state into the batch, except for known chunks.
func (l *live) store(ctx context.Context, b *cas.Batch, path string, known func(int) (cas.Hash, bool)) (cas.Hash, state, []cas.Hash, error) {
	s, chunks, err := l.readStateWith(ctx, known, b.Blob)
	if err != nil {
		return cas.Hash{}, s, nil, err
	}
	folders, err := l.folders(path)
	if err != nil {
		return cas.Hash{}, s, nil, err
	}
	h, err := storeRecord(b, record{State: s, Folders: folders, Missing: l.dir == nil}, chunks)
	return h, s, chunks, err
}

// storeRecord puts a record into the batch, with lists of the chunks of its content.
func storeRecord(b *cas.Batch, r record, chunks []cas.Hash) (cas.Hash, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return cas.Hash{}, err
	}
	w := chunked.NewWriter(b)
	for _, h := range chunks {
		if err := w.Add(h); err != nil {
			return cas.Hash{}, err
		}
	}
	return w.End(data)
}

// stored is a snapshot loaded from the store.
type stored struct {
	record
	store *cas.Store
	lists []cas.Hash
}

// load reads the record with hash h.
func load(store *cas.Store, h cas.Hash) (*stored, error) {
	data, lists, err := store.Node(h)
	if err != nil {
		return nil, err
	}
	s := &stored{store: store, lists: lists}
	if err := json.Unmarshal(data, &s.record); err != nil {
		return nil, errs.Wrap(errs.Corrupt, "read a snapshot", err)
	}
	return s, nil
}

// chunks returns the content's chunks in order.
func (s *stored) chunks() ([]cas.Hash, error) {
	all, err := chunked.NewReader(context.Background(), s.store, s.lists).Hashes()
	return all, database.Damaged(err)
}

// writeTo writes the content to w and checks its digest.
func (s *stored) writeTo(ctx context.Context, w io.Writer) error {
	chunks, err := s.chunks()
	if err != nil {
		return err
	}
	return s.writeChunks(ctx, w, chunks)
}

// writeChunks writes chunks to w and checks them against the state's digest.
func (s *stored) writeChunks(ctx context.Context, w io.Writer, chunks []cas.Hash) error {
	digest := blake3.New()
	for _, h := range chunks {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := s.store.Get(h)
		if err != nil {
			return database.Damaged(err)
		}
		own := blake3.Sum256(data)
		_, _ = digest.Write(own[:]) // never fails
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(digest.Sum(nil)); !s.State.Absent && got != s.State.Content {
		return errs.New(errs.Corrupt, "", "the stored content hashes to %s, not to %s", got, s.State.Content).
			WithHint("use another checkpoint")
	}
	return nil
}

// readXattrs reads the extended attributes that belong to the content: user attributes and access
// lists. Security labels and capabilities belong to the host.
func readXattrs(f *os.File) (map[string][]byte, error) {
	buf := make([]byte, 64<<10) // the kernel's limit for a list, and for a value
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return nil, err
	}
	var m map[string][]byte
	for _, name := range bytes.Split(bytes.TrimRight(buf[:n], "\x00"), []byte{0}) {
		if !strings.HasPrefix(string(name), "user.") && string(name) != "system.posix_acl_access" {
			continue
		}
		value := make([]byte, 64<<10)
		size, err := unix.Fgetxattr(int(f.Fd()), string(name), value)
		if err != nil {
			return nil, err
		}
		if m == nil {
			m = map[string][]byte{}
		}
		m[string(name)] = value[:size]
	}
	return m, nil
}

// apply sets the owner, mode and attributes of f to those of s.
func (s state) apply(f *os.File) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, int(s.UID), int(s.GID)); err != nil {
		return err
	}
	for name, value := range s.Xattrs {
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, s.Mode)
}

package remote

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
)

// ledger is what a host remembers of a place: which objects are in packs there, and which entries of the log it wrote. It is a
// file of frames, each with a length and a checksum, and only grows. Reading ends at the first frame that is not whole: what comes
// after is forgotten, and so sent again. A ledger is not safe for concurrent use.
type ledger struct {
	f     *os.File
	known map[snap.Hash]struct{} // objects in packs; those below a known node are known too

	packs   []Pack // all that were sent
	pending []Pack // those among them that no entry names yet
	intents []intent
	next    int64  // number of the next entry
	prev    []byte // hash of the last entry

	entries []logged
	sent    []Sent
	lost    *Lost // another host writes to the place
}

// logged is an entry of the log that this host wrote.
type logged struct {
	seq  int64
	sum  []byte
	size int64
	from int // the packs that it names are packs[from:to]
	to   int
}

// Sent is a checkpoint that an entry of the log holds.
type Sent struct {
	Seq   int64     `json:"seq"`
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	About []byte    `json:"about"`
	Left  []string  `json:"left,omitempty"`
}

// Lost says that another host took the place over.
type Lost struct {
	Writer string    `json:"writer"`
	Seq    int64     `json:"seq"` // number of the entry by which this host saw it
	Seen   time.Time `json:"seen"`
}

// intent is an entry that may have been written.
type intent struct {
	Seq   int64  `json:"seq"`
	Sum   []byte `json:"sum"`
	Size  int64  `json:"size"`
	Named int    `json:"named"` // how many of the pending packs it names
	Sent  *Sent  `json:"sent,omitempty"`
}

// frame is one record of a ledger: one of its fields is set.
type frame struct {
	Place  string  `json:"place,omitempty"`
	Pack   *Pack   `json:"pack,omitempty"`
	Intent *intent `json:"intent,omitempty"`
	Wrote  []byte  `json:"wrote,omitempty"` // the sum of an intent that was carried out
	Reset  *reset  `json:"reset,omitempty"`
	Lost   *Lost   `json:"lost,omitempty"`
	Forget *forget `json:"forget,omitempty"`
}

// forget says that these packs cannot be relied on, nor any checkpoint that was sent.
type forget struct {
	Packs []string `json:"packs"`
}

// reset forgets all packs. The next entry has the number Next.
type reset struct {
	Next int64  `json:"next"`
	Prev []byte `json:"prev"`
}

const (
	frameHeader = 8
	maxFrame    = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openLedger reads the ledger of a place, or begins it.
func openLedger(path, place string) (*ledger, error) {
	l, good, err := readLedger(path, place)
	if err != nil {
		return nil, err
	}
	if l.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, errs.Wrap(errs.Failed, "open the ledger", err)
	}
	err = l.f.Truncate(good)
	if err == nil {
		_, err = l.f.Seek(good, 0)
	}
	if err == nil && good == 0 {
		if err = durable.Sync(filepath.Dir(path)); err == nil {
			err = l.write(frame{Place: place})
		}
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "open the ledger", errors.Join(err, l.f.Close()))
	}
	return l, nil
}

// readLedger reads the ledger of a place, without a change to its file. good is the length of what is whole.
func readLedger(path, place string) (l *ledger, good int64, err error) {
	l = &ledger{known: map[snap.Hash]struct{}{}, next: 1}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, 0, nil
	}
	if err != nil {
		return l, 0, errs.Wrap(errs.Failed, "read the ledger", err)
	}
	for rest := data; ; {
		if len(rest) < frameHeader {
			return l, good, nil
		}
		n := int(binary.LittleEndian.Uint32(rest))
		if n > maxFrame || n > len(rest)-frameHeader {
			return l, good, nil
		}
		body := rest[frameHeader : frameHeader+n]
		var fr frame
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(rest[4:]) || json.Unmarshal(body, &fr) != nil {
			return l, good, nil
		}
		if good == 0 && fr.Place != place {
			return l, 0, nil // of another place
		}
		if l.apply(fr) != nil {
			return l, good, nil
		}
		rest = rest[frameHeader+n:]
		good += int64(frameHeader + n)
	}
}

// write adds a frame, durably.
func (l *ledger) write(fr frame) error {
	body, err := json.Marshal(fr)
	if err != nil {
		return errs.Wrap(errs.Internal, "write the ledger", err)
	}
	head := make([]byte, frameHeader, frameHeader+len(body))
	binary.LittleEndian.PutUint32(head, uint32(len(body)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(body, castagnoli))
	if _, err = l.f.Write(append(head, body...)); err == nil {
		err = l.f.Sync()
	}
	if err == nil {
		err = l.apply(fr)
	}
	return errs.Wrap(errs.Failed, "write the ledger", err)
}

// apply changes what is in memory as a frame says.
func (l *ledger) apply(fr frame) error {
	switch {
	case fr.Pack != nil:
		list, err := fr.Pack.objects()
		if err != nil {
			return err
		}
		for _, o := range list {
			l.known[o.hash] = struct{}{}
		}
		l.packs = append(l.packs, *fr.Pack)
		l.pending = append(l.pending, *fr.Pack)
	case fr.Intent != nil:
		l.intents = append(l.intents, *fr.Intent)
	case fr.Wrote != nil:
		l.wrote(fr.Wrote)
	case fr.Reset != nil:
		*l = ledger{f: l.f, known: map[snap.Hash]struct{}{}, sent: l.sent, next: fr.Reset.Next, prev: fr.Reset.Prev}
	case fr.Lost != nil:
		l.lost = fr.Lost
	case fr.Forget != nil:
		return l.forget(fr.Forget.Packs)
	}
	return nil
}

// wrote applies the intent of the entry with this hash: it is the last of the log now.
func (l *ledger) wrote(sum []byte) {
	in := l.intentOf(sum)
	if in == nil {
		return
	}
	l.next, l.prev = in.Seq+1, in.Sum
	from := len(l.packs) - len(l.pending)
	n := max(0, min(in.Named, len(l.pending)))
	l.pending = l.pending[n:]
	l.entries = append(l.entries, logged{in.Seq, in.Sum, in.Size, from, from + n})
	if in.Sent != nil {
		l.sent = append(l.sent, *in.Sent)
	}
	l.intents = nil
}

// forget applies a forget. All nodes are forgotten: objects below them may be in one of the packs. So the next push of each
// checkpoint looks at all of it, and sends what is not known to be elsewhere.
func (l *ledger) forget(packs []string) error {
	for i := range l.packs {
		gone := slices.Contains(packs, l.packs[i].Name)
		list, err := l.packs[i].objects()
		if err != nil {
			return err
		}
		for _, o := range list {
			if gone || o.node {
				delete(l.known, o.hash)
			}
		}
	}
	l.sent = nil
	return nil
}

func (l *ledger) intentOf(sum []byte) *intent {
	for i := range l.intents {
		if string(l.intents[i].Sum) == string(sum) {
			return &l.intents[i]
		}
	}
	return nil
}

func (l *ledger) has(id string) bool {
	for _, s := range l.sent {
		if s.ID == id {
			return true
		}
	}
	return false
}

func (l *ledger) close() error { return l.f.Close() }

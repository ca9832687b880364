// Package journal is the stored journal of a workspace: a row of epochs, each a manifest and the
// chain of links, batches of changes, that came after it. Nothing in it asks for the workspace.
package journal

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
)

// Journal is the stored journal of one workspace. Each epoch is under one root. Safe for concurrent use.
type Journal struct {
	s      *cas.Store
	prefix string // of the roots' names

	mu     sync.Mutex
	loaded bool
	id     string // marks of another journal are not taken for marks of this one
	epochs []*epoch
}

// epoch is one stretch of the journal.
type epoch struct {
	about EpochInfo
	root  string
	head  snap.Hash // the newest link, or the manifest if there is none
	steps []step    // oldest first; nil: not read yet
}

// step says where the state after a link is.
type step struct {
	seq  uint64
	hash snap.Hash
}

// EpochInfo is what an epoch's root says beside its newest link.
type EpochInfo struct {
	Journal string
	Base    uint64           // the link before the first
	Last    uint64           // the newest link; Base: there is none
	Rules   manifest.HexHash // of what was excluded
	Root    uint64           // the workspace folder's inode number
	Records int              // in all links together
	Bytes   int64            `json:",omitempty"` // of the contents that they speak of
}

// Open returns the journal whose roots' names begin with prefix.
func Open(s *cas.Store, prefix string) *Journal { return &Journal{s: s, prefix: prefix} }

// load reads the roots once. mu is held.
func (h *Journal) load() error {
	if h.loaded {
		return nil
	}
	var list []*epoch
	id := ""
	for _, r := range h.s.Roots(h.prefix) {
		e := &epoch{root: r.Name, head: r.Hash}
		if err := json.Unmarshal(r.Meta, &e.about); err != nil {
			return manifest.Damaged(r.Hash, err)
		}
		list, id = append(list, e), e.about.Journal
	}
	if id == "" {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		id = hex.EncodeToString(b[:])
	}
	slices.SortFunc(list, func(a, b *epoch) int { return int(int64(a.about.Base) - int64(b.about.Base)) })
	h.id, h.epochs, h.loaded = id, list, true
	return nil
}

// last is the newest epoch, nil when nothing is stored. mu is held.
func (h *Journal) last() *epoch {
	if len(h.epochs) == 0 {
		return nil
	}
	return h.epochs[len(h.epochs)-1]
}

// Head is the newest position: its mark, where its state is, what is known of it.
func (h *Journal) Head() (m snap.Mark, at snap.Hash, about EpochInfo, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return "", at, about, err
	}
	e := h.last()
	if e == nil {
		return "", at, about, nil
	}
	return h.mark(e.about.Last), e.head, e.about, nil
}

func (h *Journal) mark(seq uint64) snap.Mark {
	return snap.Mark(fmt.Sprintf("%s-%012x", h.id, seq))
}

// IsBase reports whether an epoch begins at m.
func (h *Journal) IsBase(e EpochInfo, m snap.Mark) bool {
	return m == snap.Mark(fmt.Sprintf("%s-%012x", e.Journal, e.Base))
}

// parse reads a mark of this journal. mu is held.
func (h *Journal) parse(op string, m snap.Mark) (uint64, error) {
	id, num, ok := strings.Cut(string(m), "-")
	seq, err := strconv.ParseUint(num, 16, 64)
	if !ok || err != nil {
		return 0, errs.New(errs.Invalid, op, "%q is no position in a journal", string(m))
	}
	if id != h.id {
		return 0, errs.New(errs.NotFound, op, "position %s is of a journal that is gone", m)
	}
	return seq, nil
}

// Find gives where the state at a mark is, and the epoch it belongs to.
func (h *Journal) Find(op string, m snap.Mark) (at snap.Hash, about EpochInfo, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return at, about, err
	}
	seq, err := h.parse(op, m)
	if err != nil {
		return at, about, err
	}
	for _, e := range slices.Backward(h.epochs) {
		if e.about.Base > seq {
			continue
		}
		if err := h.read(e); err != nil {
			return at, about, err
		}
		i, ok := slices.BinarySearchFunc(e.steps, seq, func(s step, n uint64) int { return int(int64(s.seq) - int64(n)) })
		if ok {
			return e.steps[i].hash, e.about, nil
		}
		break
	}
	return at, about, errs.New(errs.NotFound, op, "the journal does not reach position %s", m).
		WithHint("it was trimmed; use a checkpoint")
}

// read fills in an epoch's steps. mu is held.
func (h *Journal) read(e *epoch) error {
	if e.steps != nil {
		return nil
	}
	links, base, err := chain(h.s, e.head)
	if err != nil {
		return err
	}
	steps := []step{{e.about.Base, base}}
	for _, l := range slices.Backward(links) {
		steps = append(steps, step{l.seq, l.hash})
	}
	e.steps = steps
	return nil
}

// maxRecords bounds one link; what changed together may be several of them.
const maxRecords = 8192

// Add makes a batch of changes, and what b holds, durable as the newest links.
func (h *Journal) Add(b *cas.Batch, seen time.Time, records []Record) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return err
	}
	e := h.last()
	if e == nil {
		return errs.New(errs.Internal, "write journal", "it has no beginning")
	}
	if err := h.read(e); err != nil {
		return err
	}
	about, head, steps := e.about, e.head, e.steps
	for len(records) > 0 {
		n := min(len(records), maxRecords)
		l := &link{prev: head, start: about.Last == about.Base, seq: about.Last + 1, seen: seen, records: records[:n]}
		records = records[n:]
		if head, err = b.Series(journalName).Node(l.encode()); err != nil {
			return err
		}
		about.Last, about.Records = l.seq, about.Records+n
		for i := range l.records {
			if e := l.records[i].After; e != nil {
				about.Bytes += e.Size
			}
		}
		steps = append(steps, step{l.seq, head})
	}
	r, err := epochRoot(e.root, head, about)
	if err != nil {
		return err
	}
	if err := b.Commit(r); err != nil {
		return err
	}
	e.about, e.head, e.steps = about, head, steps
	return nil
}

func epochRoot(name string, hash snap.Hash, about EpochInfo) (cas.Root, error) {
	meta, err := json.Marshal(about)
	return cas.Root{Name: name, Hash: hash, Meta: meta}, err
}

// Begin starts a new epoch with the manifest top: at the newest position, or
// behind it where no links lead there (gap).
func (h *Journal) Begin(b *cas.Batch, top snap.Hash, rules manifest.HexHash, root uint64, gap bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return err
	}
	about := EpochInfo{Journal: h.id, Rules: rules, Root: root}
	if e := h.last(); e != nil {
		about.Base = e.about.Last
		if gap {
			about.Base++
		}
		about.Last = about.Base
	}
	e := &epoch{about: about, root: fmt.Sprintf("%s%016x", h.prefix, about.Base), head: top, steps: []step{{about.Base, top}}}
	r, err := epochRoot(e.root, top, about)
	if err != nil {
		return err
	}
	if err := b.Commit(r); err != nil {
		return err
	}
	if last := h.last(); last != nil && last.root == e.root {
		h.epochs = h.epochs[:len(h.epochs)-1]
	}
	h.epochs = append(h.epochs, e)
	return nil
}

// Seq is the number of the link at a mark.
func (h *Journal) Seq(op string, m snap.Mark) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return 0, err
	}
	return h.parse(op, m)
}

// Trim drops the epochs that end before the mark. The newest stays.
func (h *Journal) Trim(op string, oldest snap.Mark) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return err
	}
	names, err := h.ended(op, oldest)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := h.s.Delete(names...); err != nil {
		return err
	}
	h.epochs = slices.Delete(h.epochs, 0, len(names))
	return nil
}

// ended names the epochs that end before the mark, oldest first. mu is held.
func (h *Journal) ended(op string, oldest snap.Mark) (names []string, err error) {
	seq, err := h.parse(op, oldest)
	if errs.KindOf(err) == errs.NotFound {
		return nil, nil // of a journal that is gone: no epoch is older than that
	}
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(h.epochs)-1 && h.epochs[i+1].about.Base <= seq; i++ {
		names = append(names, h.epochs[i].root)
	}
	return names, nil
}

// EndedRoots names the epochs that trim would drop.
func (h *Journal) EndedRoots(op string, oldest snap.Mark) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, err
	}
	return h.ended(op, oldest)
}

// Reaches reports whether the state at m is in the journal still.
func (h *Journal) Reaches(m snap.Mark) bool {
	_, _, err := h.Find("", m)
	return err == nil
}

// Package journal stores the journal of a workspace: a sequence of epochs. Each epoch is a manifest and the chain of links
// (batches of changes) that follow it. The package never reads the workspace.
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

// Journal is the stored journal of one workspace. A root of the store refers to each epoch. Safe for concurrent use.
type Journal struct {
	s      *cas.Store
	prefix string // the prefix of the roots' names

	mu     sync.Mutex
	loaded bool
	id     string // distinguishes this journal's marks from those of another journal
	epochs []*epoch
}

// epoch is a part of the journal: a manifest and the links that follow it.
type epoch struct {
	about EpochInfo
	root  string
	head  snap.Hash // the newest link, or the manifest if there is none
	steps []step    // oldest first; nil: not read yet. The first step is the manifest
}

// step is the number of a link and its hash, from which the state after the link can be resolved.
type step struct {
	seq  uint64
	hash snap.Hash
}

// EpochInfo is the metadata of an epoch's root.
type EpochInfo struct {
	Journal string
	Base    uint64           // the number before that of the first link
	Last    uint64           // the number of the newest link; equal to Base if there is none
	Rules   manifest.HexHash // the hash of the exclude rules
	Root    uint64           // the workspace folder's inode number
	Records int              // the number of records in all links together
	Bytes   int64            `json:",omitempty"` // the total size of the contents in these records
}

// Open returns the journal whose roots' names begin with prefix.
func Open(s *cas.Store, prefix string) *Journal { return &Journal{s: s, prefix: prefix} }

// load reads the roots once. The caller must hold mu.
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

// last returns the newest epoch, or nil if nothing is stored. The caller must hold mu.
func (h *Journal) last() *epoch {
	if len(h.epochs) == 0 {
		return nil
	}
	return h.epochs[len(h.epochs)-1]
}

// Head returns the newest position: its mark, the hash of its link or manifest, and its epoch. All are zero if nothing is
// stored.
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

// parse returns the number in a mark of this journal. The error is of kind errs.Invalid if m is no mark, and errs.NotFound if m
// is of another journal. The caller must hold mu.
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

// Find returns the hash of the link or manifest at the mark m, and the epoch of m. The error is of kind errs.NotFound if the
// journal does not reach m.
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

// read loads an epoch's steps. The caller must hold mu.
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

// maxRecords bounds the records of one link. A larger batch becomes several links.
const maxRecords = 8192

// Add stores a batch of changes as the newest links, and commits b, which holds their contents.
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

// Begin starts a new epoch with the manifest top. The epoch begins at the newest position, or with gap after it, because no
// links lead from there to top.
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

// Seq returns the number of the link at a mark. The error is of kind errs.Invalid if m is no mark, and errs.NotFound if m is of
// another journal.
func (h *Journal) Seq(op string, m snap.Mark) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return 0, err
	}
	return h.parse(op, m)
}

// Trim deletes the epochs that end before the mark. The newest epoch stays.
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

// Drop deletes the journal. What is written afterwards is another one, whose marks differ.
func (h *Journal) Drop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return err
	}
	var names []string
	for _, e := range h.epochs {
		names = append(names, e.root)
	}
	if len(names) == 0 {
		return nil
	}
	err := h.s.Delete(names...)
	h.loaded, h.id, h.epochs = false, "", nil
	return err
}

// ended returns the root names of the epochs that end before the mark, oldest first. The caller must hold mu.
func (h *Journal) ended(op string, oldest snap.Mark) (names []string, err error) {
	seq, err := h.parse(op, oldest)
	if errs.KindOf(err) == errs.NotFound {
		return nil, nil // the mark is of another journal: no epoch is older
	}
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(h.epochs)-1 && h.epochs[i+1].about.Base <= seq; i++ {
		names = append(names, h.epochs[i].root)
	}
	return names, nil
}

// EndedRoots returns the root names of the epochs that Trim would delete.
func (h *Journal) EndedRoots(op string, oldest snap.Mark) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil {
		return nil, err
	}
	return h.ended(op, oldest)
}

// Reaches reports whether the journal still has the state at m.
func (h *Journal) Reaches(m snap.Mark) bool {
	_, _, err := h.Find("", m)
	return err == nil
}

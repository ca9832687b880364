package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"

	"mulligan/errs"
	"mulligan/snap"
)

// Reader reads a place, with an identity.
type Reader struct {
	Bucket     Bucket
	Place      string
	Identities []age.Identity
}

// History is what the log of a place says.
type History struct {
	reader Reader

	Checkpoints []Logged // oldest first
	// Problems say, in whole sentences, what of the log is damaged or missing.
	Problems []string
	// Warnings say, in whole sentences, what may be missing.
	Warnings []string
	lastBad  bool  // the newest entry cannot be read
	denied   error // why an entry cannot be read that is sealed for others
	// Key is the log's key, which who takes the place over needs.
	Key []byte

	at      map[snap.Hash][]location
	last    int64           // number of the last entry
	removed map[string]bool // packs
	dropped map[int64]bool  // entries whose checkpoints are no more
}

// Logged is a checkpoint in the log.
type Logged struct {
	Checkpoint
	Seq  int64
	Host string
	Sent time.Time
}

// location is where an object is.
type location struct {
	pack *Pack
	object
}

// readAtOnce is the number of objects that are read from a bucket at the same time.
const readAtOnce = 8

// Read reads the whole log. Damage of an entry is among the Problems; the error is of kind errs.Denied if the identity opens
// none of the entries.
func (r Reader) Read(ctx context.Context) (*History, error) {
	const op = "read the remote's log"
	list, err := r.Bucket.List(ctx, r.Place+"/log/", "")
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	raw, entries, problems := make([][]byte, len(list)), make([]*entry, len(list)), make([]error, len(list))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for i, o := range list {
		g.Go(func() error {
			raw[i], entries[i], problems[i] = r.entry(gctx, o.Name)
			switch errs.KindOf(problems[i]) {
			case "", errs.Corrupt, errs.NotFound, errs.Denied: // an entry whose head is damaged is for nobody
				return nil
			}
			return problems[i]
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if i := slices.IndexFunc(problems, func(err error) bool { return errs.KindOf(err) == errs.Denied }); i >= 0 && !slices.ContainsFunc(entries, func(e *entry) bool { return e != nil }) {
		return nil, errs.Wrap(errs.Denied, op, problems[i])
	}
	h := &History{reader: r, at: map[snap.Hash][]location{}, removed: map[string]bool{}, dropped: map[int64]bool{}}
	next := int64(1)
	var prev []byte // hash of the entry before; nil: it is missing
	for i, o := range list {
		n, err := seqOf(r.Place, o.Name)
		if err != nil {
			h.problem("%s.", err)
			continue
		}
		if n > next {
			h.problem("Entries %d to %d of the log are missing.", next, n-1)
			prev = nil
		}
		next = n + 1
		e := entries[i]
		if e != nil && h.Key == nil {
			h.Key = e.Key
		}
		if e != nil && !bytes.Equal(e.Key, h.Key) { // whoever knows a recipient can seal, and does not know the key
			h.problem("Entry %d of the log was written by somebody who does not have the log's key.", n)
			e, h.lastBad, prev = nil, true, sum(raw[i])
			continue
		}
		h.lastBad = e == nil
		if e == nil {
			h.problem("Entry %d of the log cannot be read: %s.", n, errs.Words(problems[i]))
			if errs.KindOf(problems[i]) == errs.Denied {
				h.denied = problems[i]
			}
			prev = sum(raw[i])
			continue
		}
		if prev != nil && !bytes.Equal(prev, e.Prev) {
			h.problem("Entry %d of the log is not the one that entry %d was written after.", n-1, n)
		}
		prev = sum(raw[i])
		h.add(n, e)
	}
	h.drop()
	h.last = next - 1
	return h, h.orphans(ctx)
}

// Newer reads the log again if it has become longer, and else returns nil: a prune may have moved what this history says is elsewhere.
func (h *History) Newer(ctx context.Context) (*History, error) {
	more, err := h.reader.Bucket.List(ctx, h.reader.Place+"/log/", logName(h.reader.Place, max(h.last, 1)))
	if err != nil || len(more) == 0 {
		return nil, errs.Wrap(errs.Failed, "read the remote's log", err)
	}
	return h.reader.Read(ctx)
}

// drop drops what the log says is no more. Of a checkpoint that was sent more than once, the last entry of the rest counts, at the place of the first. A
// prune drops entries of its own host alone: a checkpoint that two hosts sent under one id stays as the other one sent it.
func (h *History) drop() {
	h.Checkpoints = slices.DeleteFunc(h.Checkpoints, func(c Logged) bool { return h.dropped[c.Seq] })
	last := map[string]int64{} // the number of each checkpoint's last entry
	for _, c := range h.Checkpoints {
		last[c.ID] = c.Seq
	}
	h.Checkpoints = slices.DeleteFunc(h.Checkpoints, func(c Logged) bool { return last[c.ID] != c.Seq })
	slices.SortStableFunc(h.Checkpoints, func(a, b Logged) int { return cmp.Compare(cmp.Or(a.First, a.Seq), cmp.Or(b.First, b.Seq)) })
	if len(h.removed) == 0 {
		return
	}
	for sum, list := range h.at {
		if list = slices.DeleteFunc(list, func(l location) bool { return h.removed[l.pack.Name] }); len(list) > 0 {
			h.at[sum] = list
		} else {
			delete(h.at, sum)
		}
	}
}

func (h *History) problem(format string, args ...any) {
	h.Problems = append(h.Problems, fmt.Sprintf(format, args...))
}

// entry reads one entry of the log.
func (r Reader) entry(ctx context.Context, name string) (raw []byte, e *entry, err error) {
	if raw, err = r.Bucket.Get(ctx, name); err != nil {
		return raw, nil, err
	}
	cut, err := cutEntry(raw)
	if err != nil {
		return raw, nil, err
	}
	body, err := open(cut.sealed, r.Identities)
	if err != nil {
		return raw, nil, err
	}
	e = &entry{}
	if err := json.Unmarshal(body, e); err != nil {
		return raw, nil, &errs.Error{Kind: errs.Corrupt, Message: "the entry is damaged", Err: err}
	}
	if e.Place != r.Place || logName(r.Place, e.Seq) != name || e.Writer != cut.writer {
		return raw, nil, errs.New(errs.Corrupt, "", "what is there was written as another entry")
	}
	if cut.proof != proof(e.Key, name, cut.writer, cut.sealed) {
		return raw, nil, errs.New(errs.Corrupt, "", "its head is damaged")
	}
	return raw, e, nil
}

// add takes an entry into the history.
func (h *History) add(n int64, e *entry) {
	for i := range e.Packs {
		p := &e.Packs[i]
		list, err := p.objects()
		if err != nil || !isName(p.Name) {
			h.problem("Entry %d of the log names a pack whose index is damaged.", n)
			continue
		}
		for _, o := range list {
			h.at[o.hash] = append(h.at[o.hash], location{p, o})
		}
	}
	if e.Removed != nil {
		for _, name := range e.Removed.Packs {
			h.removed[name] = true
		}
		for _, seq := range e.Removed.Checkpoints {
			h.dropped[seq] = seq < n
		}
	}
	if e.Checkpoint != nil {
		h.Checkpoints = append(h.Checkpoints, Logged{*e.Checkpoint, n, e.Host, e.At})
	}
}

// packs returns the packs that the log names, by name.
func (h *History) packs() map[string]*Pack {
	all := map[string]*Pack{}
	for _, list := range h.at {
		for _, l := range list {
			all[l.pack.Name] = l.pack
		}
	}
	return all
}

// orphans warns of packs that no entry names.
func (h *History) orphans(ctx context.Context) error {
	there, err := h.reader.Bucket.List(ctx, h.reader.Place+"/packs/", "")
	if err != nil {
		return errs.Wrap(errs.Failed, "list the remote's packs", err)
	}
	named, lost := h.packs(), 0
	for _, o := range there {
		if name := o.Name[len(h.reader.Place+"/packs/"):]; named[name] == nil && !h.removed[name] {
			lost++
		}
	}
	if lost > 0 {
		h.Warnings = append(h.Warnings, fmt.Sprintf(
			"No entry of the log names %d of the remote's packs: a push was cut short, or newer entries of the log were removed.", lost))
	}
	return nil
}

// Newest returns the newest checkpoint. If a newer one may be damaged or missing, it returns an error of kind errs.Corrupt.
func (h *History) Newest() (*Logged, error) {
	if h.lastBad {
		return nil, errs.New(errs.Corrupt, "", "the newest entry of the remote's log cannot be read").
			WithHint("name an older checkpoint to go to: --at CP")
	}
	if len(h.Checkpoints) == 0 {
		return nil, errs.New(errs.NotFound, "", "there is no checkpoint on the remote")
	}
	return &h.Checkpoints[len(h.Checkpoints)-1], nil
}

// Find returns the checkpoint with this id. If it is not there, and may be in what is damaged or missing, the error is of kind errs.Corrupt.
func (h *History) Find(id string) (*Logged, error) {
	for i := len(h.Checkpoints) - 1; i >= 0; i-- {
		if h.Checkpoints[i].ID == id {
			return &h.Checkpoints[i], nil
		}
	}
	if len(h.Problems) > 0 {
		return nil, errs.New(errs.Corrupt, "", "checkpoint %.64q is not in what can be read of the remote's log, and may be in the rest: %s",
			id, strings.TrimSuffix(h.Problems[0], ".")).WithHint("name another checkpoint")
	}
	return nil, errs.New(errs.NotFound, "", "checkpoint %.64q is not on the remote", id)
}

package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"mulligan/errs"
)

// A prune is one more entry of the log: it says which checkpoints are no more, and which packs. Only then are the packs deleted. So whoever
// reads the log knows what is gone, a host that lost the place finds that out before it deletes anything, and what a crash leaves are packs that nothing
// names. Entries are never removed: each number of the log was written once, which is what makes the log a lease.
//
// Which objects a checkpoint needs is told by the ledger, since the host cannot read what it sent. Of what the ledger does not know nothing is
// removed: what other hosts sent, or this one before it forgot.

// removed is what an entry says is no more.
type removed struct {
	Checkpoints []int64  `json:"checkpoints,omitempty"` // the numbers of the entries that have them
	Packs       []string `json:"packs,omitempty"`
	// Forgotten are the ids of checkpoints in doubt, of whose entries the host knows nothing any more. It forgets them; an entry that has one stays.
	Forgotten []string `json:"forgotten,omitempty"`
}

// remove applies what an entry says is no more. The entry may have been written long after it was planned, so remove computes from the present
// packs which nodes lack something below them.
func (l *ledger) remove(r *removed) error {
	gone, dropped, forgotten, wrote := setOf(r.Packs), setOf(r.Checkpoints), setOf(r.Forgotten), l.wroteEntries()
	l.Garbage = append(slices.Clip(l.Garbage), r.Packs...)
	l.Packs = slices.DeleteFunc(slices.Clone(l.Packs), func(k noted) bool { return gone[k.Name] })
	l.Sent = slices.DeleteFunc(slices.Clone(l.Sent), func(c Sent) bool {
		_, known := wrote[c.Seq]
		return dropped[c.Seq] || !known && forgotten[c.ID]
	})
	l.buryAll()
	return l.learnAll()
}

func setOf[T comparable](list []T) map[T]bool {
	set := map[T]bool{}
	for _, v := range list {
		set[v] = true
	}
	return set
}

// Pruned is what a Prune removed, or would remove.
type Pruned struct {
	Gone  []Sent // checkpoints, oldest first
	Stay  int    // checkpoints
	Packs int    // objects of the bucket that are removed
	Freed int64  // their bytes, less those of what was written in their place
	Moved int64  // bytes of packs that were written in the place of others
	// Left says, in whole sentences, what else is there and is not removed.
	Left []string
}

// Prune removes checkpoints from the place: those whose ids goes names of what was sent, oldest first; and the packs that no other checkpoint
// needs. Of a pack of which little is needed, that is sent again, in another one, as far as it is in from. dry only says what would be removed.
func (p *Place) Prune(ctx context.Context, from Objects, goes func([]Sent) map[string]bool, dry bool) (res Pruned, err error) {
	const op = "prune the remote"
	p.mu.Lock()
	defer p.mu.Unlock()
	if dry {
		l, err := p.readLedger()
		if err == nil && l.lost != nil {
			err = l.lost.Err()
		}
		if err == nil {
			_, err = p.planned(ctx, l, from, goes, &res)
		}
		return res, errs.Wrap(errs.Failed, op, err)
	}
	l, err := p.openLedger()
	if err != nil {
		return res, errs.Wrap(errs.Failed, op, err)
	}
	defer func() { err = errs.Wrap(errs.Failed, op, errs.Also(err, l.close())) }()
	if err := p.mayPrune(ctx, &res); err != nil {
		return res, err
	}
	if err = p.current(ctx, l); err != nil {
		return res, err
	}
	plan, err := p.planned(ctx, l, from, goes, &res)
	if err != nil {
		return res, err
	}
	if err = p.carryOut(ctx, l, from, plan, &res); err != nil {
		return res, err
	}
	if err = p.cfg.Failpoint.At("prune: ledger"); err != nil {
		return res, err
	}
	if len(l.intents) > 0 { // an entry that may still be written
		return res, nil
	}
	return res, l.rewrite(p.cfg.Ledger, p.cfg.Name)
}

// mayPrune fails if what is deleted in the bucket stays there.
func (p *Place) mayPrune(ctx context.Context, res *Pruned) error {
	locks, err := p.cfg.Bucket.Locks(ctx)
	if err != nil {
		return err
	}
	if locks {
		return errs.New(errs.Denied, "", "the bucket locks objects, so that nothing in it can be deleted: nothing was removed").
			WithHint("checkpoints stay until the bucket's owner removes them; `mulligan remote add` with another name begins a place in another bucket")
	}
	// A name that was never used: who may not delete is told so, and nothing changes.
	err = p.cfg.Bucket.Delete(ctx, p.cfg.Name+"/check/"+NewName())
	if errs.KindOf(err) == errs.Denied {
		return &errs.Error{Kind: errs.Denied, Message: "the remote's key cannot delete: nothing was removed", Err: err,
			Hint: "`mulligan remote add` with the same name and URL gives the remote another key, for as long as a prune takes"}
	}
	if err != nil {
		return err
	}
	versions, err := p.cfg.Bucket.Versions(ctx)
	if versions {
		res.Left = append(res.Left, "The bucket keeps older versions of objects: what is removed takes up room until a rule of the bucket's owner drops those.")
	}
	return err
}

// current finds out whether this host still writes to the place, and the ledger is as old as the log.
func (p *Place) current(ctx context.Context, l *ledger) error {
	if l.lost != nil {
		return l.lost.Err()
	}
	err := p.settle(ctx, l)
	if errors.Is(err, errOlder) {
		return p.skipAhead(ctx, l)
	}
	return err
}

// plan is what a prune removes.
type plan struct {
	removed
	move    []int // packs whose living objects are sent again
	found   *found
	unknown []string // packs that nothing ever named
}

// planned works out what is to be removed, and describes it.
func (p *Place) planned(ctx context.Context, l *ledger, from Objects, goes func([]Sent) map[string]bool, res *Pruned) (*plan, error) {
	there, err := p.sizes(ctx)
	if err != nil {
		return nil, err
	}
	if err = p.asLeft(ctx, l, there); err != nil {
		return nil, err
	}
	m := &plan{}
	roots := m.choose(l, goes, res)
	if m.found, err = l.find(roots); err != nil {
		return nil, err
	}
	m.sort(l, from, res)
	noted, garbage := map[string]bool{}, setOf(l.Garbage)
	for _, k := range l.Packs {
		noted[k.Name] = true
	}
	others := 0
	for object, size := range there {
		name, pack := strings.CutPrefix(object, packName(p.cfg.Name, ""))
		switch {
		case !pack, noted[name]:
		case garbage[name]:
			res.Packs++
			res.Freed += size
		case isName(name):
			m.unknown = append(m.unknown, name)
		default:
			others++
		}
	}
	if len(m.unknown) > 0 {
		whole, err := p.knowsAll(ctx, l)
		if err != nil {
			return nil, err
		}
		if !whole {
			others += len(m.unknown)
			m.unknown = nil
		}
	}
	for _, name := range m.unknown {
		res.Packs++
		res.Freed += there[packName(p.cfg.Name, name)]
	}
	if others > 0 {
		res.Left = append(res.Left, fmt.Sprintf(
			"%d packs stay that this host does not know: another host sent them, or this one before it took the remote over or lost its notes, or part of the log is damaged.", others))
	}
	return m, nil
}

// asLeft fails if something that this host sent is missing, or has another size: the bucket may have been put back to an older state, whose log needs what the
// ledger does not know any more.
func (p *Place) asLeft(ctx context.Context, l *ledger, there map[string]int64) error {
	for _, w := range l.stored(p.cfg.Name) {
		problem, err := p.checkObject(ctx, w, there, false)
		if err != nil {
			return err
		}
		if problem != "" {
			return errs.New(errs.Conflict, "", "the remote is not as this host left it, and nothing was removed: %s", strings.TrimSuffix(problem, ".")).
				WithHint("`mulligan verify --remote` finds all that is missing there, and has it sent again; then prune it")
		}
	}
	return nil
}

// knowsAll reports whether the ledger knows all entries of the log, up to its last one.
func (p *Place) knowsAll(ctx context.Context, l *ledger) (bool, error) {
	if len(l.Entries) == 0 || l.Entries[0].Seq != 1 || slices.ContainsFunc(l.Entries, func(e logged) bool { return e.Bad }) {
		return false, nil
	}
	data, err := p.cfg.Bucket.Get(ctx, logName(p.cfg.Name, l.Next-1))
	return bytes.Equal(sum(data), l.Prev), err
}

// choose decides which checkpoints go, and returns the hashes of what the others consist of.
func (m *plan) choose(l *ledger, goes func([]Sent) map[string]bool, res *Pruned) (roots [][]byte) {
	wrote := l.wroteEntries()
	last := map[string]int64{} // what was sent again counts once: by its last entry that can be read, or else by its last
	for _, c := range l.Sent {
		if before, known := wrote[last[c.ID]]; !known || before.Bad || !wrote[c.Seq].Bad {
			last[c.ID] = c.Seq
		}
	}
	drop := goes(slices.DeleteFunc(slices.Clone(l.Sent), func(c Sent) bool { return last[c.ID] != c.Seq }))
	for _, c := range l.Sent {
		_, known := wrote[c.Seq]
		switch {
		case known && c.Seq < last[c.ID]:
			m.Checkpoints = append(m.Checkpoints, c.Seq)
		case drop[c.ID] && (known || c.Doubt):
			if known {
				m.Checkpoints = append(m.Checkpoints, c.Seq)
			} else {
				m.Forgotten = append(m.Forgotten, c.ID)
			}
			if c.Seq == last[c.ID] {
				res.Gone = append(res.Gone, c)
			}
			continue
		case known: // a later one, which is damaged, stays as well: it counts if it can be read after all
			roots = append(roots, c.Roots...)
		}
		if c.Seq == last[c.ID] {
			res.Stay++
		}
	}
	return roots
}

// sort decides which packs go.
func (m *plan) sort(l *ledger, from Objects, res *Pruned) {
	for i, k := range l.Packs {
		used, all := m.found.use(i)
		switch {
		case used == 0:
			m.Packs = append(m.Packs, k.Name)
			res.Packs++
			res.Freed += k.Size
		case !k.Bad && 2*used <= all && m.found.readable(i, k.Dead, from):
			m.move = append(m.move, i)
			m.Packs = append(m.Packs, k.Name)
			moved := int64(float64(k.Size) * float64(used) / float64(all)) // as if all of it could be compressed alike
			res.Packs++
			res.Freed += k.Size - moved
			res.Moved += moved
		}
	}
}

// carryOut removes what is planned.
func (p *Place) carryOut(ctx context.Context, l *ledger, from Objects, m *plan, res *Pruned) error {
	if len(m.move) > 0 {
		var sent Pushed
		if err := p.sendAll(ctx, l, from, &sent, func(s *sender) error { return m.found.send(s, m.move) }); err != nil {
			return err
		}
		res.Freed += res.Moved - sent.Bytes
		res.Moved = sent.Bytes
	}
	var err error
	if len(m.unknown) > 0 {
		// What was in the bucket before this, and the ledger does not know, is no other host's: that one would have written an entry first.
		if err = p.meet(ctx, l, l.Next); errs.KindOf(err) == errs.NotFound {
			err = nil
		}
	}
	if err == nil && len(m.Checkpoints)+len(m.Packs)+len(m.Forgotten) > 0 {
		err = p.append(ctx, l, entry{Removed: &m.removed}, intent{Removed: &m.removed})
	}
	if errors.Is(err, errOlder) {
		if err := p.skipAhead(ctx, l); err != nil {
			return err
		}
	}
	if errors.Is(err, errOlder) || errors.Is(err, errWritten) {
		return errs.New(errs.Busy, "", "something else was sent to the remote at the same time").WithHint("prune it again")
	}
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for _, name := range slices.Concat(l.Garbage, m.unknown) {
		g.Go(func() error {
			err := p.cfg.Failpoint.At("prune: delete")
			if err == nil {
				err = p.cfg.Bucket.Delete(gctx, packName(p.cfg.Name, name))
			}
			return err
		})
	}
	if err = g.Wait(); err != nil {
		return err
	}
	if err = p.cfg.Failpoint.At("prune: deleted"); err != nil || len(l.Garbage) == 0 {
		return err
	}
	return l.write(frame{Swept: true})
}

// Package retention decides which checkpoints go. It is rules only: it looks at
// no clock and touches nothing, so what it says can be shown before it is done.
package retention

import (
	"slices"
	"time"

	"mulligan/ipc"
)

// Kind says why a checkpoint was made, and so which allowance it counts against.
type Kind int

// The kinds. All but Asked are automatic.
const (
	Asked     Kind = iota // somebody asked for it: a person, a deploy, an agent
	Turn                  // the checkpoint of an announced turn
	Inferred              // the checkpoint of an inferred turn
	Safety                // the safety checkpoint of a rollback or a revert
	CalledOff             // the safety checkpoint of a rollback that was undone: there is nothing to redo
)

// Item is what the rules need to know about a checkpoint.
type Item struct {
	ID        ipc.CheckpointID
	CreatedAt time.Time
	Kind      Kind
	Pinned    bool
	ExpiresAt *time.Time // nil: never
	Protected bool       // the target or the safety checkpoint of something under way
}

// Plan says which of the checkpoints, given newest first, go at now, oldest
// first. It is the order in which they were made that counts, not their times:
// a clock that was set back makes no checkpoint old. The rules, in their order:
//
//   - pinned and protected ones stay, whatever else is said;
//   - of the others, those whose time is over go, and count for nothing below;
//   - the newest of all stays, and the newest that somebody asked for;
//   - of those that somebody asked for, the keep_last newest stay, regardless of
//     age, and the oldest of each of the last daily_days days (of UTC, today being
//     one of them); pinned ones count among them;
//   - of the automatic ones of turns, the keep_turns newest stay; turns that nobody
//     told of have an allowance of the same size of their own;
//   - of the safety checkpoints, the keep_safety newest stay; those of rollbacks that
//     were undone have an allowance of the same size of their own;
//   - while what is left exceeds max_bytes, safety checkpoints go, then those of
//     turns, the oldest first, but never the newest of all. One whose going turns out
//     not to be needed stays. None that somebody asked for goes for its size.
//
// So no automatic checkpoint ever takes the place of one that was asked for.
//
// left says how many bytes the others occupy once drop is gone; checkpoints
// share contents, so sizes don't add up. It is called only where max_bytes is
// set, and its error ends the planning. ExpireAfter is not looked at: it sets
// ExpiresAt when a checkpoint is made. over is by how many bytes what stays exceeds
// max_bytes all the same.
func Plan(now time.Time, rules ipc.Retention, cps []Item, left func(drop []ipc.CheckpointID) (int64, error)) (drop []ipc.CheckpointID, over int64, err error) {
	p := newPlan(now, cps)
	p.keepNewest()
	p.keepLast(max(1, rules.KeepLast), Asked)
	p.keepDaily(rules.DailyDays)
	p.keepLast(rules.KeepTurns, Turn)
	p.keepLast(rules.KeepTurns, Inferred)
	p.keepLast(rules.KeepSafety, Safety)
	p.keepLast(rules.KeepSafety, CalledOff)
	if rules.MaxBytes > 0 {
		if over, err = p.shrink(rules.MaxBytes, left); err != nil {
			return nil, 0, err
		}
	}
	return p.drop(), over, nil
}

// plan is the decision as it is made: keep goes with items, newest first.
type plan struct {
	now   time.Time
	items []Item
	keep  []bool
}

func newPlan(now time.Time, cps []Item) *plan {
	p := &plan{now: now, items: slices.Clone(cps), keep: make([]bool, len(cps))}
	for i, it := range p.items {
		p.keep[i] = it.Pinned || it.Protected
	}
	return p
}

// counts reports whether the rules that count look at item i: its time is not over.
func (p *plan) counts(i int) bool {
	it := p.items[i]
	return p.keep[i] || it.ExpiresAt == nil || it.ExpiresAt.After(p.now)
}

// newest is the index of the newest that counts, or -1.
func (p *plan) newest() int {
	for i := range p.items {
		if p.counts(i) {
			return i
		}
	}
	return -1
}

func (p *plan) keepNewest() {
	if i := p.newest(); i >= 0 {
		p.keep[i] = true
	}
}

func (p *plan) keepLast(n int, kind Kind) {
	for i, it := range p.items {
		if n <= 0 {
			return
		}
		if it.Kind == kind && p.counts(i) {
			p.keep[i] = true
			n--
		}
	}
}

func (p *plan) keepDaily(days int) {
	if days <= 0 {
		return
	}
	today := day(p.now)
	oldest := map[int64]int{} // of each day; later indices are older
	for i, it := range p.items {
		d := day(it.CreatedAt)
		if it.Kind == Asked && p.counts(i) && d <= today && today-d < int64(days) {
			oldest[d] = i
		}
	}
	for _, i := range oldest {
		p.keep[i] = true
	}
}

// day numbers the days of UTC.
func day(t time.Time) int64 {
	const seconds = 24 * 60 * 60
	u := t.Unix()
	if u < 0 {
		u -= seconds - 1 // round down, before 1970 too
	}
	return u / seconds
}

// drop lists what is not kept, oldest first.
func (p *plan) drop() []ipc.CheckpointID {
	var ids []ipc.CheckpointID
	for i := len(p.items) - 1; i >= 0; i-- {
		if !p.keep[i] {
			ids = append(ids, p.items[i].ID)
		}
	}
	return ids
}

// shrink drops automatic checkpoints until the others fit, and says by how much they
// don't.
func (p *plan) shrink(limit int64, left func(drop []ipc.CheckpointID) (int64, error)) (over int64, err error) {
	total, err := left(p.drop())
	if err != nil || total <= limit {
		return 0, err
	}
	var gone []int
	for _, i := range p.spare() {
		p.keep[i] = false
		gone = append(gone, i)
		if total, err = left(p.drop()); err != nil {
			return 0, err
		}
		if total <= limit {
			break
		}
	}
	// A large one may have gone after small ones that did not have to.
	for _, i := range slices.Backward(gone) {
		p.keep[i] = true
		with, err := left(p.drop())
		if err != nil {
			return 0, err
		}
		if with > max(total, limit) {
			p.keep[i] = false
		}
	}
	return max(0, total-limit), nil
}

// spare lists what may go for its size, in that order.
func (p *plan) spare() (list []int) {
	newest := p.newest()
	for _, safety := range []bool{true, false} {
		for i := len(p.items) - 1; i > newest; i-- {
			it := p.items[i]
			if p.keep[i] && !it.Pinned && !it.Protected && it.Kind != Asked && (it.Kind >= Safety) == safety {
				list = append(list, i)
			}
		}
	}
	return list
}

// Package retention decides which checkpoints go. It is rules only: it looks at
// no clock and touches nothing, so what it says can be shown before it is done.
package retention

import (
	"slices"
	"time"

	"mulligan/ipc"
)

// Item is what the rules need to know of a checkpoint.
type Item struct {
	ID        ipc.CheckpointID
	CreatedAt time.Time
	Trigger   ipc.Trigger
	Turn      bool // an automatic checkpoint of a turn
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
//   - the newest of all stays;
//   - the keep_last newest stay, regardless of age, and the oldest of each of
//     the last daily_days days (of UTC, today being one of them); pinned ones
//     count among them; automatic checkpoints of turns do not;
//   - of the automatic checkpoints of turns, the keep_turns newest stay;
//   - while what is left exceeds max_bytes, the oldest of it goes, but never
//     the newest of all.
//
// left says how many bytes the others occupy once drop is gone; checkpoints
// share contents, so sizes don't add up. It is called only where max_bytes is
// set, and its error ends the planning. ExpireAfter is not looked at: it sets
// ExpiresAt when a checkpoint is made.
func Plan(now time.Time, rules ipc.Retention, cps []Item, left func(drop []ipc.CheckpointID) (int64, error)) ([]ipc.CheckpointID, error) {
	p := newPlan(now, cps)
	p.keepNewest()
	p.keepLast(rules.KeepLast, false)
	p.keepDaily(rules.DailyDays)
	p.keepLast(rules.KeepTurns, true)
	if rules.MaxBytes > 0 {
		if err := p.shrink(rules.MaxBytes, left); err != nil {
			return nil, err
		}
	}
	return p.drop(), nil
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

func (p *plan) keepLast(n int, turn bool) {
	for i, it := range p.items {
		if n <= 0 {
			return
		}
		if it.Turn == turn && p.counts(i) {
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
		if !it.Turn && p.counts(i) && d <= today && today-d < int64(days) {
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

func (p *plan) shrink(limit int64, left func(drop []ipc.CheckpointID) (int64, error)) error {
	newest := p.newest()
	for i := len(p.items) - 1; ; i-- {
		total, err := left(p.drop())
		if err != nil || total <= limit {
			return err
		}
		for i > newest && (!p.keep[i] || p.items[i].Pinned || p.items[i].Protected) {
			i--
		}
		if i <= newest {
			return nil
		}
		p.keep[i] = false
	}
}

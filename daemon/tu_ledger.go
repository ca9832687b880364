package daemon

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// stint is a stretch of the journal in which one call ran; of a turn that told of
// no calls, the whole turn.
type stint struct {
	turn     store.Turn
	call     store.Call // its ID is "" for a whole turn
	from, to snap.Mark
	// loose: that something was written in it says little, as nobody said when the
	// call ended, or there was none.
	loose bool
}

// delegates are tools whose calls do nothing but have others made.
var delegates = []string{"task", "agent", "subagent", "delegate"}

func (s *stint) delegates() bool { return slices.Contains(delegates, strings.ToLower(s.call.Tool)) }

// within reports whether s ran within the call of o, which delegates.
func (s *stint) within(o *stint) bool {
	return s != o && o.delegates() && s.turn.ID == o.turn.ID && s.call.EndedAt != nil && !s.call.StartedAt.Before(o.call.StartedAt) &&
		(o.call.EndedAt == nil || !s.call.EndedAt.After(*o.call.EndedAt))
}

// stints are those of a turn, oldest first; now is the journal's end.
func (d *turnService) stints(ctx context.Context, turn store.Turn, now snap.Mark) ([]*stint, error) {
	calls, err := d.store.Calls(ctx, turn.Seq)
	if err != nil {
		return nil, err
	}
	end := turn.End
	if turn.EndedAt == nil {
		end = now
	}
	if len(calls) == 0 && turn.Start != "" && end != "" {
		return []*stint{{turn: turn, from: turn.Start, to: end, loose: true}}, nil
	}
	var list []*stint
	for i, c := range calls {
		s := &stint{turn: turn, call: c, from: c.Start, to: c.End, loose: c.Untold}
		if s.from == "" { // the files were not followed yet
			s.from = turn.Start
		}
		if c.EndedAt == nil {
			s.loose, s.to = true, endOfOpen(calls[i+1:], end)
		}
		if s.from != "" && s.to != "" {
			list = append(list, s)
		}
	}
	return list, nil
}

// endOfOpen is where a call ends that nobody said the end of: where the next one
// begins, or else with the turn. A tool that was denied, or failed, ends so.
func endOfOpen(later []store.Call, turn snap.Mark) snap.Mark {
	for _, c := range later {
		if c.Start != "" {
			return c.Start
		}
	}
	return turn
}

// place is where a write stands in the journal.
type place struct {
	path string
	at   snap.Mark
}

// ledger says which calls made which writes.
type ledger struct {
	j      snap.Journal
	owners map[place][]*stint
	ours   map[place]bool // mulligan's own
}

// ledgerOf reads who wrote what in the stints. Those that the journal does not reach
// any more are left out, unless they are needed.
func (d *turnService) ledgerOf(ctx context.Context, t *tracker, stints []*stint, needed map[*stint]bool) (*ledger, error) {
	l := &ledger{j: t.j, owners: map[place][]*stint{}, ours: map[place]bool{}}
	own, err := d.store.OwnWrites(ctx, t.a.Rec().ID)
	if err != nil {
		return nil, err
	}
	for _, o := range own {
		if o.End == "" {
			continue // it is being written now
		}
		writes, err := t.j.Writes(ctx, o.Start, o.End)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return nil, err
		}
		for _, w := range writes {
			l.ours[place{w.Path, w.At}] = true
		}
	}
	for _, s := range stints {
		if err := l.add(ctx, s, needed[s]); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *ledger) add(ctx context.Context, s *stint, needed bool) error {
	writes, err := l.j.Writes(ctx, s.from, s.to)
	if errs.KindOf(err) == errs.NotFound && err != nil {
		if !needed {
			return nil
		}
		return errs.New(errs.Expired, "", "what turn %.64q wrote is no longer recorded", string(s.turn.ID)).
			WithHint("mulligan list shows the checkpoints that you can go back to")
	}
	if err != nil {
		return err
	}
	for _, w := range writes {
		p := place{w.Path, w.At}
		if !l.ours[p] {
			l.owners[p] = append(l.owners[p], s)
		}
	}
	return nil
}

// of lists who may have made the write: one, if that can be told.
func (l *ledger) of(w snap.Write) []*stint {
	all := l.owners[place{w.Path, w.At}]
	if len(all) < 2 {
		return all
	}
	told := slices.DeleteFunc(slices.Clone(all), func(s *stint) bool { return s.loose })
	if len(told) == 0 {
		told = all
	}
	return slices.DeleteFunc(slices.Clone(told), func(o *stint) bool {
		return slices.ContainsFunc(told, func(s *stint) bool { return s.within(o) })
	})
}

// since lists all writes from the earliest of the stints on, oldest first.
func (l *ledger) since(ctx context.Context, stints []*stint, now snap.Mark) ([]snap.Write, error) {
	var longest []snap.Write
	seen := map[snap.Mark]bool{}
	for _, s := range stints {
		if seen[s.from] {
			continue
		}
		seen[s.from] = true
		writes, err := l.j.Writes(ctx, s.from, now)
		if err != nil {
			return nil, err
		}
		if len(writes) > len(longest) {
			longest = writes
		}
	}
	return longest, nil
}

// callIDs are the calls of stints, each once, as far as they have one.
func callIDs(stints []*stint) []ipc.CallID {
	ids := []ipc.CallID{}
	for _, s := range stints {
		if s.call.ID != "" && !slices.Contains(ids, s.call.ID) {
			ids = append(ids, s.call.ID)
		}
	}
	return ids
}

// flushLong bounds how long an operation waits for the journal to be current.
const flushLong = 30 * time.Second

// name is the stint's for people.
func (s *stint) name() string {
	if s.call.ID == "" {
		return "turn " + string(s.turn.ID)
	}
	return "call " + string(s.call.ID)
}

// few names the first paths of a list.
func few(paths []string) string {
	if len(paths) == 1 {
		return fmt.Sprintf("%q", paths[0])
	}
	return fmt.Sprintf("%q and %d more", paths[0], len(paths)-1)
}

// attributed are the places of all writes that somebody may have made.
func (l *ledger) attributed() iter.Seq[place] { return maps.Keys(l.owners) }

// nobodys reports whether neither a turn nor mulligan itself may have made the write.
func (l *ledger) nobodys(w snap.Write) bool {
	p := place{w.Path, w.At}
	return !l.ours[p] && len(l.owners[p]) == 0
}

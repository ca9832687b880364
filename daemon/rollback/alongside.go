package rollback

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Several agents may work in one workspace at once. A rollback that one of them, or a
// person for it, asks for would take the others' work along; so it says so first.

// alone refuses a rollback that would undo what another session's turn wrote beside
// the one that it is about, unless it is forced. A dry run warns of it.
func (r *rollback) alone(ctx context.Context) error {
	t := turns.TrackerOf(r.a)
	if t == nil || r.req.Force || !slices.ContainsFunc(r.parts, func(p part) bool { return p.Name == snap.Files }) {
		return nil
	}
	others, err := r.alongside(ctx, t)
	if err != nil { // what is in the way of telling must not be in the way of a rollback
		r.warnings.add("mulligan could not find out whether this also undoes another session's work: %v", err)
	}
	if len(others) == 0 {
		return nil
	}
	what := others[0].words()
	if n := len(others) - 1; n > 0 {
		what += fmt.Sprintf(", and %d more", n)
	}
	if r.req.DryRun {
		r.warnings.add("it would also undo %s", what)
		return nil
	}
	return errs.New(errs.Conflict, "", "it would also undo %s", what).
		WithHint("mulligan revert --conversation ID undoes the writes of one session only; mulligan rollback %s --force undoes the others' too", r.target.ID)
}

// neighbour is another session's turn, and the paths that it wrote to.
type neighbour struct {
	turn  store.Turn
	paths map[string]bool
}

func (n *neighbour) words() string {
	agent := ""
	if n.turn.Agent != "" {
		agent = " of " + n.turn.Agent
	}
	return fmt.Sprintf("turn %s%s in session %s, which wrote %s", n.turn.ID, agent, n.turn.ConversationID, turns.Few(slices.Sorted(maps.Keys(n.paths))))
}

// alongside lists the other sessions' turns that wrote since the target was the
// present: those that are open, and those at the same time as one of the session's own.
func (r *rollback) alongside(ctx context.Context, t *turns.Tracker) ([]*neighbour, error) {
	turns, err := r.turnsSince(ctx)
	if err != nil {
		return nil, err
	}
	own := r.session(ctx)
	if !slices.ContainsFunc(turns, func(o store.Turn) bool { return o.ConversationID != cmp.Or(own, turns[0].ConversationID) }) {
		return nil, nil // there is one session only
	}
	list, err := r.neighbours(ctx, t, turns, own)
	return slices.DeleteFunc(list, func(n *neighbour) bool { return !besides(n.turn, turns, own) }), err
}

// session is the conversation that the rollback is for, as far as that is known.
func (r *rollback) session(ctx context.Context) string {
	if r.req.ConversationID != "" {
		return r.req.ConversationID
	}
	if r.req.CallID != "" {
		if turn, _, err := r.d.store.Call(ctx, r.a.Rec().ID, r.req.CallID); err == nil {
			return turn.ConversationID
		}
	}
	if c := r.target.ConversationID; c != nil {
		return *c
	}
	return ""
}

// turnsSince are the turns of sessions that were open at some time since the target.
func (r *rollback) turnsSince(ctx context.Context) ([]store.Turn, error) {
	since := r.target.CreatedAt
	if id := r.target.TurnID; id != nil {
		if turn, err := r.d.store.Turn(ctx, r.a.Rec().ID, ipc.TurnID(*id)); err == nil {
			since = turn.StartedAt
		}
	}
	turns, err := r.d.store.Turns(ctx, r.a.Rec().ID, 0)
	return slices.DeleteFunc(turns, func(t store.Turn) bool {
		return t.ConversationID == "" || t.EndedAt != nil && !t.EndedAt.After(since)
	}), err
}

// besides reports whether the turn is open, or was open at the same time as one of
// the own session's; where that is not known, as one of any other.
func besides(n store.Turn, turns []store.Turn, own string) bool {
	if n.EndedAt == nil && own != "" {
		return true
	}
	return slices.ContainsFunc(turns, func(o store.Turn) bool {
		return o.ConversationID != n.ConversationID && (own == "" || o.ConversationID == own) && overlap(n, o)
	})
}

func overlap(a, b store.Turn) bool {
	until := func(t store.Turn) time.Time {
		if t.EndedAt == nil {
			return time.Unix(1<<40, 0)
		}
		return *t.EndedAt
	}
	return a.StartedAt.Before(until(b)) && b.StartedAt.Before(until(a))
}

// neighbours are the turns of other sessions with what they alone wrote since the
// target, within the rollback's scope.
func (r *rollback) neighbours(ctx context.Context, t *turns.Tracker, all []store.Turn, own string) ([]*neighbour, error) {
	short, cancel := context.WithTimeout(ctx, turns.FlushLong)
	defer cancel()
	now, err := t.Flush(short)
	if err != nil {
		return nil, err
	}
	var stints []*turns.WriteRange
	for _, turn := range all {
		list, err := r.d.turns.WriteRanges(ctx, turn, now)
		if err != nil {
			return nil, err
		}
		stints = append(stints, list...)
	}
	l, err := r.d.turns.Attribute(ctx, t, stints, nil)
	if err != nil {
		return nil, err
	}
	since, err := r.undone(ctx, t, now)
	if err != nil {
		return nil, err
	}
	return others(l, own, since), nil
}

// others are the turns that wrote what is in since, and that own may not have written.
func others(l *turns.Attribution, own string, since func(turns.WriteID) bool) []*neighbour {
	found := map[ipc.TurnID]*neighbour{}
	for p := range l.Attributed() {
		by := l.Of(snap.Write{Path: p.Path, At: p.At})
		if !since(p) || own != "" && slices.ContainsFunc(by, func(s *turns.WriteRange) bool { return s.Turn.ConversationID == own }) {
			continue
		}
		for _, s := range by {
			if found[s.Turn.ID] == nil {
				found[s.Turn.ID] = &neighbour{s.Turn, map[string]bool{}}
			}
			found[s.Turn.ID].paths[p.Path] = true
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *neighbour) int { return int(b.turn.Seq - a.turn.Seq) })
}

// undone tells which writes the rollback would undo: those in its scope, since the target.
func (r *rollback) undone(ctx context.Context, t *turns.Tracker, now snap.Mark) (func(turns.WriteID) bool, error) {
	late := map[turns.WriteID]bool{}
	writes, err := r.lateWrites(ctx, t, now)
	for _, w := range writes {
		late[turns.WriteID{Path: w.Path, At: w.At}] = true
	}
	return func(p turns.WriteID) bool { return late[p] && inScope(r.scope, p.Path) }, err
}

// lateWrites lists the writes since the target.
func (r *rollback) lateWrites(ctx context.Context, t *turns.Tracker, now snap.Mark) ([]snap.Write, error) {
	s, _ := r.target.Snapshot(snap.Files)
	if s.Position != "" {
		writes, err := t.Journal().Writes(ctx, snap.Mark(s.Position), now)
		if err == nil || errs.KindOf(err) != errs.NotFound {
			return writes, err
		}
	}
	return r.later(ctx, t, now)
}

// later lists the writes that were seen after the target was made.
func (r *rollback) later(ctx context.Context, t *turns.Tracker, now snap.Mark) ([]snap.Write, error) {
	turns, err := r.turnsSince(ctx)
	if err != nil {
		return nil, err
	}
	var all []snap.Write
	for _, turn := range turns {
		if turn.Start == "" {
			continue
		}
		writes, err := t.Journal().Writes(ctx, turn.Start, now)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return nil, err
		}
		for _, w := range writes {
			if w.Seen.After(r.target.CreatedAt) {
				all = append(all, w)
			}
		}
	}
	return all, nil
}

func inScope(scope []string, path string) bool {
	return len(scope) == 0 || slices.ContainsFunc(scope, func(s string) bool {
		s = strings.Trim(strings.TrimPrefix(s, "./"), "/")
		return s == "." || s == "" || path == s || strings.HasPrefix(path, s+"/")
	})
}

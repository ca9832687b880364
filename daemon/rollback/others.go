package rollback

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// others finds the writes that a rollback would undo although it is not about them: those of other
// agents' sessions, and those that no announced turn made. Several agents may work in one workspace
// at once, and a person beside them, so a rollback that would take their work along is refused unless
// the caller insists.
type others struct {
	d        *Service
	a        *app.App
	tracker  *turns.Tracker // nil if the app's writes are not recorded
	req      ipc.RollbackRequest
	target   store.Checkpoint
	paths    []string // the scope, when it is some of the files
	undoes   int      // how many turns an undo goes back over; 0 for a rollback or a redo
	hasFiles bool     // the files take part
	warnings *warnings
	// discarded has the paths of the files that mulligan deleted for good, for this rollback.
	discarded map[string]bool
}

// spareSessions refuses a rollback that would undo what another session's turn wrote at the same time
// as the session that the rollback is about, unless the rollback is forced. A dry run warns instead.
func (o *others) spareSessions(ctx context.Context) error {
	what := o.sessionsTurns(ctx)
	if what == "" {
		return nil
	}
	if o.req.DryRun {
		o.warnings.add("it would also undo %s", what)
		return nil
	}
	return errs.New(errs.Conflict, "", "it would also undo %s", what).
		WithHint("`mulligan revert --conversation ID` undoes the writes of one session only; `mulligan rollback %s --force` undoes the others' too", o.target.ID)
}

// sessionsTurns names the other sessions' turns that wrote at the same time what the rollback would undo; "" if there are none, or if it is forced.
func (o *others) sessionsTurns(ctx context.Context) string {
	if o.tracker == nil || o.req.Force || !o.hasFiles {
		return ""
	}
	found, err := o.alongside(ctx)
	if err != nil { // no reason to refuse the rollback
		o.warnings.add("mulligan could not find out whether this also undoes another session's work: %v", err)
	}
	if len(found) == 0 {
		return ""
	}
	what := found[0].words()
	if n := len(found) - 1; n > 0 {
		what += fmt.Sprintf(", and %d more", n)
	}
	return what
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

// alongside lists the other sessions' turns that wrote since the target was made: those that are
// open, and those at the same time as one of the session's own.
func (o *others) alongside(ctx context.Context) ([]*neighbour, error) {
	turns, err := o.turnsSince(ctx)
	if err != nil {
		return nil, err
	}
	own := o.session(ctx)
	if !slices.ContainsFunc(turns, func(t store.Turn) bool { return t.ConversationID != cmp.Or(own, turns[0].ConversationID) }) {
		return nil, nil // there is one session only
	}
	list, err := o.neighbours(ctx, turns, own)
	return slices.DeleteFunc(list, func(n *neighbour) bool { return !atOnce(n.turn, turns, own) }), err
}

// session returns the conversation that the rollback is for, or "" if that is unknown.
func (o *others) session(ctx context.Context) string {
	if o.req.ConversationID != "" {
		return o.req.ConversationID
	}
	if o.req.CallID != "" {
		if turn, _, err := o.d.store.Call(ctx, o.a.Rec().ID, o.req.CallID); err == nil {
			return turn.ConversationID
		}
	}
	if c := o.target.ConversationID; c != nil {
		return *c
	}
	return ""
}

// turnsSince returns the turns of sessions that were open at some time since the target.
func (o *others) turnsSince(ctx context.Context) ([]store.Turn, error) {
	since := o.target.CreatedAt
	if id := o.target.TurnID; id != nil {
		if turn, err := o.d.store.Turn(ctx, o.a.Rec().ID, ipc.TurnID(*id)); err == nil {
			since = turn.StartedAt
		}
	}
	turns, err := o.d.store.Turns(ctx, o.a.Rec().ID, 0)
	return slices.DeleteFunc(turns, func(t store.Turn) bool {
		return t.ConversationID == "" || t.EndedAt != nil && !t.EndedAt.After(since)
	}), err
}

// atOnce reports whether turn n is open, or was open at the same time as a turn of the session own.
// If own is "", a turn of any other session counts.
func atOnce(n store.Turn, turns []store.Turn, own string) bool {
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

// neighbours returns the turns of other sessions with what they alone wrote since the target, within
// the rollback's scope.
func (o *others) neighbours(ctx context.Context, all []store.Turn, own string) ([]*neighbour, error) {
	short, cancel := context.WithTimeout(ctx, turns.FlushLong)
	defer cancel()
	now, err := o.tracker.Flush(short)
	if err != nil {
		return nil, err
	}
	var ranges []*turns.WriteRange
	for _, turn := range all {
		list, err := o.d.turns.WriteRanges(ctx, turn, now)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, list...)
	}
	l, err := o.d.turns.Attribute(ctx, o.tracker, ranges, nil)
	if err != nil {
		return nil, err
	}
	since, err := o.undone(ctx, now)
	if err != nil {
		return nil, err
	}
	return writersOf(l, own, since), nil
}

// writersOf returns the turns that made the writes for which since is true, but for writes that the
// session own may have made. A write during a call is not that of a turn without calls.
func writersOf(l *turns.Attribution, own string, since func(turns.WriteID) bool) []*neighbour {
	found := map[ipc.TurnID]*neighbour{}
	for p := range l.Attributed() {
		by := l.Of(snap.Write{Path: p.Path, At: p.At})
		if calls := slices.DeleteFunc(slices.Clone(by), func(s *turns.WriteRange) bool { return s.Call.ID == "" }); len(calls) > 0 {
			by = calls
		}
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

// undone returns a function that reports whether the rollback would undo a write: it is in scope, was made since the target, and is not of a
// file that was deleted for good.
func (o *others) undone(ctx context.Context, now snap.Mark) (func(turns.WriteID) bool, error) {
	late := map[turns.WriteID]bool{}
	writes, err := o.lateWrites(ctx, now)
	for _, w := range writes {
		late[turns.WriteID{Path: w.Path, At: w.At}] = true
	}
	return func(p turns.WriteID) bool { return late[p] && inScope(o.paths, p.Path) && !o.discarded[p.Path] }, err
}

// lateWrites lists the writes since the target, by the target's mark if the journal still has it.
func (o *others) lateWrites(ctx context.Context, now snap.Mark) ([]snap.Write, error) {
	s, _ := o.target.Snapshot(snap.Files)
	if s.Position != "" {
		writes, err := o.tracker.Journal().Writes(ctx, snap.Mark(s.Position), now)
		if err == nil || errs.KindOf(err) != errs.NotFound {
			return writes, err
		}
	}
	return o.later(ctx, now)
}

// later lists the writes that the journal saw after the time at which the target was made.
func (o *others) later(ctx context.Context, now snap.Mark) ([]snap.Write, error) {
	turns, err := o.turnsSince(ctx)
	if err != nil {
		return nil, err
	}
	var all []snap.Write
	for _, turn := range turns {
		if turn.Start == "" {
			continue
		}
		writes, err := o.tracker.Journal().Writes(ctx, turn.Start, now)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return nil, err
		}
		for _, w := range writes {
			if w.Seen.After(o.target.CreatedAt) {
				all = append(all, w)
			}
		}
	}
	return all, nil
}

// spareUnannounced refuses an undo that would take along what was written in between outside of all
// announced turns, unless the request includes it. A dry run warns instead.
func (o *others) spareUnannounced(ctx context.Context) error {
	if o.tracker == nil || o.undoes == 0 || !o.hasFiles {
		return nil
	}
	paths, err := o.unannounced(ctx)
	if err != nil {
		o.warnings.add("mulligan could not find out what was written in between without an agent: %v", err)
		return nil
	}
	if len(paths) == 0 {
		return nil
	}
	what := "what was written in between without an agent: " + turns.Few(paths)
	switch {
	case o.req.IncludeOthers:
		o.warnings.add("it also undoes %s", what)
	case o.req.DryRun:
		o.warnings.add("it would also undo %s; only --include-others does that", what)
	default:
		return errs.New(errs.Conflict, "", "it would also undo %s", what).
			WithHint("`mulligan undo --dry-run` shows what; `mulligan undo --include-others` undoes it too; `mulligan revert` undoes an agent's writes alone")
	}
	return nil
}

// unannounced lists the paths in scope that were written since the target outside of
// all announced turns, and not by mulligan.
func (o *others) unannounced(ctx context.Context) ([]string, error) {
	short, cancel := context.WithTimeout(ctx, turns.FlushLong)
	defer cancel()
	now, err := o.tracker.Flush(short)
	if err != nil {
		return nil, err
	}
	all, err := o.d.store.Turns(ctx, o.a.Rec().ID, 0)
	if err != nil {
		return nil, err
	}
	var ranges []*turns.WriteRange
	for _, turn := range all {
		if end := turn.EndBy(now); !turn.Inferred && turn.Start != "" && end != "" {
			ranges = append(ranges, &turns.WriteRange{Turn: turn, From: turn.Start, To: end})
		}
	}
	l, err := o.d.turns.Attribute(ctx, o.tracker, ranges, nil)
	if err != nil {
		return nil, err
	}
	late, err := o.lateWrites(ctx, now)
	var paths []string
	for _, w := range late {
		if l.Nobodys(w) && inScope(o.paths, w.Path) && !o.discarded[w.Path] && !slices.Contains(paths, w.Path) {
			paths = append(paths, w.Path)
		}
	}
	return withoutRefresh(paths), err
}

// withoutRefresh removes git's index from paths if nothing else of the repository is in them: git
// status writes the index too.
func withoutRefresh(paths []string) []string {
	other := func(p string) bool { return strings.HasPrefix(p, ".git/") && !isIndex(p) }
	if slices.ContainsFunc(paths, other) {
		return paths
	}
	return slices.DeleteFunc(paths, isIndex)
}

func isIndex(p string) bool { return p == ".git/index" || p == ".git/index.lock" || p == ".git" }

// inScope reports whether path is one of scope's paths or below one. An empty scope is everything.
func inScope(scope []string, path string) bool {
	return len(scope) == 0 || slices.ContainsFunc(scope, func(s string) bool {
		s = strings.Trim(strings.TrimPrefix(s, "./"), "/")
		return s == "." || s == "" || path == s || strings.HasPrefix(path, s+"/")
	})
}

package turns

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

// WriteRange is the part of the journal in which one call ran, or one whole turn that announced no
// calls, but for those of mulligan's own tools.
type WriteRange struct {
	Turn     store.Turn
	Call     store.Call // the zero Call for a whole turn
	From, To snap.Mark
	// Loose: a write in this range is only weak evidence, because the end of the call is not
	// known, or there was no call.
	Loose bool
}

// ownTools are how the names of mulligan's own tools begin: with Claude Code and Codex, with Gemini CLI, and with OpenCode and Goose.
var ownTools = []string{"mcp__mulligan__", "mcp_mulligan_", "mulligan_"}

// own reports whether a call is of one of mulligan's own tools. It is recorded so that the daemon knows which session asks, and is no work of the
// agent: what is written meanwhile is mulligan's writing, or another's.
func own(c store.Call) bool {
	return slices.ContainsFunc(ownTools, func(begin string) bool { return strings.HasPrefix(c.Tool, begin) })
}

// delegates are tools that only start other calls.
var delegates = []string{"task", "agent", "subagent", "delegate"}

func (s *WriteRange) delegates() bool {
	return slices.Contains(delegates, strings.ToLower(s.Call.Tool))
}

// Within reports whether s ran inside the call of o, whose tool delegates.
func (s *WriteRange) Within(o *WriteRange) bool {
	return s != o && o.delegates() && s.Turn.ID == o.Turn.ID && s.Call.EndedAt != nil && !s.Call.StartedAt.Before(o.Call.StartedAt) &&
		(o.Call.EndedAt == nil || !s.Call.EndedAt.After(*o.Call.EndedAt))
}

// WriteRanges returns the write ranges of a turn, oldest first. now is the journal's end.
func (svc *Service) WriteRanges(ctx context.Context, turn store.Turn, now snap.Mark) ([]*WriteRange, error) {
	calls, err := svc.store.Calls(ctx, turn.Seq)
	if err != nil {
		return nil, err
	}
	calls = slices.DeleteFunc(calls, own)
	end := turn.EndBy(now)
	if len(calls) == 0 && turn.Start != "" && end != "" {
		return []*WriteRange{{Turn: turn, From: turn.Start, To: end, Loose: true}}, nil
	}
	var list []*WriteRange
	for i, c := range calls {
		s := &WriteRange{Turn: turn, Call: c, From: c.Start, To: c.End, Loose: c.Untold}
		if s.From == "" { // the files were not followed yet
			s.From = turn.Start
		}
		if c.EndedAt == nil {
			s.Loose, s.To = true, endOfOpen(calls[i+1:], end)
		}
		if s.From != "" && s.To != "" {
			list = append(list, s)
		}
	}
	return list, nil
}

// endOfOpen returns the end of a call whose end was not announced, for example because its tool
// was denied or failed: the start of the next call, or the end of the turn.
func endOfOpen(later []store.Call, turn snap.Mark) snap.Mark {
	for _, c := range later {
		if c.Start != "" {
			return c.Start
		}
	}
	return turn
}

// WriteID is the position of a write in the journal.
type WriteID struct {
	Path string
	At   snap.Mark
}

// Attribution maps writes to the calls that made them.
type Attribution struct {
	j      snap.Journal
	owners map[WriteID][]*WriteRange
	ours   map[WriteID]bool // writes of mulligan itself
}

// Attribute reads the writes in the ranges. A range that the journal no longer covers is left out;
// if it is in needed, Attribute fails instead.
func (svc *Service) Attribute(ctx context.Context, t *Tracker, ranges []*WriteRange, needed map[*WriteRange]bool) (*Attribution, error) {
	l := &Attribution{j: t.j, owners: map[WriteID][]*WriteRange{}, ours: map[WriteID]bool{}}
	own, err := svc.store.OwnWrites(ctx, t.a.Rec().ID)
	if err != nil {
		return nil, err
	}
	for _, o := range own {
		if o.End == "" {
			continue // the range is empty so far
		}
		writes, err := t.j.Writes(ctx, o.Start, o.End)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return nil, err
		}
		for _, w := range writes {
			l.ours[WriteID{w.Path, w.At}] = true
		}
	}
	for _, s := range ranges {
		if err := l.add(ctx, s, needed[s]); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *Attribution) add(ctx context.Context, s *WriteRange, needed bool) error {
	writes, err := l.j.Writes(ctx, s.From, s.To)
	if errs.KindOf(err) == errs.NotFound && err != nil {
		if !needed {
			return nil
		}
		return errs.New(errs.Expired, "", "the journal no longer covers turn %.64q, so its writes are not known", string(s.Turn.ID)).
			WithHint("`mulligan list` shows the checkpoints that you can go back to")
	}
	if err != nil {
		return err
	}
	for _, w := range writes {
		p := WriteID{w.Path, w.At}
		if !l.ours[p] {
			l.owners[p] = append(l.owners[p], s)
		}
	}
	return nil
}

// Of returns the ranges that may have made the write: exactly one if that is certain.
func (l *Attribution) Of(w snap.Write) []*WriteRange {
	all := l.owners[WriteID{w.Path, w.At}]
	if len(all) < 2 {
		return all
	}
	told := slices.DeleteFunc(slices.Clone(all), func(s *WriteRange) bool { return s.Loose })
	if len(told) == 0 {
		told = all
	}
	return slices.DeleteFunc(slices.Clone(told), func(o *WriteRange) bool {
		return slices.ContainsFunc(told, func(s *WriteRange) bool { return s.Within(o) })
	})
}

// Since returns all writes from the earliest of the ranges on, oldest first.
func (l *Attribution) Since(ctx context.Context, ranges []*WriteRange, now snap.Mark) ([]snap.Write, error) {
	var longest []snap.Write
	seen := map[snap.Mark]bool{}
	for _, s := range ranges {
		if seen[s.From] {
			continue
		}
		seen[s.From] = true
		writes, err := l.j.Writes(ctx, s.From, now)
		if err != nil {
			return nil, err
		}
		if len(writes) > len(longest) {
			longest = writes
		}
	}
	return longest, nil
}

// CallIDs returns the ids of the ranges' calls, without duplicates.
func CallIDs(ranges []*WriteRange) []ipc.CallID {
	ids := []ipc.CallID{}
	for _, s := range ranges {
		if s.Call.ID != "" && !slices.Contains(ids, s.Call.ID) {
			ids = append(ids, s.Call.ID)
		}
	}
	return ids
}

// FlushLong bounds how long an operation waits until the journal is current.
const FlushLong = 30 * time.Second

// Name returns the range's name for messages.
func (s *WriteRange) Name() string {
	if s.Call.ID == "" {
		return "turn " + string(s.Turn.ID)
	}
	return "call " + string(s.Call.ID)
}

// Few returns the first path, and how many more there are.
func Few(paths []string) string {
	if len(paths) == 1 {
		return fmt.Sprintf("%q", paths[0])
	}
	return fmt.Sprintf("%q and %d more", paths[0], len(paths)-1)
}

// Attributed returns the positions of all writes that some range may have made.
func (l *Attribution) Attributed() iter.Seq[WriteID] { return maps.Keys(l.owners) }

// Nobodys reports whether neither a turn nor mulligan can have made the write.
func (l *Attribution) Nobodys(w snap.Write) bool {
	p := WriteID{w.Path, w.At}
	return !l.ours[p] && len(l.owners[p]) == 0
}

// Package naming is how people and models name a checkpoint: by its id or the beginning of it, by N for the N-th newest, by a time,
// or by words of the turn's title or of the notes.
package naming

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

const op = "find checkpoint"

// Lister lists checkpoints. *ipc.Client implements it.
type Lister interface {
	Checkpoints(ctx context.Context, app string, query ipc.CheckpointQuery) (ipc.CheckpointList, error)
}

// Checkpoint returns the checkpoint of an app that name means. Checkpoints of rollbacks that were called off have no number, and no
// time means them. The error is of kind errs.NotFound if there is none, and of kind errs.Invalid if name means several, or cannot
// be a name.
func Checkpoint(ctx context.Context, l Lister, app, name string) (ipc.CheckpointID, error) {
	name = strings.TrimSpace(name)
	if name == "" {
		return "", errs.New(errs.Invalid, op, "an empty text names no checkpoint")
	}
	list, err := l.Checkpoints(ctx, app, ipc.CheckpointQuery{})
	if err != nil {
		return "", err
	}
	when, isTime := strings.CutPrefix(name, "@")
	switch {
	case isTime:
		return newestAt(list.Checkpoints, strings.TrimSuffix(strings.TrimPrefix(when, "{"), "}"), time.Now())
	case strings.Trim(name, "0123456789") == "":
		return nthNewest(list.Checkpoints, name)
	case strings.HasPrefix(name, "cp-"):
		id, err := byPrefix(list.Checkpoints, name)
		if errs.KindOf(err) != errs.NotFound {
			return id, err
		}
		if gone, e := byPrefix(list.RemoteOnly, name); e == nil {
			return "", errs.New(errs.NotFound, op, "checkpoint %s is on a remote alone", gone).
				WithHint("bring it here first: `mulligan fetch %s --identity FILE`", gone)
		}
		return id, err
	}
	return byWords(list.Checkpoints, name)
}

// nthNewest returns the N-th newest checkpoint, for N in digits.
func nthNewest(newestFirst []ipc.Checkpoint, digits string) (ipc.CheckpointID, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 {
		return "", errs.New(errs.Invalid, op, "%q is no checkpoint: 1 is the newest", digits)
	}
	have := 0
	for _, cp := range newestFirst {
		if cp.CalledOff { // its rollback changed nothing
			continue
		}
		if have++; have == n {
			return cp.ID, nil
		}
	}
	return "", errs.New(errs.NotFound, op, "%s is no checkpoint: the app has %s", digits, count(have, "checkpoint"))
}

// newestAt returns the newest checkpoint that had been made at a time.
func newestAt(newestFirst []ipc.Checkpoint, when string, now time.Time) (ipc.CheckpointID, error) {
	at, err := When(when, now)
	if err != nil {
		return "", errs.Wrap(errs.Invalid, op, err)
	}
	for _, cp := range newestFirst {
		if !cp.CalledOff && !cp.CreatedAt.After(at) {
			return cp.ID, nil
		}
	}
	return "", errs.New(errs.NotFound, op, "the app had no checkpoint at %s", at.Format(time.DateTime))
}

// byPrefix returns the one checkpoint whose id begins with prefix.
func byPrefix(list []ipc.Checkpoint, prefix string) (ipc.CheckpointID, error) {
	var found []string
	for _, cp := range list {
		if string(cp.ID) == prefix {
			return cp.ID, nil
		}
		if strings.HasPrefix(string(cp.ID), prefix) {
			found = append(found, string(cp.ID))
		}
	}
	switch len(found) {
	case 0:
		return "", errs.New(errs.NotFound, op, "the app has no checkpoint %s", prefix)
	case 1:
		return ipc.CheckpointID(found[0]), nil
	}
	return "", errs.New(errs.Invalid, op, "%s is the beginning of %s and %s", prefix, found[0], count(len(found)-1, "other id")).
		WithHint("give more of it")
}

// elsewhere matches how other tools name the newest states: HEAD, HEAD~1, HEAD^, latest, -1.
var elsewhere = regexp.MustCompile(`(?i)^((head|latest|newest|last|first|current|previous|prev|tip|top)([~^][0-9]*)*|[~^]+[0-9]*|-[0-9]+)$`)

// byWords returns the one checkpoint whose turn's title, or whose notes, are words; else that in which they occur. Upper and lower
// case are the same.
func byWords(newestFirst []ipc.Checkpoint, words string) (ipc.CheckpointID, error) {
	lower := strings.ToLower(words)
	var found []ipc.Checkpoint
	whole := false
	for _, cp := range newestFirst {
		for _, text := range namesOf(cp) {
			same := strings.ToLower(text) == lower
			if same && !whole {
				whole, found = true, nil
			}
			if same || !whole && strings.Contains(strings.ToLower(text), lower) {
				found = append(found, cp)
				break
			}
		}
	}
	switch len(found) {
	case 0:
		if elsewhere.MatchString(words) {
			return "", errs.New(errs.NotFound, op, "%q names no checkpoint", words).WithHint("give N for the N-th newest: 1 is the newest, 2 the one before it")
		}
		return "", errs.New(errs.NotFound, op, "%q names no checkpoint", words).
			WithHint("give an id (cp-…), the beginning of one, N for the N-th newest, words of a title or of notes, or a time as in '@{2 hours ago}'")
	case 1:
		return found[0].ID, nil
	}
	var ids []string
	for _, cp := range found[:min(len(found), 3)] {
		ids = append(ids, fmt.Sprintf("%s (%.40s)", cp.ID, namesOf(cp)[0]))
	}
	more := ""
	if len(found) > len(ids) {
		more = fmt.Sprintf(" and %d more", len(found)-len(ids))
	}
	return "", errs.New(errs.Invalid, op, "%q may mean %s%s", words, strings.Join(ids, ", "), more).WithHint("give an id")
}

// namesOf returns the texts of which words name cp.
func namesOf(cp ipc.Checkpoint) []string {
	names := []string{cp.Title}
	if cp.Notes != nil {
		names = append(names, *cp.Notes)
	}
	return slices.DeleteFunc(names, func(s string) bool { return s == "" })
}

// count returns a number with a noun in the singular or the plural.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

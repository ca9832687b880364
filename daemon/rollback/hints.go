package rollback

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// hints adds to the errors of a rollback the command that helps: what was asked for, with other
// options. The goal of a revert has no such commands. plan, target and parts are the rollback's own.
type hints struct {
	a      *app.App
	req    ipc.RollbackRequest
	goal   goal
	plan   *rollbackPlan
	target *store.Checkpoint
	parts  *parts
	owing  []store.Turn // of an undo: the turns that it is to go back over once there is room to record that, newest first
}

// hinted returns err with one more hint, after its own. An error without a kind becomes errs.Failed.
func hinted(err error, hint string) error {
	err = errs.Wrap(errs.Failed, "", err)
	if first := errs.HintOf(err); first != "" {
		hint = first + "; or: " + hint
	}
	return &errs.Error{Kind: errs.KindOf(err), Err: err, Hint: hint}
}

// orWithout adds to the error of a layer that can be neither read nor kept as raw bytes, or not switched, the command
// that leaves the layer out. Other errors are returned as they are.
func (h *hints) orWithout(err error) error {
	var e *layer.Error
	if !errors.As(err, &e) {
		return err
	}
	return h.orWithoutLayer(e.Layer.Name, err)
}

// orWithoutLayer adds to an error the command that leaves a layer out, if that helps.
func (h *hints) orWithoutLayer(name snap.Layer, err error) error {
	others := slices.ContainsFunc(h.parts.list, func(p *part) bool { return p.Name != name })
	if !others || !h.goal.narrows() || errors.Is(err, context.Canceled) || records.NoRoom(err) {
		return err
	}
	return hinted(err, "`"+h.command("--without", shellWord(string(name)))+"` takes the rest back and leaves "+string(name)+" as it is")
}

// command returns the client's command for what was asked for, with more words.
func (h *hints) command(more ...string) string {
	words := []string{"mulligan"}
	switch {
	case h.plan.UndoRedo && h.req.Turns > 1:
		words = append(words, "undo", strconv.Itoa(h.req.Turns))
	case h.plan.UndoRedo && h.req.Turns == 1:
		words = append(words, "undo")
	case h.plan.UndoRedo:
		words = append(words, "redo")
	default:
		words = append(words, "rollback", string(h.target.ID))
		for _, s := range h.req.Scope {
			if !strings.HasPrefix(s, "layer:") {
				s = h.typed(s)
			}
			words = append(words, "--scope", shellWord(s))
		}
	}
	for _, l := range h.req.Without {
		words = append(words, "--without", shellWord(l))
	}
	return strings.Join(append(words, more...), " ")
}

// typed returns a path of the workspace as a person may type it in any folder.
func (h *hints) typed(rel string) string { return filepath.Join(h.a.Rec().Workspace, rel) }

// shellWord quotes s for a shell, where that is needed.
func shellWord(s string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./:,+=@%", c)
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// orNoStart adds to the error of an app that does not start the command that goes to the target without
// starting the app.
func (h *hints) orNoStart(err error) error {
	hint := "`" + h.command("--no-start") + "` goes there without starting it"
	return hinted(err, hint)
}

// noStartFirst puts in front of the hint that says how what is gone is made anew the command that goes to the target without starting the app, which
// may bring back what that needs.
func (h *hints) noStartFirst(err error) error {
	return &errs.Error{Kind: errs.KindOf(err), Err: err, Hint: "`" + h.command("--no-start") + "` goes there without starting it; then: " + errs.HintOf(err)}
}

// orDiscard adds to the error of a full disk the command that makes room. Other errors are returned as
// they are.
func (h *hints) orDiscard(ctx context.Context, err error) error {
	if !records.NoRoom(err) || !h.goal.narrows() || len(h.req.Discard) > 0 || records.StateFull(err) && !h.onStateDisk() {
		return err
	}
	list, walkErr := h.madeSince(ctx, ".")
	few, size := worthDiscarding(list)
	if walkErr != nil || len(few) == 0 {
		return err
	}
	var words []string
	for _, p := range few {
		words = append(words, "--discard", shellWord(h.typed(p)))
	}
	hint := fmt.Sprintf("`%s` first deletes for good what was made there since, %d MB", h.command(words...), size>>20)
	return hinted(err, hint)
}

// onStateDisk reports whether the workspace is on the disk of the daemon's state folder, so that files which are deleted there make room
// for records. Subvolumes of btrfs have different device numbers and the same room.
func (h *hints) onStateDisk() bool {
	var is, state unix.Stat_t
	if unix.Stat(h.a.Rec().Workspace, &is) != nil || unix.Stat(h.parts.opt.StateDir, &state) != nil || is.Dev == state.Dev {
		return true
	}
	var a, b unix.Statfs_t
	return unix.Statfs(h.a.Rec().Workspace, &a) == nil && unix.Statfs(h.parts.opt.StateDir, &b) == nil &&
		a.Type == unix.BTRFS_SUPER_MAGIC && b.Type == a.Type && a.Blocks == b.Blocks
}

// madeSince lists the files at and below a path of the workspace that were made since the target. It leaves out what an undo does not take back.
func (h *hints) madeSince(ctx context.Context, at string) ([]madeFile, error) {
	files := h.parts.find(snap.Files)
	if files == nil {
		return nil, nil
	}
	lister, ok := files.Driver.(snap.Lister)
	if !ok {
		return nil, nil
	}
	root, err := app.OpenWorkspace(h.a.Rec())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	m := made{ctx: ctx, root: root, lister: lister, target: files.target}
	err = m.look(path.Clean(at))
	if n := len(h.owing); err == nil && n > 0 { // once there is room, the undo takes back less
		var created map[string]bool
		created, err = turns.TrackerOf(h.a).CreatedSince(ctx, h.owing[min(n, h.req.Turns)-1].Start)
		m.files = slices.DeleteFunc(m.files, func(f madeFile) bool { return !created[f.path] })
	}
	return m.files, err
}

// ofStored adds to the error of a layer whose snapshot cannot be restored what to do, and where the snapshot is if it is damaged.
func (h *hints) ofStored(p *part, err error) error {
	if err == nil {
		return nil
	}
	if errs.KindOf(err) != errs.Corrupt {
		return h.orWithoutLayer(p.Name, err)
	}
	return h.orWithout(&layer.Error{Layer: p.Layer, Err: &errs.Error{Kind: errs.Corrupt, Op: fmt.Sprintf("check %s of %s", p.Name, h.target.ID), Err: err,
		Hint: "nothing was changed; `mulligan verify` tells which checkpoints are whole"}})
}

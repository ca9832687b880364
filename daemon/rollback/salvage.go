package rollback

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/tomlfile"
)

// Each layer of an app is safe by itself. A rollback captures, and looks at, only the
// layers that it is of. One of them that its driver cannot read is kept as the bytes that
// lie there, where the driver is a snap.Salvager; where it is none, as of a server that is
// away, the rollback goes on without the layer if the caller says so.

// salvageable reports whether err is the failed capture of a layer whose bytes can be
// kept instead.
func salvageable(err error) bool {
	var e *layer.Error
	if !errors.As(err, &e) || !layer.Unreadable(e.Err) {
		return false
	}
	_, ok := snap.SalvagerOf(e.Layer.Driver)
	return ok
}

// captureBase captures the layers that the rollback is of, as they are now. halted says
// that the app had to be stopped for that: it would not hold still while it ran, or a layer
// cannot be read, and its bytes are kept.
func (r *rollback) captureBase(ctx context.Context, still checkpoint.Stillness, running bool) (cp store.Checkpoint, halted bool, err error) {
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.safetyLayers(), checkpoint.How{Still: still, Revive: true})
	moving, kept := errors.Is(err, snap.ErrChanged), salvageable(err)
	switch {
	case err == nil:
		return cp, false, nil
	case running && r.stops() && (moving || kept):
		halted = true
		if err := r.halt(ctx); err != nil {
			return cp, halted, err
		}
		still = checkpoint.Stillness{All: r.stopsAll(), Host: true}
	case !kept:
		return cp, false, r.orWithout(err)
	}
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.safetyLayers(), checkpoint.How{Still: still, Revive: true, Salvage: true})
	return cp, halted, r.orWithout(err)
}

// noteRaw repeats in the receipt what was kept as bytes.
func (r *rollback) noteRaw(layers ...snap.Layer) {
	for _, s := range r.safety.Snapshots {
		if s.Raw && (len(layers) == 0 || slices.Contains(layers, s.Layer)) {
			r.warnings.add("%s could not be read; its bytes were kept as they lay there, in %s", s.Layer, r.safety.ID)
		}
	}
}

// hinted returns err with one more hint, after its own. An error of no kind becomes errs.Failed.
func hinted(err error, hint string) error {
	err = errs.Wrap(errs.Failed, "", err)
	if first := errs.HintOf(err); first != "" {
		hint = first + "; or: " + hint
	}
	return &errs.Error{Kind: errs.KindOf(err), Err: err, Hint: hint}
}

// orWithout adds to the error of a layer that can be neither read nor kept the command
// that leaves it out.
func (r *rollback) orWithout(err error) error {
	var e *layer.Error
	if !errors.As(err, &e) || !r.goal.narrows() || errors.Is(err, context.Canceled) || records.NoRoom(err) {
		return err
	}
	var rest []layer.Layer
	for _, p := range r.parts {
		if p.Name != e.Layer.Name {
			rest = append(rest, p.Layer)
		}
	}
	if len(rest) == 0 {
		return err
	}
	hint := "`" + r.command("--without", shellWord(string(e.Layer.Name))) + "` takes the rest back and leaves " + string(e.Layer.Name) + " as it is"
	return hinted(err, hint)
}

// command is the client's command for what was asked for, with more words.
func (r *rollback) command(more ...string) string {
	words := []string{"mulligan"}
	switch {
	case r.plan.Aimed && r.req.Turns > 1:
		words = append(words, "undo", strconv.Itoa(r.req.Turns))
	case r.plan.Aimed && r.req.Turns == 1:
		words = append(words, "undo")
	case r.plan.Aimed:
		words = append(words, "redo")
	default:
		words = append(words, "rollback", string(r.target.ID))
		for _, s := range r.req.Scope {
			words = append(words, "--scope", shellWord(s))
		}
	}
	for _, l := range r.req.Without {
		words = append(words, "--without", shellWord(l))
	}
	return strings.Join(append(words, more...), " ")
}

// shellWord is s as a shell reads it.
func shellWord(s string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./:,+=@%", c)
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// withoutLayers are the layers that the request leaves as they are.
func (r *rollback) withoutLayers() (map[snap.Layer]bool, error) {
	left := map[snap.Layer]bool{}
	for _, name := range r.req.Without {
		name = strings.TrimPrefix(name, "layer:")
		if r.markWanted(left, name) {
			continue
		}
		e := errs.New(errs.Invalid, "", "%s has no layer %.64q to go without", r.a.Rec().Slug, name)
		var known []string
		for _, l := range r.a.Layers() {
			known = append(known, string(l.Name), strings.TrimPrefix(string(l.Name), "db:"))
		}
		if near := tomlfile.Nearest(name, known); near != "" {
			for _, l := range r.a.Layers() {
				if string(l.Name) == near || l.IsDB() && snap.DB(near) == l.Name {
					return nil, e.WithHint("did you mean --without %s?", l.Name)
				}
			}
		}
		return nil, e.WithHint("its layers are %s", r.layerNames())
	}
	return left, nil
}

// behind works out which layers are behind once this rollback is done: those that were,
// but for the ones that it restores whole, and those that it left as they were. A redo goes
// back to how that was before what it goes over.
func (r *rollback) behind(ctx context.Context) ([]string, error) {
	l, err := r.d.checkpoints.LineOf(ctx, r.a)
	if err != nil {
		return nil, err
	}
	was := l.BehindOf()
	if at := l.Find(r.target.ID); at >= 0 && r.target.Trigger == ipc.TriggerPreRollback {
		was = l[at+1:].BehindOf()
	}
	var now []string
	for _, name := range was {
		restored := r.has(snap.Layer(name)) && (name != string(snap.Files) || !r.plan.Paths)
		if _, there := r.a.Layer(snap.Layer(name)); there && !restored {
			now = append(now, name)
		}
	}
	if r.target.Trigger != ipc.TriggerPreRollback { // that lacks what its own rollback left
		now = append(now, r.plan.Behind...)
	} else {
		now = append(now, r.plan.Without...)
	}
	slices.Sort(now)
	return slices.Compact(now), nil
}

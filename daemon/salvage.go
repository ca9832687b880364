package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// taking says how layers are captured.
type taking struct {
	still   stillness
	memory  bool // of a domain
	revive  bool // a layer's server that is down may be started, as for a rollback
	salvage bool // a layer that cannot be read is kept as raw bytes
}

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

// salvage keeps the bytes of a layer that could not be captured, for the reason why. The
// warning says so.
func salvage(ctx context.Context, l layer.Layer, req snap.CaptureRequest, why error) (snap.Snapshot, error) {
	s, ok := snap.SalvagerOf(l.Driver)
	if !ok {
		return snap.Snapshot{}, why
	}
	kept, err := s.Salvage(ctx, req)
	if err != nil {
		return snap.Snapshot{}, errs.Also(why, err)
	}
	kept.Raw = true
	kept.Warnings = append(kept.Warnings, fmt.Sprintf("its state could not be read (%v), and its bytes were kept as they lay there", why))
	return kept, nil
}

// captureBase captures the layers that the rollback is of, as they are now. halted says
// that the app had to be stopped for that: it would not hold still while it ran, or a layer
// cannot be read, and its bytes are kept.
func (r *rollback) captureBase(ctx context.Context, still stillness, running bool) (cp store.Checkpoint, halted bool, err error) {
	cp, err = r.d.capture(ctx, r.a, r.safetyLayers(), taking{still: still, revive: true})
	moving, kept := errors.Is(err, snap.ErrChanged), salvageable(err)
	switch {
	case err == nil:
		return cp, false, nil
	case running && r.stops() && (moving || kept):
		halted = true
		if err := r.halt(ctx); err != nil {
			return cp, halted, err
		}
		still = stillness{all: r.stopsAll(), host: true}
	case !kept:
		return cp, false, r.orWithout(err)
	}
	cp, err = r.d.capture(ctx, r.a, r.safetyLayers(), taking{still: still, revive: true, salvage: true})
	return cp, halted, r.orWithout(err)
}

// noteRaw repeats in the receipt what was kept as bytes.
func (r *rollback) noteRaw(layers ...snap.Layer) {
	for _, s := range r.safety.Snapshots {
		if s.Raw && (len(layers) == 0 || slices.Contains(layers, s.Layer)) {
			r.warn("%s could not be read; its bytes were kept as they lay there, in %s", s.Layer, r.safety.ID)
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
	if !errors.As(err, &e) || r.plan.Revert != "" || errors.Is(err, context.Canceled) || records.NoRoom(err) {
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
		e := errs.New(errs.Invalid, "", "%s has no layer %.64q to go without", r.a.rec().Slug, name)
		var known []string
		for _, l := range r.a.layers() {
			known = append(known, string(l.Name), strings.TrimPrefix(string(l.Name), "db:"))
		}
		if near := tomlfile.Nearest(name, known); near != "" {
			for _, l := range r.a.layers() {
				if string(l.Name) == near || l.IsDB() && snap.DB(near) == l.Name {
					return nil, e.WithHint("did you mean --without %s?", l.Name)
				}
			}
		}
		return nil, e.WithHint("its layers are %s", r.layerNames())
	}
	return left, nil
}

// behindOf names the layers that are as they were while others went back, as the newest
// safety checkpoint of a rollback that was done has them.
func (l line) behindOf() []string {
	for _, cp := range l {
		if cp.Trigger == ipc.TriggerPreRollback && !cp.CalledOff {
			return cp.StayedBehind
		}
	}
	return nil
}

// behind works out which layers are behind once this rollback is done: those that were,
// but for the ones that it restores whole, and those that it left as they were. A redo goes
// back to how that was before what it goes over.
func (r *rollback) behind(ctx context.Context) ([]string, error) {
	l, err := r.d.lineOf(ctx, r.a)
	if err != nil {
		return nil, err
	}
	was := l.behindOf()
	if at := l.find(r.target.ID); at >= 0 && r.target.Trigger == ipc.TriggerPreRollback {
		was = l[at+1:].behindOf()
	}
	var now []string
	for _, name := range was {
		restored := r.has(snap.Layer(name)) && (name != string(snap.Files) || !r.plan.Paths)
		if _, there := r.a.layer(snap.Layer(name)); there && !restored {
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

// noteBehind keeps, for problems, which layers stayed behind.
func (d *Daemon) noteBehind(ctx context.Context, a *app) {
	l, err := d.lineOf(ctx, a)
	if err != nil {
		return // whoever asks next is told
	}
	words := behindWords(l)
	a.noteBehind(words)
}

// behindWords says which layers stayed behind, and what takes them along.
func behindWords(l line) (list []string) {
	for _, name := range l.behindOf() {
		list = append(list, fmt.Sprintf("%s stayed as it was at a rollback, and may not agree with the rest: a rollback that takes it along, or mulligan redo, ends that", name))
	}
	return list
}

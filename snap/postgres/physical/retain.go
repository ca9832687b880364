package physical

import (
	"context"
	"errors"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// holdings is what is stored, and which markers need what of it.
type holdings struct {
	markers []marker
	bases   []wal.Base
	kept    []kept
	live    wal.Timeline // of the data folder
	size    wal.Segments // of the log's files
	// What restores begin with: by marker, and "" for markers to come.
	from map[snap.SnapshotID]wal.Base
	log  map[string]bool // finished log files that are needed
	// The live folder cannot be read, so all bases and all log may be needed.
	blind bool
	open  []place // and these timelines' log from there on

	legs map[wal.Timeline][]wal.Leg // histories that were read
}

// hold works out what is needed: by all markers but those in without, by the
// folders that were swapped out, by restores under way, and by markers to come.
func (d *Driver) hold(ctx context.Context, without ...snap.SnapshotID) (h holdings, err error) {
	h.from, h.log, h.legs = map[snap.SnapshotID]wal.Base{}, map[string]bool{}, map[wal.Timeline][]wal.Leg{}
	all, err1 := d.markers()
	plans, err2 := d.switches()
	var err3, err4 error
	h.bases, err3 = d.bases()
	h.kept, err4 = d.keptOnes()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return h, err
	}
	if err := d.holdLive(ctx, &h); err != nil {
		return h, err
	}
	for _, p := range plans {
		h.open = append(h.open, p.From, p.Fork.place())
	}
	for _, m := range all {
		if slices.Contains(without, m.ID) {
			continue
		}
		h.markers = append(h.markers, m)
		if err := d.holdUpTo(ctx, &h, m.ID, m.TLI, m.LSN); err != nil {
			return h, err
		}
	}
	for _, k := range h.kept { // live again, it goes on from its end
		if b, found := h.from[k.Marker]; found {
			legs, err := d.historyIn(ctx, &h, k.End.TLI)
			if errs.KindOf(err) == errs.Corrupt {
				continue
			} else if err != nil {
				return h, err
			}
			h.holdLog(legs, b, k.End.Checkpoint)
		}
	}
	if h.blind {
		return h, nil
	}
	return h, d.holdUpTo(ctx, &h, "", h.live, wal.Endless)
}

// holdLive looks where the live folder stands. One that is broken, or another cluster's, says nothing.
func (d *Driver) holdLive(ctx context.Context, h *holdings) error {
	c, err := d.server.ReadControl(ctx, d.cfg.DataDir)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f, unknown := d.known()
	if err == nil && (unknown != nil || f.System == c.System) {
		h.live, h.size = c.TLI, c.Segments
		return nil
	}
	if unknown != nil {
		return errs.Also(err, unknown)
	}
	h.blind, h.size = true, f.Segments
	return nil
}

// historyIn is history, read once.
func (d *Driver) historyIn(ctx context.Context, h *holdings, t wal.Timeline) ([]wal.Leg, error) {
	if legs, found := h.legs[t]; found {
		return legs, nil
	}
	legs, err := d.history(ctx, t)
	if err == nil {
		h.legs[t] = legs
	}
	return legs, err
}

// holdUpTo notes the base and the log that lead to a place. Without a base there
// is nothing to be kept.
func (d *Driver) holdUpTo(ctx context.Context, h *holdings, id snap.SnapshotID, t wal.Timeline, to wal.LSN) error {
	legs, err := d.historyIn(ctx, h, t)
	var b wal.Base
	if err == nil {
		b, err = wal.Choose(h.bases, legs, t, to)
	}
	if errs.KindOf(err) == errs.Corrupt {
		return nil
	} else if err != nil {
		return err
	}
	h.from[id] = b
	h.holdLog(legs, b, to)
	return nil
}

// holdLog notes the log that leads from b to a place on the last of legs.
func (h *holdings) holdLog(legs []wal.Leg, b wal.Base, to wal.LSN) {
	spans := wal.Path(legs, b.TLI, b.Start, to)
	if n := len(spans); n > 0 && to == wal.Endless {
		h.open = append(h.open, place{TLI: spans[n-1].TLI, Start: spans[n-1].Start})
		spans = spans[:n-1]
	}
	for _, name := range h.size.Names(spans) {
		h.log[name] = true
	}
}

// wants reports whether a log file is needed.
func (h holdings) wants(name string) bool {
	return h.log[name] || slices.ContainsFunc(h.open, func(p place) bool {
		first := h.size.Name(p.TLI, h.size.Number(p.Start))
		return name[:8] == first[:8] && name >= first
	})
}

// garbage is what can go: bases, kept folders, and files in the archive.
type garbage struct {
	bases []wal.Base
	kept  []kept
	log   []string
	raws  []raw
}

// unneeded lists what nobody needs. With the last marker goes everything, also
// what markers to come would begin with: last says that it is being deleted.
func (d *Driver) unneeded(ctx context.Context, h holdings, last bool) (g garbage, err error) {
	if last {
		h.from, h.open, h.blind = nil, nil, false
	}
	if p := d.copying.Load(); p != nil {
		h.open = append(h.open, *p)
	}
	used := map[string]bool{}
	for _, b := range h.from {
		used[b.ID] = true
	}
	for _, b := range h.bases {
		if !used[b.ID] && !h.blind {
			g.bases = append(g.bases, b)
		}
	}
	for _, k := range h.kept {
		if !slices.ContainsFunc(h.markers, func(m marker) bool { return m.ID == k.Marker }) {
			g.kept = append(g.kept, k)
		}
	}
	list, err := asowner.Names.Call(ctx, d.owner, d.archive())
	for _, name := range list {
		if len(name) < 24 || !wal.IsSegment(name[:24]) || !database.ValidName(name) {
			continue
		}
		copied := name[24:] == asowner.Linked && slices.Contains(list, name[:24])
		if copied || !h.blind && !h.wants(name[:24]) {
			g.log = append(g.log, name)
		}
	}
	return g, err
}

// freed is what no one needs any more once these snapshots are deleted, in
// addition to what no one needs now.
func (d *Driver) freed(ctx context.Context, ids []snap.SnapshotID) (g garbage, err error) {
	before, err := d.hold(ctx)
	if err != nil {
		return g, err
	}
	after, err := d.hold(ctx, ids...)
	if err != nil {
		return g, err
	}
	already, err := d.unneeded(ctx, before, false)
	if err != nil {
		return g, err
	}
	g, err = d.unneeded(ctx, after, len(after.markers) == 0 && len(before.markers) > 0)
	g.bases = slices.DeleteFunc(g.bases, func(b wal.Base) bool { return slices.Contains(already.bases, b) })
	g.kept = slices.DeleteFunc(g.kept, func(k kept) bool { return slices.Contains(already.kept, k) })
	g.log = slices.DeleteFunc(g.log, func(name string) bool { return slices.Contains(already.log, name) })
	if err == nil {
		g.raws, err = d.rawsOf(ids)
	}
	return g, err
}

// paths returns the paths of everything that g lists.
func (d *Driver) paths(g garbage) (all []string) {
	for _, b := range g.bases {
		all = append(all, d.stored("bases", b.ID))
	}
	for _, k := range g.kept {
		all = append(all, d.stored("forks", k.Dir))
	}
	for _, name := range g.log {
		all = append(all, d.stored("archive", name))
	}
	for _, r := range g.raws {
		if r.Dir != "" {
			all = append(all, d.stored("raws", r.Dir))
		}
	}
	return all
}

// Size is what deleting exactly these snapshots together would free, in bytes.
// Where files are cloned, what they share with others is left out.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	const op = "measure cluster snapshots"
	var n int64
	err := d.Do(ctx, op, func() error {
		for _, id := range ids {
			if _, err := d.state(id); err != nil {
				return err
			}
		}
		g, err := d.freed(ctx, ids)
		if err == nil {
			n, err = d.measure(ctx, d.paths(g))
		}
		return err
	})
	return n, err
}

func (d *Driver) measure(ctx context.Context, gone []string) (int64, error) {
	return asowner.Measure.Call(ctx, d.owner, asowner.Measurement{Home: d.home(), Gone: gone, Shared: d.cloning(ctx)})
}

// Delete drops a snapshot, and what only it needed.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	return d.Do(ctx, "delete cluster snapshot", func() error {
		s, err := d.state(id)
		if errs.KindOf(err) == errs.NotFound {
			return nil
		}
		if s.raw != nil { // nothing else rests on it
			return d.discard(ctx, garbage{raws: []raw{*s.raw}})
		}
		g, err := d.freed(ctx, []snap.SnapshotID{id})
		if err == nil {
			err = d.drop("markers", string(id))
		}
		if err == nil {
			err = d.discard(ctx, g)
		}
		return err
	})
}

// discard removes garbage: records first, so that none ever names what is gone.
// What a crash leaves is found by the next prune or Sweep.
func (d *Driver) discard(ctx context.Context, g garbage) error {
	if err := d.cfg.Failpoint.At("discard"); err != nil {
		return err
	}
	for _, b := range g.bases {
		if err := errors.Join(d.drop("bases", b.ID), removeDurably(d.sumsFile(b.ID)), d.remove(ctx, d.stored("bases", b.ID))); err != nil {
			return err
		}
	}
	for _, k := range g.kept {
		if err := errors.Join(d.drop("kept", string(k.Marker)), d.remove(ctx, d.stored("forks", k.Dir))); err != nil {
			return err
		}
	}
	for _, r := range g.raws {
		if err := errors.Join(d.drop("raws", string(r.ID)), d.remove(ctx, d.paths(garbage{raws: []raw{r}})...)); err != nil {
			return err
		}
	}
	return d.remove(ctx, d.paths(garbage{log: g.log})...)
}

// prune drops what nobody needs.
func (d *Driver) prune(ctx context.Context) error {
	h, err := d.hold(ctx)
	if err != nil {
		return err
	}
	g, err := d.unneeded(ctx, h, false)
	if err != nil {
		return err
	}
	return d.discard(ctx, g)
}

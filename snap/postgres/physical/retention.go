package physical

import (
	"context"
	"errors"
	"slices"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/jsonrows"
	"mulligan/snap/postgres/physical/wal"
)

// retention finds out which parts of the store are needed, and removes the others.
type retention struct {
	store     *store
	records   *records
	server    *server
	archive   *archive
	bases     *bases
	carry     *carrier
	failpoint failpoint.Hook
}

// holdings are the contents of the store, and the parts of it that markers need.
type holdings struct {
	markers []marker
	bases   []wal.Base
	kept    []kept
	live    wal.Timeline // timeline of the live data folder
	size    wal.Segments // of the log files
	// The base backups from which restores begin, by marker; "" stands for later markers.
	from map[snap.SnapshotID]wal.Base
	log  map[string]bool // finished log files that are needed
	// The live folder, or the record of a marker (damaged), cannot be read, so all base backups and all log may be needed.
	blind, damaged bool
	open           []place // the log of these timelines from these positions on is needed too

	legs map[wal.Timeline][]wal.Leg // histories that were read
}

// hold finds out what is needed: by all markers except those in without, by the folders that were swapped out, by restores
// under way, and by later markers.
func (rt *retention) hold(ctx context.Context, without ...snap.SnapshotID) (h holdings, err error) {
	h.from, h.log, h.legs = map[snap.SnapshotID]wal.Base{}, map[string]bool{}, map[wal.Timeline][]wal.Leg{}
	all, err1 := rt.records.markers()
	plans, err2 := rt.records.switches()
	var err3, err4 error
	h.bases, err3 = rt.records.bases()
	h.kept, err4 = rt.records.keptOnes()
	h.damaged = errs.KindOf(err1) == errs.Corrupt
	h.blind = h.damaged
	if err := errors.Join(undamaged(err1), err2, err3, err4); err != nil {
		return h, err
	}
	if err := rt.holdLive(ctx, &h); err != nil {
		return h, err
	}
	for _, p := range plans {
		h.open = append(h.open, p.From, p.Fork.place())
	}
	sent, _ := rt.carry.holding()
	for _, m := range sent {
		if err := rt.holdUpTo(ctx, &h, m.ID, m.TLI, m.LSN); err != nil {
			return h, err
		}
	}
	for _, m := range all {
		if slices.Contains(without, m.ID) {
			continue
		}
		h.markers = append(h.markers, m)
		if err := rt.holdUpTo(ctx, &h, m.ID, m.TLI, m.LSN); err != nil {
			return h, err
		}
	}
	for _, k := range h.kept { // if the folder becomes live again, its server continues from End
		if b, found := h.from[k.Marker]; found {
			legs, err := rt.history(ctx, &h, k.End.TLI)
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
	err = rt.holdUpTo(ctx, &h, "", h.live, wal.Endless)
	return h, err
}

// holdLive finds the position of the live folder. If the folder is broken or belongs to another cluster, holdLive sets h.blind.
func (rt *retention) holdLive(ctx context.Context, h *holdings) error {
	c, err := rt.server.ReadControl(ctx, rt.server.DataDir)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f, unknown := rt.records.known()
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

// history returns the legs of timeline t, which it reads from the archive only once.
func (rt *retention) history(ctx context.Context, h *holdings, t wal.Timeline) ([]wal.Leg, error) {
	if legs, found := h.legs[t]; found {
		return legs, nil
	}
	legs, err := rt.archive.history(ctx, t)
	if err == nil {
		h.legs[t] = legs
	}
	return legs, err
}

// holdUpTo records as needed the base backup and the log that lead to a position. If there is no base backup, nothing is
// needed.
func (rt *retention) holdUpTo(ctx context.Context, h *holdings, id snap.SnapshotID, t wal.Timeline, to wal.LSN) error {
	legs, err := rt.history(ctx, h, t)
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

// holdLog records as needed the log that leads from b to a position on the last of legs.
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

// garbage are the parts of the store that can be removed: base backups, kept folders, raw snapshots, and log files in the
// archive.
type garbage struct {
	bases []wal.Base
	kept  []kept
	log   []string
	raws  []raw
}

// unneeded returns what is not needed. last means that the last marker is being deleted: then nothing is needed, not even for
// later markers.
func (rt *retention) unneeded(ctx context.Context, h holdings, last bool) (g garbage, err error) {
	if sent, _ := rt.carry.holding(); last && len(sent) == 0 && !h.damaged {
		h.from, h.open, h.blind = nil, nil, false
	}
	if p := rt.bases.copying.Load(); p != nil {
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
		if !h.damaged && !slices.ContainsFunc(h.markers, func(m marker) bool { return m.ID == k.Marker }) {
			g.kept = append(g.kept, k)
		}
	}
	list, err := asowner.Names.Call(ctx, rt.store.owner, rt.store.Archive())
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

// freed returns what is not needed once these snapshots are deleted, except what is not needed already.
func (rt *retention) freed(ctx context.Context, ids []snap.SnapshotID) (g garbage, err error) {
	before, err := rt.hold(ctx)
	if err != nil {
		return g, err
	}
	after, err := rt.hold(ctx, ids...)
	if err != nil {
		return g, err
	}
	already, err := rt.unneeded(ctx, before, false)
	if err != nil {
		return g, err
	}
	g, err = rt.unneeded(ctx, after, len(after.markers) == 0 && len(before.markers) > 0)
	g.bases = slices.DeleteFunc(g.bases, func(b wal.Base) bool { return slices.Contains(already.bases, b) })
	g.kept = slices.DeleteFunc(g.kept, func(k kept) bool { return slices.Contains(already.kept, k) })
	g.log = slices.DeleteFunc(g.log, func(name string) bool { return slices.Contains(already.log, name) })
	if err == nil {
		g.raws, err = rt.records.rawsOf(ids)
	}
	return g, err
}

// paths returns the paths of everything that g lists.
func (rt *retention) paths(g garbage) (all []string) {
	for _, b := range g.bases {
		all = append(all, rt.store.path("bases", b.ID))
	}
	for _, k := range g.kept {
		all = append(all, rt.store.path("forks", k.Dir))
	}
	for _, name := range g.log {
		all = append(all, rt.store.path("archive", name))
	}
	for _, r := range g.raws {
		if r.Dir != "" {
			all = append(all, rt.store.path("raws", r.Dir))
		}
	}
	return all
}

// discard removes garbage. It removes the records first, so that no record refers to something that is gone. The next prune or
// Sweep finds what a crash leaves.
func (rt *retention) discard(ctx context.Context, g garbage) error {
	if err := rt.failpoint.At("discard"); err != nil {
		return err
	}
	for _, b := range g.bases {
		if err := errors.Join(rt.records.drop("bases", b.ID), jsonrows.Remove(rt.records.sumsFile(b.ID)), rt.store.remove(ctx, rt.store.path("bases", b.ID))); err != nil {
			return err
		}
	}
	for _, k := range g.kept {
		if err := errors.Join(rt.records.drop("kept", string(k.Marker)), rt.store.remove(ctx, rt.store.path("forks", k.Dir))); err != nil {
			return err
		}
	}
	_, sent := rt.carry.holding()
	for _, r := range g.raws {
		err := rt.records.drop("raws", string(r.ID))
		if err == nil && !slices.Contains(sent, r.Dir) { // else a sweep removes it
			err = rt.store.remove(ctx, rt.paths(garbage{raws: []raw{r}})...)
		}
		if err != nil {
			return err
		}
	}
	return rt.store.remove(ctx, rt.paths(garbage{log: g.log})...)
}

// prune removes what is not needed.
func (rt *retention) prune(ctx context.Context) error {
	h, err := rt.hold(ctx)
	if err != nil {
		return err
	}
	g, err := rt.unneeded(ctx, h, false)
	if err != nil {
		return err
	}
	return rt.discard(ctx, g)
}

// sweepStore removes what no record refers to.
func (rt *retention) sweepStore(ctx context.Context) error {
	var known []string
	bases, err1 := rt.records.bases()
	keeps, err2 := rt.records.keptOnes()
	plans, err3 := rt.records.switches()
	raws, err4 := rt.records.raws()
	if errs.KindOf(err4) == errs.Corrupt {
		return nil // which folder the damaged record refers to is unknown
	}
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	_, sent := rt.carry.holding()
	for _, dir := range sent {
		known = append(known, "raws/"+dir)
	}
	for _, r := range raws {
		known = append(known, "raws/"+r.Dir)
	}
	for _, b := range bases {
		known = append(known, "bases/"+b.ID)
	}
	for _, k := range keeps {
		known = append(known, "forks/"+k.Dir)
	}
	for _, p := range plans {
		known = append(known, "forks/"+p.Fork.Dir)
	}
	_, err := asowner.Sweep.Call(ctx, rt.store.owner, asowner.Sweeping{Store: rt.store.Store, Known: known})
	return err
}

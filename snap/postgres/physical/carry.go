package physical

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/carried"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/replay"
	"mulligan/snap/postgres/physical/wal"
)

// carrier exports snapshots. Safe for concurrent use.
type carrier struct {
	files carried.Files

	mu   sync.Mutex
	held []state // what is being exported, and must stay until that ends
}

// hold keeps what a state consists of until the function that it returns is called.
func (c *carrier) hold(s state) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = append(c.held, s)
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.IndexFunc(c.held, func(h state) bool { return h.ID == s.ID && h.raw == s.raw })
		c.held = slices.Delete(c.held, i, i+1)
	})
}

// holding returns the markers that must stay, and the folders of raw snapshots.
func (c *carrier) holding() (markers []marker, dirs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		if h.raw != nil {
			dirs = append(dirs, h.raw.Dir)
		} else {
			markers = append(markers, h.marker)
		}
	}
	return markers, dirs
}

// Export implements snap.Transporter. A marker is its base backup and the log up to it.
func (d *Driver) Export(ctx context.Context, id snap.SnapshotID) (p snap.Portable, release func(), err error) {
	const op = "export cluster snapshot"
	var what carried.Parcel
	var held func()
	err = d.Do(ctx, op, func() (err error) {
		s, err := d.records.state(id)
		if err == nil {
			what, err = d.pack(ctx, s)
		}
		if err == nil {
			held = d.carry.hold(s)
		}
		return err
	})
	if err != nil {
		return p, nil, err
	}
	c, err := d.carry.files.Contents(ctx, d.store.owner, what) // captures go on meanwhile
	if err != nil {
		held()
		return p, nil, errs.Wrap(errs.Failed, op, err)
	}
	meta, err := json.Marshal(map[string]any{"version": what.State.Version, "system": what.State.System})
	return snap.Portable{Driver: snap.WholeCluster, Object: c.Root, Meta: meta, Contents: c}, func() { c.Close(); held() }, errs.Wrap(errs.Internal, op, err)
}

// pack finds what a snapshot consists of.
func (d *Driver) pack(ctx context.Context, s state) (p carried.Parcel, err error) {
	f, err := d.records.known()
	if err != nil {
		return p, err
	}
	p.Archive = d.store.Archive()
	p.State = carried.State{Version: f.Version, Bootstrap: f.Bootstrap, Segments: f.Segments}
	if s.raw != nil {
		err = d.packRaw(ctx, &p, *s.raw)
		return p, err
	}
	m := s.marker
	b, err := d.bases.nearest(ctx, m, f.Segments)
	if err != nil {
		return p, err
	}
	p.Dir = d.store.path("bases", b.ID)
	was, err := d.server.ReadControl(ctx, p.Dir)
	if err != nil {
		return p, err
	}
	p.State.System, p.State.TLI, p.State.LSN, p.State.Point = was.System, m.TLI, m.LSN, m.Point
	if p.List, err = os.ReadFile(d.records.sumsFile(b.ID)); err != nil {
		return p, err
	}
	if p.State.History, err = asowner.History.Call(ctx, d.store.owner, asowner.HistoryQuery{Home: d.store.Home, TLI: m.TLI}); err != nil {
		return p, err
	}
	legs, err := wal.LegsOf(m.TLI, p.State.History)
	if err != nil {
		return p, err
	}
	p.Log = f.Segments.Names(wal.Path(legs, b.TLI, b.Start, m.LSN))
	p.At, err = asowner.FindLog.Call(ctx, d.store.owner, asowner.LogQuery{Home: d.store.Home, Names: p.Log, Size: f.Segments})
	return p, err
}

// packRaw describes a raw snapshot, in whose files a server was shut down in order.
func (d *Driver) packRaw(ctx context.Context, p *carried.Parcel, r raw) (err error) {
	if !r.Whole {
		return errs.New(errs.Unsupported, "", "snapshot %s has the cluster's files as they lay there, and stays on this host", r.ID)
	}
	p.Dir = d.store.path("raws", r.Dir)
	was, err := d.server.ReadControl(ctx, p.Dir)
	if err == nil {
		p.List, err = d.store.sums(ctx, p.Dir)
	}
	p.State.System, p.State.TLI, p.State.LSN = was.System, was.TLI, was.Checkpoint
	return err
}

// Import implements snap.Transporter. The state is made in a folder, to which a server replays the log, and is kept like the cluster of a
// fork: a restore puts a copy of it in the place of this host's cluster, which it need not have anything to do with. It gets a timeline
// that the cluster here does not have, and the configuration that the cluster here has.
func (d *Driver) Import(ctx context.Context, p snap.Portable, as snap.SnapshotID) (s snap.Snapshot, err error) {
	const op = "import cluster snapshot"
	switch {
	case !database.ValidName(string(as)):
		return s, errs.New(errs.Invalid, op, "%q is not a snapshot id", as)
	case !json.Valid(p.Meta):
		return s, errs.New(errs.Corrupt, op, "the description of %s is damaged", as)
	case p.Driver != snap.WholeCluster || d.cfg.Objects == nil:
		return s, errs.New(errs.Unsupported, op, "the snapshot is of %q, and not of a cluster", p.Driver)
	}
	st, tree, from, err := carried.Open(d.cfg.Objects, p.Object)
	if err != nil {
		return s, errs.Wrap(errs.Corrupt, op, err)
	}
	r := raw{ID: as, Dir: randomHex(8), Ran: true, Whole: true, Created: time.Now().UTC()}
	err = d.Do(ctx, op, func() error {
		old, err := d.records.rawsOf([]snap.SnapshotID{as})
		if err == nil {
			err = d.unpack(ctx, st, tree, from, &r)
		}
		if err == nil {
			err = d.records.put("raws", string(as), r)
		}
		if err != nil {
			return errs.Also(err, d.store.remove(ctx, d.store.path("raws", r.Dir)))
		}
		return d.store.remove(ctx, d.retention.paths(garbage{raws: old})...)
	})
	return snap.Snapshot{ID: as, Driver: driverName, Position: st.LSN.String(), Created: r.Created}, err
}

// unpack makes the folder of r.
func (d *Driver) unpack(ctx context.Context, st carried.State, tree carried.Tree, from *carried.Reader, r *raw) error {
	c, err := d.server.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := d.server.inspect(ctx, c)
	if err == nil {
		err = d.server.refuse(ctx, f)
	}
	if err != nil {
		return err
	}
	if f.Version/10000 != st.Version/10000 || f.Segments != st.Segments {
		return errs.New(errs.Unsupported, "", "the cluster that was sent is of PostgreSQL %d with log files of %d MB, and the one here is of %d with %d MB",
			st.Version/10000, st.Segments>>20, f.Version/10000, f.Segments>>20).WithHint("name a cluster of the same version, made with the same --wal-segsize")
	}
	if r.Conf, err = d.configuration(ctx, f); err != nil {
		return err
	}
	fks := *d.forks
	fks.folder, fks.digestLimit = "raws", -1
	dir := fks.path(r.Dir)
	if _, err := asowner.MakeFolders.Call(ctx, d.store.owner, asowner.NewFolders{Dir: dir, Within: tree.Folders}); err != nil {
		return err
	}
	create := func(within string) func(string) (*os.File, error) {
		return func(path string) (*os.File, error) {
			return d.store.owner.Create(ctx, filepath.Join(dir, within, path), 0o600)
		}
	}
	if err := from.Write(tree.Files, false, create("")); err != nil {
		return err
	}
	if err := from.Write(st.Log, true, create("pg_wal")); err != nil {
		return err
	}
	was, err := d.server.ReadControl(ctx, dir)
	if err != nil || was.System != st.System {
		return errs.Also(errs.New(errs.Corrupt, "", "what was sent is not the cluster %s", st.System).WithHint("use another checkpoint"), err)
	}
	next, err := fks.unusedTimeline(ctx, max(f.TLI, st.TLI))
	if err != nil {
		return err
	}
	return fks.settleImported(ctx, st, f, next, r)
}

// unusedTimeline returns the first timeline after t, and after all that the archive has a history of.
func (fks *forks) unusedTimeline(ctx context.Context, t wal.Timeline) (wal.Timeline, error) {
	list, err := asowner.Names.Call(ctx, fks.store.owner, fks.store.Archive())
	for _, name := range list {
		if used, err := wal.ParseTimeline(name); err == nil && wal.IsHistory(name) {
			t = max(t, used)
		}
	}
	return t + 1, err
}

// beginLog checks the timeline, and has the server begin a log file, which has no log of earlier timelines.
func beginLog(ctx context.Context, s *replay.Server, want wal.Timeline) error {
	now, err := s.Timeline(ctx)
	if err == nil && now != want {
		err = errs.New(errs.Internal, "", "the imported cluster is on timeline %d instead of %d", now, want)
	}
	if err != nil {
		return err
	}
	return s.Run(ctx, "SELECT pg_switch_wal()")
}

// settleImported has a server replay the log that is in an imported folder, and go on to the timeline next. No log from before it is here, so
// its history has no parents.
func (fks *forks) settleImported(ctx context.Context, st carried.State, f facts, next wal.Timeline, r *raw) error {
	dir := fks.path(r.Dir)
	if err := fks.equip(ctx, r.Conf, dir); err != nil {
		return err
	}
	taken := map[string][]byte{}
	for t := st.TLI + 1; t < next; t++ { // the server takes the first that has no history
		taken[filepath.Join("pg_wal", t.HistoryFile())] = nil
	}
	if len(st.History) > 0 {
		taken[filepath.Join("pg_wal", st.TLI.HistoryFile())] = st.History
	}
	if err := fks.store.arrange(ctx, asowner.Arrangement{Dir: dir, Files: taken}); err != nil {
		return err
	}
	f.System, f.Bootstrap = st.System, st.Bootstrap
	s, err := fks.launch(ctx, marker{Point: st.Point, place: place{TLI: st.TLI}}, f, dir, "restore_command=false")
	if err != nil {
		return err
	}
	err = beginLog(ctx, s, next)
	if err := errs.Also(err, s.End(ctx, err == nil)); err != nil {
		return err
	}
	end, err := fks.programs.ReadControl(ctx, dir)
	if err != nil || end.State != pgserver.ShutDown {
		return errs.Also(errs.New(errs.Internal, "", "the imported cluster is %q", end.State), err)
	}
	list, err := asowner.Names.Call(ctx, fks.store.owner, filepath.Join(dir, "pg_wal"))
	if err != nil {
		return err
	}
	first := end.Segments.Name(next, end.Segments.Number(end.Checkpoint))
	drop := []string{"postmaster.opts", "backup_label.old", "recovery.signal", hbaFile}
	for _, name := range list {
		if wal.IsSegment(name) && name != first || wal.IsHistory(name) && name != next.HistoryFile() {
			drop = append(drop, filepath.Join("pg_wal", name))
		}
	}
	history := map[string][]byte{filepath.Join("pg_wal", next.HistoryFile()): []byte("# the log before is on another host\n")}
	if err := fks.store.arrange(ctx, asowner.Arrangement{Dir: dir, Drop: drop, Files: history, Sync: true}); err != nil {
		return err
	}
	if r.Hash, err = asowner.HashRaw.Call(ctx, fks.store.owner, dir); err != nil {
		return err
	}
	return fks.archive.save(ctx, asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), History: next.HistoryFile(), End: first})
}

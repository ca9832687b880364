package physical

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/contents"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/replay"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// forks makes forks: data folders beside the live one, each for one marker. A fork is a clone of the nearest base backup, in
// which a separate server replays the log up to the marker. Restores exchange the live folder with a fork; comparisons only
// read it.
type forks struct {
	store       *store
	records     *records
	archive     *archive
	bases       *bases
	programs    pgserver.Programs
	failpoint   failpoint.Hook
	folder      string // the folder of the store with the forks
	digestLimit int64  // total size of all databases in bytes up to which every row is read
	slotless    bool   // the forks have no replication slot, as nobody copies their log
}

// fork is a data folder with the state of a marker, whose server was shut down cleanly.
type fork struct {
	Dir      string             `json:"dir"` // name of the folder in forks/
	Inode    uint64             `json:"inode"`
	End      pgserver.Control   `json:"end,omitzero"`
	Contents *contents.Contents `json:"-"` // nil if they were not read
}

// path returns the path of a fork's folder.
func (fks *forks) path(dir string) string { return fks.store.path(fks.folder, dir) }

// place returns the position from which the log has the changes since the fork was shut down.
func (f fork) place() place { return place{f.End.TLI, f.End.Checkpoint, f.End.NextXID} }

// of makes a fork of a state: of a marker, or of a raw snapshot in which a server was shut down in order.
func (fks *forks) of(ctx context.Context, s state, f facts, fk *fork) error {
	if s.raw != nil {
		return fks.branch(ctx, *s.raw, f, fk)
	}
	return fks.build(ctx, s.marker, f, fk)
}

// branch makes a fork of a raw snapshot in which a server was shut down in order. The fork has a timeline of its own, because others may
// have written log on that of the snapshot.
func (fks *forks) branch(ctx context.Context, r raw, f facts, fk *fork) error {
	from, dir := fks.store.path("raws", r.Dir), fks.path(fk.Dir)
	if err := fks.store.room(ctx, from); err != nil {
		return err
	}
	if err := fks.failpoint.At("fork: copy"); err != nil {
		return err
	}
	c, err := asowner.CopyRaw.Call(ctx, fks.store.owner, asowner.Pair{A: from, B: dir})
	if err != nil {
		return err
	}
	if c.Hash != r.Hash {
		return errs.New(errs.Corrupt, "", "the kept files of snapshot %s are damaged", r.ID).WithHint("use another checkpoint")
	}
	was, err := fks.programs.ReadControl(ctx, dir)
	f.System = was.System // the snapshot may be of another cluster than the live one: from a remote
	if err == nil {
		err = fks.equip(ctx, r.Conf, dir)
	}
	if err == nil {
		err = fks.promote(ctx, marker{place: place{TLI: was.TLI}}, f, fk)
	}
	if err == nil {
		fk.Inode, err = asowner.Inode(dir)
	}
	return err
}

// build makes a fork of m beside the live server, which has the facts f.
func (fks *forks) build(ctx context.Context, m marker, f facts, fk *fork) error {
	b, err := fks.bases.nearest(ctx, m, f.Segments)
	if err != nil {
		return err
	}
	if err := fks.store.room(ctx, fks.store.path("bases", b.ID)); err != nil {
		return err
	}
	checked := make(chan error, 1)
	go func() { checked <- fks.bases.check(ctx, b) }() // while the log is replayed
	err = fks.grow(ctx, m, f, b, fk)
	if damage := <-checked; errs.KindOf(damage) == errs.Corrupt || err == nil {
		err = errs.Also(damage, err)
	}
	if err == nil {
		fk.Inode, err = asowner.Inode(fks.path(fk.Dir))
	}
	return err
}

// grow clones the base backup b and promotes the clone at m.
func (fks *forks) grow(ctx context.Context, m marker, f facts, b wal.Base, fk *fork) error {
	dir := fks.path(fk.Dir)
	if err := fks.failpoint.At("fork: clone"); err != nil {
		return err
	}
	err := fks.clone(ctx, m, b, dir)
	if err == nil {
		err = fks.failpoint.At("fork: replay")
	}
	var was pgserver.Control
	if err == nil {
		was, err = fks.programs.ReadControl(ctx, dir)
	}
	if err != nil {
		return err
	}
	f.System = was.System // the live one may be of a remote, and the marker from before that
	return fks.promote(ctx, m, f, fk)
}

// promote starts a server in a prepared folder, which replays the log up to m, and to its end if m has no restore point, begins a new
// timeline, reads the contents, and shuts the server down.
func (fks *forks) promote(ctx context.Context, m marker, f facts, fk *fork) error {
	s, err := fks.launch(ctx, m, f, fks.path(fk.Dir))
	if err != nil {
		return err
	}
	if err = fks.failpoint.At("fork: look"); err == nil {
		err = fks.look(ctx, s, m, f, fk)
	}
	if e := s.End(ctx, err == nil); err == nil {
		err = e
	}
	if err == nil {
		err = fks.failpoint.At("fork: make durable")
	}
	if err != nil {
		return err
	}
	return fks.makeDurable(ctx, f, fk)
}

// look checks the fork's timeline, makes the replication slot if necessary, and reads the contents of the fork.
func (fks *forks) look(ctx context.Context, s *replay.Server, m marker, f facts, fk *fork) error {
	now, err := s.Timeline(ctx)
	if err != nil {
		return err
	}
	if now <= m.TLI {
		return errs.New(errs.Internal, "", "the fork of timeline %d is on timeline %d", m.TLI, now)
	}
	if !fks.archive.filledBy(f) && !fks.slotless {
		if err := s.Run(ctx, makeSlot); err != nil {
			return err
		}
	}
	fk.Contents, err = contents.Read(ctx, s.Connect, fks.digestLimit)
	return err
}

// makeDurable makes the stopped fork durable, and saves its timeline's history in the archive.
func (fks *forks) makeDurable(ctx context.Context, f facts, fk *fork) (err error) {
	dir := fks.path(fk.Dir)
	if fk.End, err = fks.programs.ReadControl(ctx, dir); err != nil {
		return err
	}
	if fk.End.State != pgserver.ShutDown || fk.End.System != f.System {
		return errs.New(errs.Internal, "", "the fork of cluster %s is %q, of cluster %s", f.System, fk.End.State, fk.End.System)
	}
	history := fk.End.TLI.HistoryFile()
	tidy := asowner.Arrangement{Dir: dir, Drop: []string{"postmaster.opts", "backup_label.old", "recovery.signal", hbaFile}, Sync: true}
	if f.ArchiveMode != "off" { // the server's archiver then archives the history too once the fork is live
		tidy.Files = map[string][]byte{filepath.Join("pg_wal", "archive_status", history+".ready"): nil}
	}
	if err := fks.store.arrange(ctx, tidy); err != nil {
		return err
	}
	// From the moment the history is saved, no other fork gets this timeline. The fork's finished log files are saved too,
	// because its server does not archive them later.
	end := fk.End.Segments.Name(fk.End.TLI, fk.End.Segments.Number(fk.End.Checkpoint))
	return fks.archive.save(ctx, asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), History: history, End: end})
}

// kept returns the folder that was swapped out at the snapshot id, if the folder is unchanged since.
func (fks *forks) kept(ctx context.Context, id snap.SnapshotID) (fk fork, found bool, err error) {
	var k kept
	if err := fks.records.get("kept", string(id), &k); errors.Is(err, fs.ErrNotExist) {
		return fk, false, nil
	} else if err != nil {
		return fk, false, err
	}
	dir := fks.store.path("forks", k.Dir)
	if n, err := asowner.Inode(dir); err != nil || n != k.Inode {
		return fk, false, err
	}
	now, err := fks.programs.ReadControl(ctx, dir)
	if err != nil || !now.Same(k.End) || now.State != pgserver.ShutDown {
		return fk, false, nil // the log is replayed instead
	}
	return fork{Dir: k.Dir, Inode: k.Inode, End: k.End}, true, nil
}

// visit calls read on a temporary copy of a marker's state.
func (fks *forks) visit(ctx context.Context, m marker, f facts, read func(session.Connecter) error) error {
	b, err := fks.bases.nearest(ctx, m, f.Segments)
	if err != nil {
		return err
	}
	if err := fks.store.room(ctx, fks.store.path("bases", b.ID)); err != nil {
		return err
	}
	dir := fks.store.path("forks", randomHex(8))
	err = fks.clone(ctx, m, b, dir)
	if err == nil {
		err = fks.read(ctx, m, f, dir, read)
	}
	return errs.Also(err, fks.store.remove(ctx, dir))
}

// read starts a server in the clone in dir, calls read while the server is paused at the marker, and stops the server.
func (fks *forks) read(ctx context.Context, m marker, f facts, dir string, read func(session.Connecter) error) error {
	s, err := fks.launch(ctx, m, f, dir, "recovery_target_action=pause", "hot_standby=on")
	if err != nil {
		return err
	}
	err = pgserver.Await(ctx, func() (bool, error) {
		select {
		case <-s.Ended():
			return false, s.Died(ctx)
		default:
		}
		c, err := s.Connect(ctx, "postgres")
		if err != nil {
			return false, err
		}
		defer c.Close()
		var state string
		err = c.Row(ctx, "SELECT pg_get_wal_replay_pause_state()", &state)
		return state == "paused", err // the server has reached the marker
	})
	if err == nil {
		err = read(s.Connect)
	}
	return errs.Also(err, s.End(context.WithoutCancel(ctx), false))
}

// clone makes a folder whose server, once started, replays the log from b up to m.
func (fks *forks) clone(ctx context.Context, m marker, b wal.Base, dir string) error {
	if _, err := asowner.Copy.Call(ctx, fks.store.owner, asowner.ClusterCopy{From: fks.store.path("bases", b.ID), To: dir}); err != nil {
		return err
	}
	return fks.equip(ctx, m.Conf, dir)
}

// equip gives a data folder a recorded configuration, or leaves it its own if conf is "", and has its server replay the log.
func (fks *forks) equip(ctx context.Context, conf, dir string) error {
	a := asowner.Arrangement{Dir: dir, Files: map[string][]byte{"recovery.signal": nil}}
	if conf != "" {
		var files map[string][]byte
		if err := fks.records.get("conf", conf, &files); err != nil {
			return errs.Wrap(errs.Corrupt, "", err)
		}
		a.Drop = asowner.Configured
		for _, name := range asowner.Configured {
			if data, found := files[name]; found {
				a.Files[name] = data
			}
		}
	}
	return fks.store.arrange(ctx, a)
}

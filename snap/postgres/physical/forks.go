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
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// forks are data folders beside the live one, each made for a marker: a clone of the nearest base, in which a server
// of its own replays the log up to the marker. Restores exchange the live folder with one; comparisons only read it.
type forks struct {
	store       *store
	records     *records
	archive     *archive
	bases       *bases
	programs    pgserver.Programs
	failpoint   failpoint.Hook
	digestLimit int64 // up to what size of all databases together their rows are read
}

// fork is a data folder that holds a marker's state and was shut down in order.
type fork struct {
	Dir      string             `json:"dir"` // its name in forks/
	Inode    uint64             `json:"inode"`
	End      pgserver.Control   `json:"end,omitzero"`
	Contents *contents.Contents `json:"-"` // nil when its server was not asked
}

// place returns where reading the log begins for what was changed since the fork was shut down.
func (f fork) place() place { return place{f.End.TLI, f.End.Checkpoint, f.End.NextXID} }

// build makes a fork of m beside the live server, which f describes.
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
		fk.Inode, err = asowner.Inode(fks.store.path("forks", fk.Dir))
	}
	return err
}

// grow clones the base, replays the log up to m on a new timeline, looks at what
// came out, and shuts it down.
func (fks *forks) grow(ctx context.Context, m marker, f facts, b wal.Base, fk *fork) error {
	dir := fks.store.path("forks", fk.Dir)
	if err := fks.failpoint.At("fork: clone"); err != nil {
		return err
	}
	err := fks.clone(ctx, m, b, dir)
	if err == nil {
		err = fks.failpoint.At("fork: replay")
	}
	if err != nil {
		return err
	}
	s, err := fks.launch(ctx, m, f, dir)
	if err != nil {
		return err
	}
	err = fks.look(ctx, s, m, f, fk)
	if e := s.end(ctx, err == nil); err == nil {
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

// look asks the fork's server what it holds.
func (fks *forks) look(ctx context.Context, s *forkServer, m marker, f facts, fk *fork) error {
	now, err := s.timeline(ctx)
	if err != nil {
		return err
	}
	if now <= m.TLI {
		return errs.New(errs.Internal, "", "the fork of timeline %d is on timeline %d", m.TLI, now)
	}
	if !fks.archive.filledBy(f) {
		if err := s.makeSlot(ctx); err != nil {
			return err
		}
	}
	fk.Contents, err = contents.Read(ctx, s.connect, fks.digestLimit)
	return err
}

// makeDurable makes the stopped fork durable, and its timeline known for ever.
func (fks *forks) makeDurable(ctx context.Context, f facts, fk *fork) (err error) {
	dir := fks.store.path("forks", fk.Dir)
	if fk.End, err = fks.programs.ReadControl(ctx, dir); err != nil {
		return err
	}
	if fk.End.State != pgserver.ShutDown || fk.End.System != f.System {
		return errs.New(errs.Internal, "", "the fork of cluster %s is %q, of cluster %s", f.System, fk.End.State, fk.End.System)
	}
	history := fk.End.TLI.HistoryFile()
	tidy := asowner.Arrangement{Dir: dir, Drop: []string{"postmaster.opts", "backup_label.old", "recovery.signal", hbaFile}, Sync: true}
	if f.ArchiveMode != "off" { // whoever archives gets the history too, when the fork is live
		tidy.Files = map[string][]byte{filepath.Join("pg_wal", "archive_status", history+".ready"): nil}
	}
	if err := fks.store.arrange(ctx, tidy); err != nil {
		return err
	}
	// With the history the timeline is taken. What is finished of its log nobody will archive later.
	end := fk.End.Segments.Name(fk.End.TLI, fk.End.Segments.Number(fk.End.Checkpoint))
	return fks.archive.save(ctx, asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), History: history, End: end})
}

// kept gives the folder that was swapped out at m, if it is still as it was.
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
		return fk, false, nil // replay will do
	}
	return fork{Dir: k.Dir, Inode: k.Inode, End: k.End}, true, nil
}

// visit lets read have a look at a marker's state, in a copy that is gone afterwards.
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

// read lets read read the clone in dir, while its server stands at the marker.
func (fks *forks) read(ctx context.Context, m marker, f facts, dir string, read func(session.Connecter) error) error {
	s, err := fks.launch(ctx, m, f, dir, "recovery_target_action=pause", "hot_standby=on")
	if err != nil {
		return err
	}
	err = pgserver.Await(ctx, func() (bool, error) {
		select {
		case <-s.done:
			return false, s.died(ctx)
		default:
		}
		c, err := s.connect(ctx, "postgres")
		if err != nil {
			return false, err
		}
		defer c.Close()
		var state string
		err = c.Row(ctx, "SELECT pg_get_wal_replay_pause_state()", &state)
		return state == "paused", err // at the marker
	})
	if err == nil {
		err = read(s.connect)
	}
	return errs.Also(err, s.end(context.WithoutCancel(ctx), false))
}

// clone makes a folder that replays the log from b up to m once it is started.
func (fks *forks) clone(ctx context.Context, m marker, b wal.Base, dir string) error {
	var conf map[string][]byte
	if err := fks.records.get("conf", m.Conf, &conf); err != nil {
		return errs.Wrap(errs.Corrupt, "", err)
	}
	files := map[string][]byte{"recovery.signal": nil}
	for _, name := range asowner.Configured {
		if data, found := conf[name]; found {
			files[name] = data
		}
	}
	if _, err := asowner.Copy.Call(ctx, fks.store.owner, asowner.ClusterCopy{From: fks.store.path("bases", b.ID), To: dir}); err != nil {
		return err
	}
	return fks.store.arrange(ctx, asowner.Arrangement{Dir: dir, Drop: asowner.Configured, Files: files})
}

package physical

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/own"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
)

// servedFolder is the folder in a cluster's store with the data of servers that forks of the app have for themselves, a folder for each.
const servedFolder = "served"

// ServedBy returns the facts that others need to run a server on a copy of the cluster: the folder for such copies, the server's
// programs and user, and the cluster's first role.
func (d *Driver) ServedBy(ctx context.Context) (folder string, at pgserver.Place, bootstrap string, err error) {
	err = d.Do(ctx, "look at cluster", func() error {
		f, err := d.present(ctx)
		bootstrap = f.Bootstrap
		return err
	})
	return d.store.path(servedFolder), pgserver.Place{Bin: d.cfg.Bin, Owner: d.cfg.Owner}, bootstrap, err
}

// present returns the facts of the server, or those that were recorded last if it is down.
func (d *Driver) present(ctx context.Context) (facts, error) {
	c, err := d.server.connect(ctx)
	if errs.KindOf(err) == errs.Unavailable {
		return d.records.known()
	}
	if err != nil {
		return facts{}, err
	}
	defer c.Close()
	f, err := d.server.inspect(ctx, c)
	if err != nil || d.left {
		return f, err
	}
	return f, d.archive.collect(ctx, c, f)
}

// SeedServer makes the data of a server of a fork's own, with the state of a snapshot. See [snap.ServerSource].
func (d *Driver) SeedServer(ctx context.Context, name string, id snap.SnapshotID) error {
	const op = "copy cluster for a fork"
	if !database.ValidName(name) {
		return errs.New(errs.Invalid, op, "%q is not a name", name)
	}
	return d.Do(ctx, op, func() error { return d.seed(ctx, name, id) })
}

func (d *Driver) seed(ctx context.Context, name string, id snap.SnapshotID) error {
	s, err := d.records.state(id)
	if err != nil {
		return err
	}
	if s.raw != nil && !s.raw.Whole {
		return errs.New(errs.Unsupported, "", "snapshot %s has the cluster's files as they lay there, and no server is known to run in them", id).
			WithHint("fork another checkpoint")
	}
	f, err := d.present(ctx)
	if err != nil {
		return err
	}
	dir := d.store.path(servedFolder, name)
	if err := d.store.remove(ctx, dir); err != nil {
		return err
	}
	for _, made := range []asowner.NewFolder{{Path: d.store.path(servedFolder), Old: true}, {Path: dir}} {
		if _, err := asowner.Mkdir.Call(ctx, d.store.owner, made); err != nil {
			return err
		}
	}
	fks := *d.forks
	fks.folder, fks.digestLimit, fks.slotless = filepath.Join(servedFolder, name), -1, true
	if err := fks.of(ctx, s, f, &fork{Dir: own.ClusterData}); err != nil {
		return errs.Also(err, d.store.remove(ctx, dir))
	}
	return d.store.arrange(ctx, asowner.Arrangement{Dir: dir, Sync: true, Files: own.ClusterFiles()})
}

// AdoptServer stores the state of a server that SeedServer made the data of, and that was shut down in order, as a snapshot. See
// [snap.ServerSource].
func (d *Driver) AdoptServer(ctx context.Context, name string, as snap.SnapshotID) (snap.Snapshot, error) {
	const op = "adopt the cluster of a fork"
	if !database.ValidName(name) || !database.ValidName(string(as)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q or %q is not a name", name, as)
	}
	var r raw
	err := d.Do(ctx, op, func() (err error) {
		r, err = d.adopt(ctx, name, as)
		return err
	})
	if err != nil {
		return snap.Snapshot{}, err
	}
	return snap.Snapshot{ID: r.ID, Driver: driverName, Quiesced: true, Created: r.Created}, nil
}

func (d *Driver) adopt(ctx context.Context, name string, as snap.SnapshotID) (r raw, err error) {
	from := d.store.path(servedFolder, name, own.ClusterData)
	f, err := d.records.known()
	if err != nil {
		return r, err
	}
	now, err := d.server.ReadControl(ctx, from)
	if err != nil {
		return r, err
	}
	if now.System != f.System || now.State != pgserver.ShutDown {
		return r, errs.New(errs.Conflict, "", "the fork's server was not shut down in order: its cluster %s is %q", now.System, now.State).
			WithHint("try again")
	}
	r = raw{ID: as, Dir: randomHex(8), Ran: true, Whole: true, Quiesced: true, Created: time.Now().UTC()}
	dir := d.store.path("raws", r.Dir)
	got, err := d.raws.copy(ctx, from, dir)
	if err != nil {
		return r, err
	}
	r.Hash = got.Hash
	if r.Conf, err = d.configuration(ctx, f); err != nil {
		return r, errs.Also(err, d.store.remove(ctx, dir))
	}
	err = errors.Join(ctx.Err(), d.cfg.Failpoint.At("adopt server: record"))
	if err == nil {
		err = d.records.put("raws", string(as), r)
	}
	if err != nil {
		return r, errs.Also(err, d.store.remove(ctx, dir))
	}
	return r, nil
}

// configuration records the cluster's present configuration, and returns its name. It returns "" if the data folder lacks it.
func (d *Driver) configuration(ctx context.Context, f facts) (string, error) {
	files, err := asowner.ReadConf.Call(ctx, d.store.owner, d.cfg.DataDir)
	if err != nil && !asowner.Absent(err) {
		return "", err
	}
	_, auto := files["postgresql.auto.conf"]
	if _, main := files["postgresql.conf"]; !auto || f.Inside && !main {
		return "", nil // the folder is broken
	}
	return d.records.keepConf(files)
}

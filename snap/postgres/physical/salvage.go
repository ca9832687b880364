package physical

import (
	"context"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/database"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/pgserver"
)

// Salvage stops the server and keeps everything in the place of the data folder byte by byte: a folder in which no server can
// be started, a file, a link, or nothing.
func (d *Driver) Salvage(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "keep the files of cluster"
	if !database.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	var r raw
	err := d.Do(ctx, op, func() (err error) {
		r, err = d.salvage(ctx, req)
		return err
	})
	if err != nil {
		return snap.Snapshot{}, err
	}
	return snap.Snapshot{ID: r.ID, Driver: driverName, Hash: r.Hash, Quiesced: true, Raw: true, Created: r.Created, Warnings: r.Warnings}, nil
}

func (d *Driver) salvage(ctx context.Context, req snap.CaptureRequest) (r raw, err error) {
	d.marks.hangUp()
	r = raw{ID: req.ID, Quiesced: true, Created: time.Now().UTC(), Ran: d.server.Status(ctx, d.cfg.DataDir) != ""}
	if err := d.raws.room(ctx, d.cfg.DataDir); err != nil { // while the server still runs
		return r, err
	}
	if r.Ran {
		if err := d.records.put(".", haltedRecord, r); err != nil {
			return r, err
		}
	}
	if err := d.cfg.Failpoint.At("salvage: stop"); err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errs.Also(err, d.raws.start(context.WithoutCancel(ctx), &r))
		}
	}()
	if err := d.server.Stop(ctx); err != nil {
		return r, err
	}
	dir := randomHex(8)
	got, err := d.raws.copy(ctx, d.cfg.DataDir, d.store.path("raws", dir))
	if err != nil {
		return r, err
	}
	r.Hash, r.Stamp, r.Warnings = got.Hash, got.Stamp, got.Warnings()
	if got.There {
		r.Dir = dir
	}
	if err := errors.Join(ctx.Err(), d.cfg.Failpoint.At("salvage: record")); err != nil {
		return r, err
	}
	return r, d.records.put("raws", string(r.ID), r)
}

// Recall returns the recorded programs and owner of the cluster with this StateDir. It serves a driver whose cluster has no
// data folder to [Locate].
func Recall(stateDir string) (p pgserver.Place, found bool) {
	w, err := known.WardOf(stateDir)
	if err != nil || w.Store == "" {
		return p, false
	}
	return pgserver.Place{Bin: w.Bin, Owner: privsep.User{UID: w.UID, GID: w.GID}}, true
}

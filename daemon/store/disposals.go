package store

import (
	"context"
	"database/sql"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// DisposalKind says what kind of thing a disposal names.
type DisposalKind string

// The kinds of disposals.
const (
	DisposeSnapshot   DisposalKind = "snapshot"   // a driver's
	DisposeRestore    DisposalKind = "restore"    // what drivers keep of a switch
	DisposeCheckpoint DisposalKind = "checkpoint" // its description in the content store
	DisposeApp        DisposalKind = "app"        // the same of an app
	DisposePinned     DisposalKind = "pinned"     // a copy of files over which folders of the app's forks are mounted, by its path; it goes with the last of them
)

// Disposal is the durable order to drop one stored thing. Nothing is dropped without one.
type Disposal struct {
	Kind  DisposalKind
	ID    string
	AppID ipc.AppID
	Layer snap.Layer // of a snapshot
	Cause string
}

// PutDisposals stores disposals. They have no effect on things that a checkpoint refers to.
func (s *Store) PutDisposals(ctx context.Context, list ...Disposal) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return putDisposals(ctx, tx, list) })
}

func putDisposals(ctx context.Context, tx *sql.Tx, list []Disposal) error {
	for _, d := range list {
		_, err := tx.ExecContext(ctx, `INSERT INTO disposals (kind, id, app_id, layer, cause, at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`, d.Kind, d.ID, d.AppID, d.Layer, d.Cause, time.Now().UnixNano())
		if err != nil {
			return err
		}
	}
	return nil
}

// EndDisposals removes disposals, because the things they name are gone or in use.
func (s *Store) EndDisposals(ctx context.Context, list ...Disposal) error {
	if len(list) == 0 {
		return nil
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, d := range list {
			if err := endDisposal(ctx, tx, d); err != nil {
				return err
			}
		}
		return nil
	})
}

func endDisposal(ctx context.Context, tx *sql.Tx, d Disposal) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM disposals WHERE kind = ? AND id = ?`, d.Kind, d.ID)
	return err
}

// Disposals returns all disposals. A damaged row is errs.Corrupt, because it might name the wrong
// thing.
func (s *Store) Disposals(ctx context.Context) ([]Disposal, error) {
	return query(ctx, s.r, `SELECT kind, id, app_id, layer, cause, `+intact("disposals")+` FROM disposals ORDER BY at, kind, id`,
		func(rows *sql.Rows) (d Disposal, err error) {
			var whole bool
			if err = rows.Scan(&d.Kind, &d.ID, &d.AppID, &d.Layer, &d.Cause, &whole); err == nil && !whole {
				err = errs.New(errs.Corrupt, "", "the record of something to remove is damaged, so nothing was removed").WithHint(rebuildHint)
			}
			return d, err
		})
}

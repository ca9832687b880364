package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Operation is the record of an operation under way, which must be finished or undone after a
// crash.
type Operation struct {
	ID    ipc.OperationID
	AppID ipc.AppID
	Kind  string // the daemon's word for it
	Plan  []byte // JSON, the daemon's own
}

// PutOperation stores an operation or its new plan, together with disposals of what the operation
// is going to make.
func (s *Store) PutOperation(ctx context.Context, op Operation, at time.Time, makes ...Disposal) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO operations (id, app_id, kind, plan, created_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET plan = excluded.plan`,
			op.ID, op.AppID, op.Kind, string(op.Plan), at.UnixNano())
		return errs.Also(err, putDisposals(ctx, tx, makes))
	})
}

// EndOperation deletes an operation, and stores a disposal of what drivers may still keep of its
// restores.
func (s *Store) EndOperation(ctx context.Context, id ipc.OperationID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		var app ipc.AppID
		err := tx.QueryRowContext(ctx, `DELETE FROM operations WHERE id = ? RETURNING app_id`, id).Scan(&app)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return errs.Also(err, putDisposals(ctx, tx, []Disposal{{Kind: DisposeRestore, ID: string(id), AppID: app, Cause: "the operation ended"}}))
	})
}

// Operations returns the operations under way, oldest first.
func (s *Store) Operations(ctx context.Context) ([]Operation, error) {
	return query(ctx, s.r, `SELECT id, app_id, kind, plan, `+intact("operations")+` FROM operations ORDER BY created_at, id`,
		func(rows *sql.Rows) (op Operation, err error) {
			var whole bool
			if err = rows.Scan(&op.ID, &op.AppID, &op.Kind, &op.Plan, &whole); err == nil && !whole {
				err = damaged("operation " + string(op.ID))
			}
			return op, err
		})
}

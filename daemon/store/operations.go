package store

import (
	"context"
	"database/sql"
	"time"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

// Operation is something under way: what must be finished or undone after a crash.
type Operation struct {
	ID    ipc.OperationID
	AppID ipc.AppID
	Kind  string // the daemon's word for it
	Plan  []byte // JSON, the daemon's own
}

// PutOperation writes down an operation, or its new plan.
func (s *Store) PutOperation(ctx context.Context, op Operation, at time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO operations (id, app_id, kind, plan, created_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET plan = excluded.plan`,
			op.ID, op.AppID, op.Kind, string(op.Plan), at.UnixNano())
		return err
	})
}

// EndOperation strikes an operation off.
func (s *Store) EndOperation(ctx context.Context, id ipc.OperationID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM operations WHERE id = ?`, id)
		return err
	})
}

// Operations lists what is under way, oldest first.
func (s *Store) Operations(ctx context.Context) ([]Operation, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT id, app_id, kind, plan FROM operations ORDER BY created_at, id`)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "read records", err)
	}
	defer rows.Close()
	var ops []Operation
	for rows.Next() {
		var op Operation
		if err := rows.Scan(&op.ID, &op.AppID, &op.Kind, &op.Plan); err != nil {
			return nil, errs.Wrap(errs.Failed, "read records", err)
		}
		ops = append(ops, op)
	}
	return ops, errs.Wrap(errs.Failed, "read records", rows.Err())
}

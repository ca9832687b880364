package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"mulligan/ipc"
	"mulligan/ipc/errs"
	"mulligan/snap"
)

// Snapshot is one layer's part of a checkpoint.
type Snapshot struct {
	Layer    snap.Layer
	ID       snap.SnapshotID
	Driver   string
	Hash     snap.Hash
	Position string
	Quiesced bool
}

// Checkpoint is a checkpoint with its snapshots.
type Checkpoint struct {
	ipc.Checkpoint
	Seq       int64 // grows with each one made
	Snapshots []Snapshot
}

// Snapshot finds the part that layer has in c.
func (c Checkpoint) Snapshot(layer snap.Layer) (Snapshot, bool) {
	for _, s := range c.Snapshots {
		if s.Layer == layer {
			return s, true
		}
	}
	return Snapshot{}, false
}

// PutCheckpoint inserts a checkpoint, or replaces it (its seq stays), together
// with its snapshots; with op not empty, that operation ends in the same transaction.
func (s *Store) PutCheckpoint(ctx context.Context, c Checkpoint, op ipc.OperationID) error {
	body, err := json.Marshal(c.Checkpoint)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `
			INSERT INTO checkpoints (id, app_id, pinned, body, created_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET pinned = excluded.pinned, body = excluded.body`,
			c.ID, c.AppID, c.Pinned, string(body), c.CreatedAt.UnixNano()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM snapshots WHERE checkpoint_id = ?`, c.ID); err != nil {
			return err
		}
		for _, p := range c.Snapshots {
			if _, err := tx.ExecContext(ctx, `
				INSERT INTO snapshots (checkpoint_id, layer, id, driver, hash, position, quiesced) VALUES (?, ?, ?, ?, ?, ?, ?)`,
				c.ID, p.Layer, p.ID, p.Driver, p.Hash[:], p.Position, p.Quiesced); err != nil {
				return err
			}
		}
		if op == "" {
			return nil
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM operations WHERE id = ?`, op)
		return err
	})
}

// SetPinned pins or unpins.
func (s *Store) SetPinned(ctx context.Context, id ipc.CheckpointID, pinned bool) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE checkpoints SET pinned = ? WHERE id = ?`, pinned, id)
		return err
	})
}

// DeleteCheckpoints forgets checkpoints; their snapshots are then garbage to
// the drivers. A pinned one stays, and is errs.Pinned: nothing is deleted then.
func (s *Store) DeleteCheckpoints(ctx context.Context, ids ...ipc.CheckpointID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			var pinned bool
			err := tx.QueryRowContext(ctx, `DELETE FROM checkpoints WHERE id = ? RETURNING pinned`, id).Scan(&pinned)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			if pinned {
				return errs.New(errs.Pinned, "", "%s is pinned", id).WithHint("unpin it first: mulligan unpin %s", id)
			}
		}
		return nil
	})
}

// Checkpoint reads one; errs.NotFound where the app has no such checkpoint.
func (s *Store) Checkpoint(ctx context.Context, app ipc.AppID, id ipc.CheckpointID) (Checkpoint, error) {
	cps, err := s.checkpoints(ctx, `c.app_id = ? AND c.id = ?`, app, id)
	if err != nil {
		return Checkpoint{}, err
	}
	if len(cps) == 0 {
		return Checkpoint{}, errs.New(errs.NotFound, "", "no checkpoint %.64q", string(id)).
			WithHint("mulligan list shows those there are")
	}
	return cps[0], nil
}

// Checkpoints lists an app's checkpoints, newest first.
func (s *Store) Checkpoints(ctx context.Context, app ipc.AppID) ([]Checkpoint, error) {
	return s.checkpoints(ctx, `c.app_id = ?`, app)
}

func (s *Store) checkpoints(ctx context.Context, where string, args ...any) ([]Checkpoint, error) {
	rows, err := s.r.QueryContext(ctx, `
		SELECT c.seq, c.pinned, c.body, p.layer, p.id, p.driver, p.hash, p.position, p.quiesced
		FROM checkpoints c LEFT JOIN snapshots p ON p.checkpoint_id = c.id
		WHERE `+where+` ORDER BY c.seq DESC, p.layer`, args...)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "read records", err)
	}
	defer rows.Close()
	cps, err := scanCheckpoints(rows)
	return cps, errs.Wrap(errs.Failed, "read records", err)
}

func scanCheckpoints(rows *sql.Rows) ([]Checkpoint, error) {
	var cps []Checkpoint
	for rows.Next() {
		var seq int64
		var pinned bool
		var body string
		var layer, id, driver, position sql.NullString
		var hash []byte
		var quiesced sql.NullBool
		if err := rows.Scan(&seq, &pinned, &body, &layer, &id, &driver, &hash, &position, &quiesced); err != nil {
			return nil, err
		}
		if len(cps) == 0 || cps[len(cps)-1].Seq != seq {
			c := Checkpoint{Seq: seq}
			if err := json.Unmarshal([]byte(body), &c.Checkpoint); err != nil {
				return nil, errs.Wrap(errs.Corrupt, "", err)
			}
			c.Pinned = pinned
			cps = append(cps, c)
		}
		if !layer.Valid {
			continue
		}
		p := Snapshot{
			Layer: snap.Layer(layer.String), ID: snap.SnapshotID(id.String), Driver: driver.String,
			Position: position.String, Quiesced: quiesced.Bool,
		}
		if len(hash) != len(p.Hash) {
			return nil, errs.New(errs.Corrupt, "", "snapshot %s has a hash of %d bytes", p.ID, len(hash))
		}
		copy(p.Hash[:], hash)
		c := &cps[len(cps)-1]
		c.Snapshots = append(c.Snapshots, p)
	}
	return cps, rows.Err()
}

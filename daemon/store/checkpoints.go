package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Snapshot is the snapshot of one layer in a checkpoint.
type Snapshot struct {
	Layer    snap.Layer
	ID       snap.SnapshotID
	Driver   string
	Hash     snap.Hash
	Position string
	Quiesced bool
	Raw      bool // the snapshot holds the raw bytes of a state that could not be read
	// Rehearsal is the result of the snapshot's rehearsal; nil if there was none.
	Rehearsal *Rehearsal
}

// Rehearsal is the result of restoring a snapshot beside the live state.
type Rehearsal struct {
	At      time.Time `json:"at"`
	Shape   string    `json:"shape"`             // as the driver returned it
	Problem string    `json:"problem,omitempty"` // why the snapshot could not be restored; "" if it could
}

// Rehearsed reports whether the snapshot could be restored beside the live state; nil
// is that nobody tried.
func (s Snapshot) Rehearsed() *bool {
	if s.Rehearsal == nil {
		return nil
	}
	could := s.Rehearsal.Problem == ""
	return &could
}

// snapshotText is a Snapshot as JSON has it.
type snapshotText struct {
	Layer    snap.Layer      `json:"layer"`
	ID       snap.SnapshotID `json:"id"`
	Driver   string          `json:"driver"`
	Hash     string          `json:"hash"` // in hex
	Position string          `json:"position"`
	Quiesced bool            `json:"quiesced"`
	Raw      bool            `json:"raw,omitempty"`

	Rehearsal *Rehearsal `json:"rehearsal,omitempty"`
}

// MarshalJSON writes the hash in hex.
func (s Snapshot) MarshalJSON() ([]byte, error) {
	return json.Marshal(snapshotText{s.Layer, s.ID, s.Driver, hex.EncodeToString(s.Hash[:]), s.Position, s.Quiesced, s.Raw, s.Rehearsal})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Snapshot) UnmarshalJSON(p []byte) error {
	var t snapshotText
	if err := json.Unmarshal(p, &t); err != nil {
		return err
	}
	hash, err := hex.DecodeString(t.Hash)
	if err != nil || len(hash) != len(s.Hash) {
		return fmt.Errorf("snapshot %s has the hash %q", t.ID, t.Hash)
	}
	*s = Snapshot{t.Layer, t.ID, t.Driver, snap.Hash(hash), t.Position, t.Quiesced, t.Raw, t.Rehearsal}
	return nil
}

// Checkpoint is a checkpoint with its snapshots.
type Checkpoint struct {
	ipc.Checkpoint
	Seq       int64 // increases with each new checkpoint
	Rev       int64 // revision: increases with each change of the record
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

// PutCheckpoint inserts a checkpoint with its snapshots, or replaces it and keeps its Seq. If op
// is not empty, the same transaction ends that operation. Disposals of the checkpoint's snapshots
// are removed; snapshots that the old record had and the new one lacks get disposals.
func (s *Store) PutCheckpoint(ctx context.Context, c Checkpoint, op ipc.OperationID) error {
	body, err := json.Marshal(c.Checkpoint)
	if err != nil {
		return err
	}
	if c.Snapshots == nil {
		c.Snapshots = []Snapshot{}
	}
	snapshots, err := json.Marshal(c.Snapshots)
	if err != nil {
		return err
	}
	var replaced []Disposal
	switch old, err := s.Checkpoint(ctx, c.AppID, c.ID); errs.KindOf(err) {
	case "":
		replaced = old.replacedBy(c)
	case errs.NotFound:
	default:
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `
			INSERT INTO checkpoints (seq, id, app_id, pinned, body, snapshots, rev, created_at) VALUES (nullif(?, 0), ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET pinned = excluded.pinned, body = excluded.body, snapshots = excluded.snapshots, rev = excluded.rev`,
			c.Seq, c.ID, c.AppID, c.Pinned, string(body), string(snapshots), c.Rev, c.CreatedAt.UnixNano()); err != nil {
			return err
		}
		for _, p := range c.Snapshots {
			if err := endDisposal(ctx, tx, Disposal{Kind: DisposeSnapshot, ID: string(p.ID)}); err != nil {
				return err
			}
		}
		if err := putDisposals(ctx, tx, replaced); err != nil || op == "" {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM operations WHERE id = ?`, op)
		return err
	})
}

// replacedBy are the snapshots of c that its new record does not have.
func (c Checkpoint) replacedBy(next Checkpoint) (list []Disposal) {
	for _, d := range c.disposals("replaced by a newer one") {
		kept := slices.ContainsFunc(next.Snapshots, func(s Snapshot) bool { return string(s.ID) == d.ID })
		if d.Kind == DisposeSnapshot && !kept {
			list = append(list, d)
		}
	}
	return list
}

// disposals are what is to be dropped with c.
func (c Checkpoint) disposals(cause string) []Disposal {
	list := []Disposal{{Kind: DisposeCheckpoint, ID: string(c.ID), AppID: c.AppID, Cause: cause}}
	for _, s := range c.Snapshots {
		list = append(list, Disposal{Kind: DisposeSnapshot, ID: string(s.ID), AppID: c.AppID, Layer: s.Layer, Cause: cause + " " + string(c.ID)})
	}
	return list
}

// NextSeq is the seq of the next checkpoint to be made.
func (s *Store) NextSeq(ctx context.Context) (seq int64, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT 1 + max(ifnull((SELECT max(seq) FROM checkpoints), 0),
		ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'checkpoints'), 0))`).Scan(&seq)
	return seq, reading(err)
}

// SetPinned pins or unpins a checkpoint.
func (s *Store) SetPinned(ctx context.Context, id ipc.CheckpointID, pinned bool) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE checkpoints SET pinned = ?, rev = rev + 1 WHERE id = ?`, pinned, id)
		return err
	})
}

// DeleteCheckpoints deletes checkpoints. The same transaction stores disposals of their snapshots
// and the audit entry. If one is pinned, nothing is deleted and the error is errs.Pinned. A
// checkpoint with a damaged record stays, because its snapshots are not known.
func (s *Store) DeleteCheckpoints(ctx context.Context, entry *ipc.AuditEntry, ids ...ipc.CheckpointID) error {
	cause := "delete"
	if entry != nil {
		cause = entry.Action
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			cps, err := readCheckpoints(ctx, tx, `id = ?`, id)
			if err != nil {
				return err
			}
			if len(cps) == 0 {
				continue
			}
			switch {
			case cps[0].Damaged != "":
				return damaged("checkpoint " + string(id))
			case cps[0].Pinned:
				return errs.New(errs.Pinned, "", "%s is pinned", id).WithHint("unpin it first: `mulligan unpin %s`", id)
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM checkpoints WHERE id = ?`, id); err != nil {
				return err
			}
			if err := putDisposals(ctx, tx, cps[0].disposals(cause)); err != nil {
				return err
			}
		}
		return appendAudit(ctx, tx, entry)
	})
}

// Checkpoint returns a checkpoint; errs.NotFound if the app has no such checkpoint, errs.Corrupt
// if its record is damaged.
func (s *Store) Checkpoint(ctx context.Context, app ipc.AppID, id ipc.CheckpointID) (Checkpoint, error) {
	cps, err := readCheckpoints(ctx, s.r, `app_id = ? AND id = ?`, app, id)
	if err != nil {
		return Checkpoint{}, err
	}
	if len(cps) == 0 {
		return Checkpoint{}, errs.New(errs.NotFound, "", "no checkpoint %.64q", string(id)).
			WithHint("`mulligan list` shows the checkpoints")
	}
	if cps[0].Damaged != "" {
		return Checkpoint{}, damaged("checkpoint " + string(id))
	}
	return cps[0], nil
}

// Checkpoints returns an app's checkpoints, newest first. A damaged record yields a checkpoint
// that has only its ids, and the damage in Damaged.
func (s *Store) Checkpoints(ctx context.Context, app ipc.AppID) ([]Checkpoint, error) {
	return readCheckpoints(ctx, s.r, `app_id = ?`, app)
}

// AllCheckpoints returns the checkpoints of all apps, oldest first.
func (s *Store) AllCheckpoints(ctx context.Context) ([]Checkpoint, error) {
	cps, err := readCheckpoints(ctx, s.r, `1`)
	slices.Reverse(cps)
	return cps, err
}

func readCheckpoints(ctx context.Context, db querier, where string, args ...any) ([]Checkpoint, error) {
	return query(ctx, db, `SELECT seq, id, app_id, pinned, body, snapshots, rev, `+intact("checkpoints")+` FROM checkpoints
		WHERE `+where+` ORDER BY seq DESC`, scanCheckpoint, args...)
}

func scanCheckpoint(rows *sql.Rows) (c Checkpoint, err error) {
	var id, app, body, snapshots string
	var pinned, whole bool
	if err := rows.Scan(&c.Seq, &id, &app, &pinned, &body, &snapshots, &c.Rev, &whole); err != nil {
		return c, err
	}
	if whole {
		whole = json.Unmarshal([]byte(body), &c.Checkpoint) == nil && json.Unmarshal([]byte(snapshots), &c.Snapshots) == nil
	}
	if !whole {
		c = Checkpoint{Seq: c.Seq}
		c.ID, c.AppID, c.Damaged = ipc.CheckpointID(id), ipc.AppID(app), "its record is damaged: "+rebuildHint
		return c, nil
	}
	c.Pinned = pinned
	return c, nil
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"mulligan/ipc"
	"mulligan/snap"
)

// Pointer is a conversation's checkpoint.
type Pointer struct {
	MessageID string
	Turn      int64 // seq of the last turn before it
	SetAt     time.Time
}

// PutPointer sets a conversation's checkpoint.
func (s *Store) PutPointer(ctx context.Context, app ipc.AppID, conversation string, p Pointer) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO conversations (app_id, id, message_id, turn, set_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (app_id, id) DO UPDATE SET message_id = excluded.message_id, turn = excluded.turn, set_at = excluded.set_at`,
			app, conversation, p.MessageID, p.Turn, p.SetAt.UnixNano())
		return err
	})
}

// Pointer returns a conversation's checkpoint, or the zero Pointer.
func (s *Store) Pointer(ctx context.Context, app ipc.AppID, conversation string) (p Pointer, err error) {
	var at int64
	var whole bool
	err = s.r.QueryRowContext(ctx, `SELECT message_id, turn, set_at, `+intact("conversations")+` FROM conversations WHERE app_id = ? AND id = ?`, app, conversation).
		Scan(&p.MessageID, &p.Turn, &at, &whole)
	if errors.Is(err, sql.ErrNoRows) {
		return Pointer{}, nil
	}
	if err == nil && !whole {
		return Pointer{}, damaged("a conversation's checkpoint")
	}
	p.SetAt = time.Unix(0, at).UTC()
	return p, reading(err)
}

// ConversationTurns returns a conversation's turns, oldest first, without their calls.
func (s *Store) ConversationTurns(ctx context.Context, app ipc.AppID, conversation string) ([]Turn, error) {
	return s.turns(ctx, `WHERE app_id = ? AND body ->> '$.conversation_id' = ? ORDER BY seq`, app, conversation)
}

// OwnWrites is a part of the journal in which mulligan itself wrote.
type OwnWrites struct {
	Seq        int64
	Start, End snap.Mark // End is "" while it goes on
}

// BeginOwnWrites records that mulligan writes from start on.
func (s *Store) BeginOwnWrites(ctx context.Context, app ipc.AppID, start snap.Mark, at time.Time) (seq int64, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `INSERT INTO own_writes (app_id, start, end, at) VALUES (?, ?, '', ?) RETURNING seq`,
			app, start, at.UnixNano()).Scan(&seq)
	})
	return seq, err
}

// EndOwnWrites records that the writes begun as seq ended at end. With seq 0 it ends all that a
// killed daemon began.
func (s *Store) EndOwnWrites(ctx context.Context, app ipc.AppID, seq int64, end snap.Mark) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE own_writes SET end = ? WHERE app_id = ? AND end = '' AND (seq = ? OR ? = 0)`, end, app, seq, seq)
		return err
	})
}

// OwnWrites returns the parts of the journal in which mulligan wrote, oldest first.
func (s *Store) OwnWrites(ctx context.Context, app ipc.AppID) ([]OwnWrites, error) {
	return query(ctx, s.r, `SELECT seq, start, end, `+intact("own_writes")+` FROM own_writes WHERE app_id = ? ORDER BY seq`, func(rows *sql.Rows) (w OwnWrites, err error) {
		var whole bool
		if err = rows.Scan(&w.Seq, &w.Start, &w.End, &whole); err == nil && !whole {
			err = damaged("what mulligan wrote")
		}
		return w, err
	}, app)
}

// DropOwnWrites forgets what mulligan wrote before that time.
func (s *Store) DropOwnWrites(ctx context.Context, app ipc.AppID, before time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM own_writes WHERE app_id = ? AND end <> '' AND at < ?`, app, before.UnixNano())
		return err
	})
}

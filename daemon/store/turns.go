package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Turn is a turn with where it lies in the files' journal.
type Turn struct {
	ipc.Turn
	Seq   int64     `json:"-"`
	Start snap.Mark `json:"start"`
	End   snap.Mark `json:"end"` // "" until it is known
	// Ending: the turn is over, and its end could not be recorded yet.
	Ending bool `json:"ending,omitempty"`
}

// EndBy returns where the turn ended: at now if that is not known because it is open, and "" if it never will be.
func (t *Turn) EndBy(now snap.Mark) snap.Mark {
	if t.End == "" && t.EndedAt == nil {
		return now
	}
	return t.End
}

// Call is a tool call with where it lies in the files' journal.
type Call struct {
	ipc.Call
	Start snap.Mark `json:"start"`
	End   snap.Mark `json:"end"`
	// Untold: nobody said that it ended; it did so with its turn.
	Untold bool `json:"untold,omitempty"`
}

// PutTurn inserts a turn, or replaces it; t.Seq is set. While the turn is open, what NoteEnding set stays: t may have been read before.
func (s *Store) PutTurn(ctx context.Context, t *Turn) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `
			INSERT INTO turns (app_id, id, open, body) VALUES (?, ?, ?, ?)
			ON CONFLICT (app_id, id) DO UPDATE SET open = excluded.open, body = CASE
				WHEN excluded.open = 1 AND json_extract(turns.body, '$.ending') THEN
					json_set(excluded.body, '$.ending', json('true'), '$.end', coalesce(nullif(json_extract(turns.body, '$.end'), ''), json_extract(excluded.body, '$.end')))
				ELSE excluded.body END
			RETURNING seq`, t.AppID, t.ID, t.EndedAt == nil, string(body)).Scan(&t.Seq)
	})
}

// NoteEnding sets Ending of a turn, if it is open, and End, unless it is set.
func (s *Store) NoteEnding(ctx context.Context, app ipc.AppID, id ipc.TurnID, end snap.Mark) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE turns
			SET body = json_set(body, '$.ending', json('true'), '$.end', coalesce(nullif(json_extract(body, '$.end'), ''), ?))
			WHERE app_id = ? AND id = ? AND open = 1 AND `+intact("turns"), string(end), app, id)
		return err
	})
}

// PutCall inserts a call of a turn, or replaces it.
func (s *Store) PutCall(ctx context.Context, turn int64, c Call) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO calls (turn, id, body) VALUES (?, ?, ?)
			ON CONFLICT (turn, id) DO UPDATE SET body = excluded.body`, turn, c.ID, string(body))
		return err
	})
}

// Turn reads one; errs.NotFound where the app has no such turn.
func (s *Store) Turn(ctx context.Context, app ipc.AppID, id ipc.TurnID) (Turn, error) {
	turns, err := s.turns(ctx, `WHERE app_id = ? AND id = ?`, app, id)
	if err != nil {
		return Turn{}, err
	}
	if len(turns) == 0 {
		return Turn{}, errs.New(errs.NotFound, "", "no turn %.64q", string(id)).WithHint("`mulligan turns --ids` lists them")
	}
	return turns[0], nil
}

// Turns lists an app's newest turns, newest first, without their calls; limit 0 is all.
func (s *Store) Turns(ctx context.Context, app ipc.AppID, limit int) ([]Turn, error) {
	if limit <= 0 {
		limit = -1
	}
	return s.turns(ctx, `WHERE app_id = ? ORDER BY seq DESC LIMIT ?`, app, limit)
}

// TurnName is what people call a turn.
type TurnName struct{ Title, Agent string }

// TurnNames returns the names of an app's turns by their ids. A damaged row has none.
func (s *Store) TurnNames(ctx context.Context, app ipc.AppID) (map[string]TurnName, error) {
	type named struct {
		id string
		TurnName
	}
	list, err := query(ctx, s.r, `SELECT id, coalesce(json_extract(body, '$.title'), ''), coalesce(json_extract(body, '$.agent'), '')
		FROM turns WHERE app_id = ? AND `+intact("turns"), func(rows *sql.Rows) (n named, err error) {
		err = rows.Scan(&n.id, &n.Title, &n.Agent)
		return n, err
	}, app)
	names := make(map[string]TurnName, len(list))
	for _, n := range list {
		names[n.id] = n.TurnName
	}
	return names, err
}

// ForgetTitles deletes the titles of an app's turns.
func (s *Store) ForgetTitles(ctx context.Context, app ipc.AppID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE turns SET body = json_set(body, '$.title', '')
			WHERE app_id = ? AND json_extract(body, '$.title') <> '' AND `+intact("turns"), app)
		return err
	})
}

// OpenTurns lists the turns that have not ended, oldest first.
func (s *Store) OpenTurns(ctx context.Context, app ipc.AppID) ([]Turn, error) {
	return s.turns(ctx, `WHERE app_id = ? AND open = 1 ORDER BY seq`, app)
}

func (s *Store) turns(ctx context.Context, where string, args ...any) ([]Turn, error) {
	return query(ctx, s.r, `SELECT seq, body, `+intact("turns")+` FROM turns `+where, func(rows *sql.Rows) (t Turn, err error) {
		var seq int64
		err = scanBody(rows, "a turn", &t, &seq)
		t.Seq = seq
		return t, err
	}, args...)
}

// Calls lists the calls of a turn, oldest first.
func (s *Store) Calls(ctx context.Context, turn int64) ([]Call, error) {
	return query(ctx, s.r, `SELECT body, `+intact("calls")+` FROM calls WHERE turn = ? ORDER BY seq`, func(rows *sql.Rows) (c Call, err error) {
		err = scanBody(rows, "a call", &c)
		return c, err
	}, turn)
}

// scanBody reads a row of some columns, a JSON text, and whether the row is intact.
func scanBody(rows *sql.Rows, what string, into any, cols ...any) error {
	var body string
	var intact bool
	if err := rows.Scan(append(cols, &body, &intact)...); err != nil {
		return err
	}
	if !intact {
		return damaged(what)
	}
	return corrupt(json.Unmarshal([]byte(body), into))
}

// Call finds the newest call of that id in an app, and its turn.
func (s *Store) Call(ctx context.Context, app ipc.AppID, id ipc.CallID) (Turn, Call, error) {
	var seq int64
	err := s.r.QueryRowContext(ctx, `
		SELECT t.seq FROM calls c JOIN turns t ON t.seq = c.turn
		WHERE t.app_id = ? AND c.id = ? ORDER BY c.seq DESC LIMIT 1`, app, id).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return Turn{}, Call{}, errs.New(errs.NotFound, "", "no call %.64q", string(id)).WithHint("`mulligan turns` lists the turns and their calls")
	}
	if err != nil {
		return Turn{}, Call{}, reading(err)
	}
	turns, err := s.turns(ctx, `WHERE seq = ?`, seq)
	if err != nil || len(turns) == 0 {
		return Turn{}, Call{}, err
	}
	calls, err := s.Calls(ctx, seq)
	if err != nil {
		return Turn{}, Call{}, err
	}
	for _, c := range calls {
		if c.ID == id {
			return turns[0], c, nil
		}
	}
	return Turn{}, Call{}, errs.New(errs.NotFound, "", "no call %.64q", string(id))
}

// DropTurns forgets an app's ended turns that are older than seq, and the checkpoints of conversations that lie before seq and have no turn any more.
func (s *Store) DropTurns(ctx context.Context, app ipc.AppID, seq int64) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM turns WHERE app_id = ? AND open = 0 AND seq < ?`, app, seq); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `
			DELETE FROM conversations WHERE app_id = ? AND turn < ? AND id NOT IN
				(SELECT body ->> '$.conversation_id' FROM turns WHERE app_id = ?)`, app, seq, app)
		return err
	})
}

// querier is the database, or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query reads the rows of a statement.
func query[T any](ctx context.Context, db querier, q string, scan func(*sql.Rows) (T, error), args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, reading(err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, reading(err)
		}
		all = append(all, v)
	}
	return all, reading(rows.Err())
}

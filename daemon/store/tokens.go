package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

// Token is a token with what only the daemon needs to know.
type Token struct {
	ipc.Token
	OwnerUID int
	Hash     []byte // SHA-256 of its secret
}

// PutToken adds a token.
func (s *Store) PutToken(ctx context.Context, t Token) error {
	body, err := json.Marshal(t.Token)
	if err != nil {
		return err
	}
	var expires int64
	if t.ExpiresAt != nil {
		expires = t.ExpiresAt.UnixNano()
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tokens (id, owner_uid, hash, expires_at, body) VALUES (?, ?, ?, ?, ?)`,
			t.ID, t.OwnerUID, t.Hash, expires, string(body))
		return err
	})
}

// Token returns a token, or errs.NotFound.
func (s *Store) Token(ctx context.Context, id ipc.TokenID) (Token, error) {
	all, err := s.tokens(ctx, `WHERE id = ?`, id)
	if err != nil {
		return Token{}, err
	}
	if len(all) == 0 {
		return Token{}, errs.New(errs.NotFound, "", "no token %.64q", string(id)).WithHint("`mulligan token list` shows the tokens")
	}
	return all[0], nil
}

// Tokens lists all tokens, oldest first.
func (s *Store) Tokens(ctx context.Context) ([]Token, error) {
	return s.tokens(ctx, `ORDER BY rowid`)
}

func (s *Store) tokens(ctx context.Context, where string, args ...any) ([]Token, error) {
	return query(ctx, s.r, `SELECT owner_uid, hash, body, `+intact("tokens")+` FROM tokens `+where, func(rows *sql.Rows) (t Token, err error) {
		err = scanBody(rows, "a token", &t.Token, &t.OwnerUID, &t.Hash)
		return t, err
	}, args...)
}

// DeleteToken deletes a token, which is invalid from then on.
func (s *Store) DeleteToken(ctx context.Context, id ipc.TokenID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM tokens WHERE id = ?`, id)
		return err
	})
}

// DropTokens deletes the tokens that expired before a time.
func (s *Store) DropTokens(ctx context.Context, before time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM tokens WHERE expires_at > 0 AND expires_at < ?`, before.UnixNano())
		return err
	})
}

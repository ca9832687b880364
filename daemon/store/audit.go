package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Audit appends an entry and sets its Seq. Each entry's hash covers the hash before it, so an
// entry that is changed or removed makes all later hashes wrong.
func (s *Store) Audit(ctx context.Context, e ipc.AuditEntry) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return appendAudit(ctx, tx, &e) })
}

// appendAudit appends an entry within the transaction that makes the change. A nil entry is
// ignored.
func appendAudit(ctx context.Context, tx *sql.Tx, entry *ipc.AuditEntry) error {
	if entry == nil {
		return nil
	}
	e := *entry
	e.Seq = 0 // Seq has a column of its own
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	seq, prev, err := lastAudit(ctx, tx)
	if err != nil {
		return err
	}
	hash := chain(prev, seq+1, e.At.UnixNano(), string(e.AppID), string(body))
	_, err = tx.ExecContext(ctx, `INSERT INTO audit (seq, at, app_id, body, hash) VALUES (?, ?, ?, ?, ?)`,
		seq+1, e.At.UnixNano(), e.AppID, string(body), hash[:])
	return err
}

func lastAudit(ctx context.Context, tx *sql.Tx) (seq int64, hash []byte, err error) {
	err = tx.QueryRowContext(ctx, `SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1`).Scan(&seq, &hash)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil, nil
	}
	return seq, hash, err
}

// chain is the hash of an entry: BLAKE3 over the hash before it and its fields,
// each text behind its length.
func chain(prev []byte, seq, at int64, app, body string) (sum snap.Hash) {
	h := blake3.New()
	b := append([]byte{}, prev...)
	b = binary.BigEndian.AppendUint64(b, uint64(seq))
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	for _, text := range []string{app, body} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(text)))
		b = append(b, text...)
	}
	h.Write(b)
	h.Sum(sum[:0])
	return sum
}

// AuditTrail returns an app's newest entries, newest first; limit 0 means all. An entry that does
// not match its hash says so in its result, and does not hide the others.
func (s *Store) AuditTrail(ctx context.Context, app ipc.AppID, limit int) ([]ipc.AuditEntry, error) {
	if limit <= 0 {
		limit = -1
	}
	return query(ctx, s.r, `
		SELECT e.seq, e.at, e.app_id, e.body, e.hash, before.hash FROM audit e LEFT JOIN audit before ON before.seq = e.seq - 1
		WHERE e.app_id = ? ORDER BY e.seq DESC LIMIT ?`,
		func(rows *sql.Rows) (e ipc.AuditEntry, err error) {
			var seq, at int64
			var app, body string
			var hash, prev []byte
			if err = rows.Scan(&seq, &at, &app, &body, &hash, &prev); err != nil {
				return e, err
			}
			if want := chain(prev, seq, at, app, body); string(want[:]) != string(hash) || json.Unmarshal([]byte(body), &e) != nil {
				e = ipc.AuditEntry{At: time.Unix(0, at).UTC(), AppID: ipc.AppID(app), Action: "unknown",
					Result: string(errs.Corrupt) + ": this entry was changed, or the entry before it is missing"}
			}
			e.Seq = seq
			return e, nil
		}, app, limit)
}

// VerifyAudit recomputes the chain over the entries of all apps. It returns their number and the
// last hash, for a comparison with a hash noted earlier. An entry that was changed, added or
// removed is errs.Corrupt.
func (s *Store) VerifyAudit(ctx context.Context) (entries int64, head snap.Hash, err error) {
	rows, err := s.r.QueryContext(ctx, `SELECT seq, at, app_id, body, hash FROM audit ORDER BY seq`)
	if err != nil {
		return 0, head, reading(err)
	}
	defer rows.Close()
	var prev []byte
	for rows.Next() {
		var seq, at int64
		var app, body string
		var hash []byte
		if err := rows.Scan(&seq, &at, &app, &body, &hash); err != nil {
			return 0, head, reading(err)
		}
		entries++
		head = chain(prev, seq, at, app, body)
		if seq != entries || string(hash) != string(head[:]) {
			return entries, head, errs.New(errs.Corrupt, "verify audit", "entry %d was changed, or an entry before it is missing", entries).
				WithHint("compare it with a backup of mulligan.db")
		}
		prev = hash
	}
	return entries, head, reading(rows.Err())
}

// Package store keeps the daemon's records in SQLite: apps, checkpoints with
// their snapshots, operations under way, and the audit trail. It knows nothing
// of what they mean. Every method is one transaction, durable when it returns.
package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the database/sql driver

	"mulligan/ipc/errs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is the open database. Writes go through one connection, one at a time;
// reads don't wait for them.
type Store struct {
	w, r *sql.DB
	seam func(step string) error // called before each commit
}

// Open opens the database at path, making it or bringing it to the present
// schema as needed. One of a newer schema is errs.Unsupported and left alone.
// seam, if not nil, is called before each change becomes durable, for tests to
// fail or to stop at.
func Open(ctx context.Context, path string, seam func(step string) error) (*Store, error) {
	const op = "open records"
	if err := touch(path); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	w, err := sql.Open("sqlite", dsn(path, "_txlock=immediate"))
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	w.SetMaxOpenConns(1)
	r, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		w.Close()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	r.SetMaxOpenConns(4)
	s := &Store{w: w, r: r, seam: seam}
	if err := s.migrate(ctx); err != nil {
		s.Close()
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return s, nil
}

// touch makes sure that the file exists and is the daemon's alone: SQLite gives
// its -wal and -shm the mode of the database.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func dsn(path string, more ...string) string {
	q := "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)"
	for _, m := range more {
		q += "&" + m
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q}).String()
}

// Close closes the database; closing twice is harmless.
func (s *Store) Close() error {
	rerr := s.r.Close()
	if err := s.w.Close(); err != nil {
		return err
	}
	return rerr
}

// migrate runs the migrations that the database has not seen: file number n
// brings it from version n-1 to n.
func (s *Store) migrate(ctx context.Context) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	var have int
	if err := s.w.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	if have > len(files) {
		return errs.New(errs.Unsupported, "", "the records have version %d and this program knows %d", have, len(files)).
			WithHint("install the newer mulligand again, or use another state folder")
	}
	for i, f := range files[have:] {
		text, err := migrations.ReadFile(f)
		if err != nil {
			return err
		}
		err = s.tx(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, string(text)); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", have+i+1))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tx runs f in a write transaction.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.w.BeginTx(ctx, nil)
	if err != nil {
		return errs.Wrap(errs.Failed, "write records", err)
	}
	defer tx.Rollback() // no effect after Commit
	if err := f(tx); err != nil {
		return errs.Wrap(errs.Failed, "write records", err)
	}
	if s.seam != nil {
		if err := s.seam("write records"); err != nil {
			return errs.Wrap(errs.Failed, "write records", err)
		}
	}
	return errs.Wrap(errs.Failed, "write records", tx.Commit())
}

// Check asks SQLite whether the database is sound.
func (s *Store) Check(ctx context.Context) error {
	var word string
	if err := s.r.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&word); err != nil {
		return errs.Wrap(errs.Failed, "check records", err)
	}
	if word != "ok" {
		return errs.New(errs.Corrupt, "check records", "%s", word)
	}
	return nil
}

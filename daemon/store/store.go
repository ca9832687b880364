// Package store keeps the daemon's records in SQLite: apps, checkpoints with
// their snapshots, operations under way, and the audit trail. It does not interpret
// them. Every method is one transaction, durable when it returns.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"modernc.org/sqlite" // the database/sql driver
	lib "modernc.org/sqlite/lib"

	"mulligan/errs"
	"mulligan/failpoint"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is the open database. Writes go through one connection, one at a time;
// reads don't wait for them.
type Store struct {
	w, r      *sql.DB
	failpoint failpoint.Hook // called before each commit

	Repair *Repair // what was wrong with the database when it was opened; nil: nothing
}

// Open opens the database at path. It creates it, or migrates it to the present schema, if
// necessary. A newer schema is errs.Unsupported and stays unchanged; any damage is errs.Corrupt
// (see [OpenOrRepair]). Tests pass a hook that is called before each commit.
func Open(ctx context.Context, path string, hook failpoint.Hook) (*Store, error) {
	s, err := openFile(ctx, path, hook)
	if err != nil && s != nil {
		s.Close()
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "open records", err)
	}
	return s, nil
}

// openFile opens and checks the database. When the check fails, openFile returns
// the open store with the error, and the caller must close it.
func openFile(ctx context.Context, path string, hook failpoint.Hook) (*Store, error) {
	if err := touch(path); err != nil {
		return nil, err
	}
	w, err := sql.Open("sqlite", dsn(path, "_txlock=immediate"))
	if err != nil {
		return nil, err
	}
	w.SetMaxOpenConns(1)
	r, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, errs.Also(err, w.Close())
	}
	r.SetMaxOpenConns(4)
	s := &Store{w: w, r: r}
	if err := s.bringUp(ctx); err != nil {
		return s, suspect(ctx, err)
	}
	s.failpoint = hook
	return s, nil
}

// bringUp migrates the database and checks all of it, before and after.
func (s *Store) bringUp(ctx context.Context) error {
	if err := s.checkPages(ctx); err != nil {
		return err
	}
	if err := (migrator{s}).run(ctx); err != nil {
		return err
	}
	if err := s.checkSchema(ctx); err != nil {
		return err
	}
	if err := s.checkSums(ctx); err != nil {
		return err
	}
	// A bit of the header says that the database is not to be written to.
	err := s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE schema_version SET version = version`)
		return err
	})
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == lib.SQLITE_FULL {
		return nil // a daemon on a full disk can still roll back to what there is
	}
	return err
}

// suspect turns an error about what is in the file into errs.Corrupt. Errors of the
// disk, of permissions or of the context stay what they are.
func suspect(ctx context.Context, err error) error {
	var own *errs.Error
	var theirs *sqlite.Error
	switch {
	case ctx.Err() != nil:
		return err
	case errors.As(err, &theirs):
		switch theirs.Code() & 0xff {
		case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_NOMEM, lib.SQLITE_INTERRUPT, lib.SQLITE_IOERR, lib.SQLITE_FULL,
			lib.SQLITE_CANTOPEN, lib.SQLITE_PERM, lib.SQLITE_AUTH:
			return err
		}
	case errors.As(err, &own) && own.Kind == errs.Unsupported:
		return err
	}
	return &errs.Error{Kind: errs.Corrupt, Err: err, Hint: "stop mulligand and run: `mulligand rebuild`"}
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

// checkPages has SQLite check the database's structure: each page, each index.
func (s *Store) checkPages(ctx context.Context) error {
	var word string
	if err := s.w.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&word); err != nil {
		return err
	}
	if word != "ok" {
		return errs.New(errs.Corrupt, "", "%s", word)
	}
	return nil
}

// checkSchema compares the schema with that of a database just made.
func (s *Store) checkSchema(ctx context.Context) error {
	wantSchema.Do(func() {
		w, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			return
		}
		defer w.Close()
		w.SetMaxOpenConns(1)
		fresh := &Store{w: w, r: w}
		if (migrator{fresh}).run(context.Background()) == nil {
			wantSchema.text, _ = fresh.schema(context.Background())
		}
	})
	have, err := s.schema(ctx)
	if err == nil && !slices.Equal(have, wantSchema.text) {
		err = errs.New(errs.Corrupt, "", "the database's schema is not the expected one")
	}
	return err
}

// wantSchema is the schema of a database just made.
var wantSchema struct {
	sync.Once
	text []string
}

func (s *Store) schema(ctx context.Context) ([]string, error) {
	return query(ctx, s.w, `SELECT type || ' ' || name || ' ' || tbl_name || ' ' || ifnull(sql, '') FROM sqlite_schema ORDER BY 1`,
		func(rows *sql.Rows) (text string, err error) {
			err = rows.Scan(&text)
			return text, err
		})
}

// tx runs f in a write transaction.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	const op = "write records"
	tx, err := s.w.BeginTx(ctx, nil)
	if err != nil {
		return classify(op, err)
	}
	defer tx.Rollback() // no effect after Commit
	if err := f(tx); err != nil {
		return classify(op, err)
	}
	if err := s.failpoint.At(op); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return classify(op, tx.Commit())
}

// Check looks for damage anywhere in the database.
func (s *Store) Check(ctx context.Context) error {
	err := s.checkPages(ctx)
	if err == nil {
		err = s.checkSchema(ctx)
	}
	if err == nil {
		err = s.checkSums(ctx)
	}
	return classify("check records", err)
}

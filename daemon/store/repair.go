package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/failpoint"
)

// Repair says what was wrong with the database and what was done about it.
type Repair struct {
	Problem string
	Kept    []string // the damaged files, by the names that they are kept under
	Anew    bool     // the database was made anew from the rows that could be read
	Lost    []string // what of the database could not be read
}

// OpenOrRepair opens the database like Open, and makes a damaged one anew from the rows
// that can be read and are as they were written. The damaged files are kept beside the new one.
// Store.Repair says what was repaired. The caller must then add the apps and checkpoints that
// the content stores describe and the database lacks.
func OpenOrRepair(ctx context.Context, path string, hook failpoint.Hook, how How) (*Store, error) {
	const op = "open records"
	k := keeper{path: path, how: how, stamp: ".damaged-" + how.Now.UTC().Format("20060102T150405.000000000Z")}
	if err := k.log(); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	s, err := openFile(ctx, path, hook)
	if err == nil && how.Anew || errs.KindOf(err) == errs.Corrupt {
		s, err = k.anew(ctx, s, err, hook)
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if k.rep.Problem != "" || k.rep.Anew {
		s.Repair = &k.rep
	}
	return s, nil
}

// How says how a database may be repaired.
type How struct {
	Now time.Time // a part of the kept files' names
	// Described: the content stores have descriptions of apps and checkpoints. Without any,
	// a damaged database is made anew only where all of it can be read.
	Described bool
	Anew      bool // make it anew in any case
}

// keeper keeps damaged files.
type keeper struct {
	path, stamp string
	how         How
	rep         Repair
}

// log copies the write-ahead log aside if SQLite is not going to believe all of it.
func (k *keeper) log() error {
	wal := k.path + "-wal"
	what, err := walDamaged(wal)
	if err != nil || what != "" {
		return errs.Also(err, k.keepLog(what))
	}
	db, err := os.Stat(k.path)
	log, lerr := os.Stat(wal)
	if lerr == nil && log.Size() > 0 && (errors.Is(err, os.ErrNotExist) || err == nil && db.Size() == 0) {
		return k.keepLog("the database that it belongs to is gone")
	}
	return nil
}

func (k *keeper) keepLog(what string) error {
	k.rep.Problem = "the write-ahead log: " + what
	return k.keep("-wal")
}

// keep copies a file of the database beside it.
func (k *keeper) keep(suffix string) error {
	to := k.path + k.stamp + suffix
	info, err := os.Stat(k.path + suffix)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // there is nothing to keep
	}
	if err == nil {
		err = copyFile(k.path+suffix, to)
	}
	if err == nil {
		k.rep.Kept = append(k.rep.Kept, filepath.Base(to))
	}
	return err
}

// copyFile makes a durable copy; one that fails is taken away again.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err == nil {
		err = durable.Sync(filepath.Dir(to))
	}
	if err != nil {
		os.Remove(to)
	}
	return err
}

// anew replaces the database by a new one. s, if not nil, is the damaged database,
// still open: SQLite changes the files when it closes them, so anew copies them first.
func (k *keeper) anew(ctx context.Context, s *Store, why error, hook failpoint.Hook) (*Store, error) {
	var err error
	if len(k.rep.Kept) == 0 { // else the log is kept already
		err = k.keep("-wal")
	}
	err = errs.Also(err, k.keep(""))
	if s != nil {
		s.Close() // it is damaged: whether that works is of no interest
	}
	if err != nil {
		return nil, fmt.Errorf("mulligan.db could not be copied: %w", errs.Also(err, why))
	}
	if k.rep.Anew = true; why != nil {
		k.rep.Problem = why.Error()
	}
	next := k.path + ".new"
	if err := removeDatabase(next); err != nil {
		return nil, err
	}
	if err := k.salvage(ctx, next); err != nil {
		return nil, err
	}
	// The log of the damaged one must not meet the new one.
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(k.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if err := os.Rename(next, k.path); err != nil {
		return nil, err
	}
	if err := durable.Sync(filepath.Dir(k.path)); err != nil {
		return nil, err
	}
	return openFile(ctx, k.path, hook)
}

func removeDatabase(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// salvage makes a new database at next and puts in what can be read of the kept one.
func (k *keeper) salvage(ctx context.Context, next string) (err error) {
	copied := k.path + ".salvage" // SQLite changes what it reads: the kept files stay as they are
	if err := removeDatabase(copied); err != nil {
		return err
	}
	defer func() { err = errs.Also(err, removeDatabase(copied)) }()
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(k.path+k.stamp+suffix, copied+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	old, err := sql.Open("sqlite", dsnLoose(copied))
	if err != nil {
		return err
	}
	defer old.Close()
	old.SetMaxOpenConns(1)
	if !k.how.Described {
		return k.vacuum(ctx, old, next)
	}
	fresh, err := openFile(ctx, next, nil)
	if err == nil {
		err = fresh.Close()
	}
	if err != nil {
		return err
	}
	into, err := sql.Open("sqlite", dsnLoose(next))
	if err != nil {
		return err
	}
	into.SetMaxOpenConns(1)
	version := 0
	_ = old.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version) // of a database that cannot be read, all tables are tried
	for _, t := range append([]summed{{name: "audit", cols: []string{"seq", "at", "app_id", "body", "hash"}}}, tables...) {
		if version > 0 && version < t.from {
			continue // the database is older than the table
		}
		n, whole, err := copyRows(ctx, old, into, t)
		if err != nil {
			return errs.Also(err, into.Close())
		}
		if !whole {
			k.rep.Lost = append(k.rep.Lost, fmt.Sprintf("%s (%d rows were saved)", t.name, n))
		}
	}
	return into.Close()
}

// dsnLoose opens a database without foreign keys: rows are saved one by one.
func dsnLoose(path string) string {
	return strings.Replace(dsn(path), "foreign_keys(1)", "foreign_keys(0)", 1)
}

// vacuum makes the new database of one whose apps no content store knows: that of an
// older mulligan, say, where no row has a sum. All of it must be readable.
func (k *keeper) vacuum(ctx context.Context, old *sql.DB, next string) error {
	err := touch(next)
	if err == nil {
		_, err = old.ExecContext(ctx, `VACUUM INTO ?`, next) // which takes an empty file
	}
	if err == nil {
		var s *Store
		if s, err = openFile(ctx, next, nil); s != nil {
			err = errs.Also(err, s.Close())
		}
	}
	if err != nil {
		return errs.New(errs.Corrupt, "", "mulligan.db is damaged, and the content store has no copy of its records: %s (%v)", k.rep.Problem, err).
			WithHint("nothing was changed; put a backup of mulligan.db in its place, or what sqlite3's .recover makes of it")
	}
	return nil
}

// copyRows copies the rows of a table that can be read and are as they were written:
// from the first on as far as they can be read, then from the last on.
func copyRows(ctx context.Context, old, into *sql.DB, t summed) (n int, whole bool, err error) {
	tx, err := into.BeginTx(ctx, nil)
	if err != nil {
		return 0, false, err
	}
	defer tx.Rollback() // no effect after Commit
	test := "1"
	if len(t.key) > 0 {
		test = intact(t.name)
	}
	cols := strings.Join(quoted(t.cols), ", ")
	insert := fmt.Sprintf("INSERT OR IGNORE INTO %s (%s) VALUES (?%s)", t.name, cols, strings.Repeat(", ?", len(t.cols)-1))
	whole = true
	for _, order := range []string{"NOT INDEXED", "NOT INDEXED ORDER BY " + quoted(t.cols)[0] + " DESC"} {
		m, good, err := copySome(ctx, old, tx, fmt.Sprintf("SELECT %s, %s FROM %s %s", cols, test, t.name, order), insert, len(t.cols))
		if err != nil {
			return n, false, err
		}
		if n, whole = n+m, whole && good; whole {
			break
		}
	}
	return n, whole, tx.Commit()
}

// copySome inserts the rows of a query, until one cannot be read.
func copySome(ctx context.Context, old *sql.DB, tx *sql.Tx, read, insert string, cols int) (n int, whole bool, err error) {
	rows, err := old.QueryContext(ctx, read)
	if err != nil {
		return 0, false, ctx.Err()
	}
	defer rows.Close()
	whole = true
	for rows.Next() {
		values := make([]any, cols+1)
		into := make([]any, cols+1)
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return n, false, ctx.Err()
		}
		if good, ok := values[cols].(int64); !ok || good != 1 {
			whole = false
			continue
		}
		res, err := tx.ExecContext(ctx, insert, values[:cols]...)
		var e *sqlite.Error
		if errors.As(err, &e) && e.Code()&0xff == lib.SQLITE_CONSTRAINT { // it cannot have been written so
			whole = false
			continue
		}
		if err != nil {
			return n, false, err
		}
		added, err := res.RowsAffected()
		if err != nil {
			return n, false, err
		}
		n += int(added)
	}
	return n, whole && rows.Err() == nil, ctx.Err()
}

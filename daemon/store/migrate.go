package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"mulligan/errs"
)

// firstSummed is the version since which rows have sums, and the version is in the file twice.
const firstSummed = 6

// migrator brings a database to the version that this program knows.
type migrator struct{ *Store }

// run runs the migrations that the database has not seen: file number n
// brings it from version n-1 to n.
func (m migrator) run(ctx context.Context) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	have, err := m.version(ctx)
	if err != nil {
		return err
	}
	if have > len(files) {
		return errs.New(errs.Unsupported, "", "the records have version %d and this program knows %d", have, len(files)).
			WithHint("install the newer mulligand again, or use another state folder")
	}
	for i, f := range files[have:] {
		if err := m.step(ctx, f, have+i+1); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

// step runs the migration to version n.
func (m migrator) step(ctx context.Context, file string, n int) error {
	text, err := migrations.ReadFile(file)
	if err != nil {
		return err
	}
	return m.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return err
		}
		if err := addSums(ctx, tx, n); err != nil {
			return err
		}
		if n > firstSummed {
			if _, err := tx.ExecContext(ctx, `UPDATE schema_version SET version = ?`, n); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", n))
		return err
	})
}

// version reads the schema's version, from both places where it stands.
func (m migrator) version(ctx context.Context) (have int, err error) {
	if err := m.w.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, err
	}
	var table bool
	if err := m.w.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'").Scan(&table); err != nil {
		return 0, err
	}
	again := min(have, firstSummed-1)
	if table {
		if err := m.w.QueryRowContext(ctx, "SELECT version FROM schema_version").Scan(&again); err != nil {
			return 0, err
		}
	}
	if again != have {
		return 0, errs.New(errs.Corrupt, "", "the records have version %d in one place and %d in another", have, again)
	}
	return have, nil
}

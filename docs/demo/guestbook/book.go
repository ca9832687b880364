package main

import (
	"context"
	"database/sql"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// book is the guestbook's data.
type book struct{ db *sql.DB }

// entry is what one guest wrote.
type entry struct{ Name, Town, Message string }

// openBook opens the database, and lays it out when it is new. A table that is
// missing later is a fault to be seen, not to be papered over with an empty one.
func openBook(ctx context.Context, file string) (*book, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=foreign_keys(1)")
	if err != nil {
		return nil, err
	}
	b := &book{db}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return nil, b.giveUp(err)
	}
	if version > 0 {
		return b, nil
	}
	_, err = db.ExecContext(ctx, `
		BEGIN;
		CREATE TABLE guests (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, town TEXT NOT NULL);
		CREATE TABLE entries (id INTEGER PRIMARY KEY, guest INTEGER NOT NULL REFERENCES guests (id), message TEXT NOT NULL);
		PRAGMA user_version = 1;
		COMMIT`)
	if err != nil {
		return nil, b.giveUp(err)
	}
	return b, nil
}

// giveUp closes what a failed open leaves.
func (b *book) giveUp(err error) error {
	_ = b.close() // err says more
	return err
}

func (b *book) close() error { return b.db.Close() }

func (b *book) ping(ctx context.Context) error {
	var one int
	return b.db.QueryRowContext(ctx, "SELECT 1 FROM pragma_user_version").Scan(&one)
}

func (b *book) entries(ctx context.Context) ([]entry, error) {
	rows, err := b.db.QueryContext(ctx, "SELECT g.name, g.town, e.message FROM entries e JOIN guests g ON g.id = e.guest ORDER BY e.id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []entry
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.Name, &e.Town, &e.Message); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

func (b *book) sign(ctx context.Context, name, town, message string) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // of no effect after Commit
	if _, err := tx.ExecContext(ctx, "INSERT INTO guests (name, town) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", name, town); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO entries (guest, message) SELECT id, ? FROM guests WHERE name = ?", message, name); err != nil {
		return err
	}
	return tx.Commit()
}

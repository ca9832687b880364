package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// record is everything about the app that a rollback must bring back, each
// thing under a name and written out as text.
type record struct {
	code  string            // the commit that the workspace stands on
	files map[string]string // type, mode, size, mtime and content of each
	rows  map[string]string // of each table: its rows, and how it was made
	page  string            // what a visitor gets
}

// writeDown reads the app's present state, independently of mulligan.
func writeDown(ctx context.Context, s *stage) (record, error) {
	var r record
	var err error
	if r.code, err = s.git(ctx, "rev-parse", "HEAD"); err != nil {
		return r, err
	}
	if r.files, err = listing(s.workspace); err != nil {
		return r, err
	}
	if r.rows, err = tables(ctx, filepath.Join(s.workspace, database)); err != nil {
		return r, err
	}
	r.page, err = s.visit(ctx)
	return r, err
}

// listing describes everything below dir, .git and empty folders included. Two
// things are left out: the database's files, since their rows are compared, and
// dir itself, whose time of change they move.
func listing(dir string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || strings.HasPrefix(rel, database) {
			return err
		}
		all[rel], err = describe(path, e)
		return err
	})
	return all, err
}

func describe(path string, e fs.DirEntry) (string, error) {
	st, err := e.Info()
	if err != nil {
		return "", err
	}
	content := ""
	switch {
	case e.Type().IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(data)
		content = fmt.Sprintf(" %d bytes, sha256 %s", len(data), hex.EncodeToString(sum[:8]))
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		content = " → " + target
	}
	return fmt.Sprintf("%s %s%s", st.Mode(), st.ModTime().UTC().Format("2006-01-02T15:04:05.000000000"), content), nil
}

// openDatabase opens the app's database beside the app.
func openDatabase(file, mode string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?mode="+mode+"&_pragma=busy_timeout(5000)")
}

// tables dumps every table of a SQLite database.
func tables(ctx context.Context, file string) (_ map[string]string, err error) {
	db, err := openDatabase(file, "ro")
	if err != nil {
		return nil, err
	}
	defer db.Close() // it was only read
	made := map[string]string{}
	if err := each(ctx, db, "SELECT name, sql FROM sqlite_schema WHERE type = 'table'", func(v []any) {
		made[fmt.Sprint(v[0])] = fmt.Sprint(v[1])
	}); err != nil {
		return nil, err
	}
	dump := map[string]string{}
	for name, sql := range made {
		lines := []string{sql}
		err := each(ctx, db, `SELECT * FROM "`+name+`" ORDER BY rowid`, func(v []any) { lines = append(lines, fmt.Sprint(v...)) })
		if err != nil {
			return nil, err
		}
		dump[name] = strings.Join(lines, "\n")
	}
	return dump, nil
}

// each calls f with the values of each row that query gives.
func each(ctx context.Context, db *sql.DB, query string, f func([]any)) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	for rows.Next() {
		values, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		if err := rows.Scan(places...); err != nil {
			return err
		}
		f(values)
	}
	return rows.Err()
}

// differences says how r is not want, a line per thing; none when they are the same.
func (r record) differences(want record) []string {
	var d []string
	if r.code != want.code {
		d = append(d, fmt.Sprintf("code: %s, not %s", r.code, want.code))
	}
	d = append(d, compare("file", r.files, want.files)...)
	d = append(d, compare("table", r.rows, want.rows)...)
	if r.page != want.page {
		d = append(d, fmt.Sprintf("page: %q, not %q", r.page, want.page))
	}
	return d
}

func compare(kind string, got, want map[string]string) []string {
	var d []string
	names := maps.Clone(got)
	maps.Copy(names, want)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		g, isThere := got[name]
		w, should := want[name]
		switch {
		case !isThere:
			d = append(d, fmt.Sprintf("%s %s is gone", kind, name))
		case !should:
			d = append(d, fmt.Sprintf("%s %s is new", kind, name))
		case g != w:
			d = append(d, fmt.Sprintf("%s %s: %s, not %s", kind, name, g, w))
		}
	}
	return d
}

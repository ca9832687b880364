package duckdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Diff describes the changes of the database from one state to another.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) (list []snap.Change, err error) {
	const op = "compare database snapshots"
	err = d.Do(ctx, op, func() error {
		b := d.cfg.Store.Begin() // for the live state; it is never committed
		defer b.Discard()
		var sides [2]stored
		for i, id := range []snap.SnapshotID{from, to} {
			var root cas.Root
			var now database.State
			if id != "" {
				root, err = d.records.Snapshot(op, id)
			} else if now, err = (engine{d}).Read(ctx, b); err == nil {
				root.Hash = now.Node
			}
			if err == nil {
				sides[i], err = d.load(root)
			}
			if err != nil {
				return err
			}
		}
		list, err = d.changes(ctx, sides[0], sides[1])
		return err
	})
	return slices.DeleteFunc(list, func(c snap.Change) bool {
		return len(paths) > 0 && !slices.Contains(paths, c.Path)
	}), err
}

// changes describes the changes from a to b: of tables if a program can read them, and otherwise of the file.
func (d *Driver) changes(ctx context.Context, a, b stored) ([]snap.Change, error) {
	if a.hash() == b.hash() {
		return nil, nil
	}
	if len(d.cfg.Program) > 0 {
		before, err1 := d.describe(ctx, a)
		after, err2 := d.describe(ctx, b)
		if errors.Join(err1, err2) == nil {
			return database.Compare(before, after, "ALTER COLUMN"), nil
		}
	}
	c := snap.Change{Path: d.cfg.Path, Operation: snap.Modify, Summary: fmt.Sprintf("%s, was %s", humanize.IBytes(b.size()), humanize.IBytes(a.size()))}
	if len(a.Entries) == 0 {
		c.Operation = snap.Create
	} else if len(b.Entries) == 0 {
		c.Operation = snap.Delete
	}
	return []snap.Change{c}, ctx.Err()
}

func (s state) size() (n uint64) {
	for _, e := range s.Entries {
		n += uint64(e.Size)
	}
	return n
}

// askTime bounds the time for an answer of the program, and askMost its size in bytes.
const askTime, askMost = time.Minute, 16 << 20

// ask runs the program on a copy of a database with a statement, and decodes its answer.
func (d *Driver) ask(ctx context.Context, copied, sql string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.cfg.Program[0], slices.Concat(d.cfg.Program[1:], []string{copied, sql})...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent"}, time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = d.cfg.Owner.Start(cmd, privsep.Options{NoNewPrivs: true})
	}
	if err != nil {
		return err
	}
	err = json.NewDecoder(io.LimitReader(out, askMost)).Decode(into)
	cancel() // output after the rows is ignored
	_ = cmd.Wait()
	return err
}

const objectsSQL = `SELECT schema_name AS schema, table_name AS name, 'TABLE' AS kind, sql,
		(SELECT list({'Name': '"' || replace(column_name, '"', '""') || '"', 'Definition': '"' || replace(column_name, '"', '""') || '" ' || data_type ||
			CASE WHEN is_nullable THEN '' ELSE ' NOT NULL' END || coalesce(' DEFAULT ' || column_default, '')} ORDER BY column_index)
		FROM duckdb_columns() c WHERE c.table_oid = t.table_oid) AS columns FROM duckdb_tables() t WHERE NOT internal AND NOT temporary
	UNION ALL SELECT schema_name, view_name, 'VIEW', sql, NULL FROM duckdb_views() WHERE NOT internal AND NOT temporary
	UNION ALL SELECT schema_name, index_name, 'INDEX', sql, NULL FROM duckdb_indexes()
	UNION ALL SELECT schema_name, sequence_name, 'SEQUENCE', sql, NULL FROM duckdb_sequences() WHERE NOT temporary ORDER BY 1, 2`

// rowsSQL returns the number of a table's rows and the sum of their hashes, which does not depend on their order.
const rowsSQL = "SELECT count(*)::VARCHAR AS n, coalesce(sum(hash(t)::HUGEINT), 0)::VARCHAR AS sum FROM %s AS t"

// describe returns the objects of a stored database.
func (d *Driver) describe(ctx context.Context, s stored) (list []database.Object, err error) {
	dir, err := os.MkdirTemp("", "mulligan-duckdb-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // it is a copy
	var found []struct {
		Schema, Name, Kind, SQL string
		Columns                 []database.Column
	}
	copied := filepath.Join(dir, "db")
	for i, e := range s.Entries {
		f, err := os.OpenFile(copied+e.Suffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(d.write(s.contents[i], f), f.Chown(d.cfg.Owner.UID, d.cfg.Owner.GID), f.Close()); err != nil {
			return nil, err
		}
	}
	// The folder's owner is changed last, because until then only the daemon can put anything there.
	if err = os.Chown(dir, d.cfg.Owner.UID, d.cfg.Owner.GID); err == nil {
		err = d.ask(ctx, copied, objectsSQL, &found)
	}
	for _, f := range found {
		o := database.Object{Path: f.Schema + "." + f.Name, Kind: f.Kind, Name: quote(f.Schema) + "." + quote(f.Name), Create: f.SQL}
		if f.Kind == "TABLE" && err == nil {
			var rows [1]struct {
				N   int64 `json:",string"`
				Sum string
			}
			err = d.ask(ctx, copied, fmt.Sprintf(rowsSQL, o.Name), &rows)
			o.Table = &database.Table{Columns: f.Columns, Rows: database.Rows{N: rows[0].N, Sum: rows[0].Sum}}
		}
		list = append(list, o)
	}
	return list, err
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

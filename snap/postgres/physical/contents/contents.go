// Package contents reads the contents of a server's databases and compares two readings: briefly for the plan of a restore
// ([Read], [Differences]), and in SQL with the numbers of rows ([Relations], [Compare]).
package contents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/session"
)

// Contents are the contents of a server's databases.
type Contents struct {
	Databases []string `json:"databases"`
	Tables    []table  `json:"tables"`
	Rows      bool     `json:"rows"` // Count and Sum of the tables are set
}

// table is a relation with a name of its own: a table, view or sequence.
type table struct {
	DB, Schema, Name, Kind string
	Node                   int64  // number of its file; a rewritten table has another one
	Columns                string // digest of its columns
	Size                   int64  `json:"-"` // in bytes; left out of the digest because vacuum changes it
	Count                  int64
	Sum                    string
}

const tablesSQL = `SELECT n.nspname::text, c.relname::text, c.relkind::text, pg_relation_filenode(c.oid)::bigint, pg_relation_size(c.oid),
	(SELECT md5(coalesce(string_agg(attname || ' ' || atttypid || ' ' || atttypmod || ' ' || attnotnull, ',' ORDER BY attnum), ''))
	   FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relpersistence <> 't' AND c.relkind IN ('r', 'p', 'm', 'S', 'v', 'f')
	AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') ORDER BY 1, 2`

// Read reads the contents of all databases of a server. It also reads the rows if the databases have at most limit bytes
// together.
func Read(ctx context.Context, connect session.Connecter, limit int64) (*Contents, error) {
	c, err := connect(ctx, "postgres")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all := &Contents{}
	if all.Databases, err = c.Column(ctx, "SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1"); err != nil {
		return nil, err
	}
	var size int64
	if err := c.Row(ctx, "SELECT sum(pg_database_size(oid))::bigint FROM pg_database WHERE datallowconn AND NOT datistemplate", &size); err != nil {
		return nil, err
	}
	all.Rows = size <= limit
	for _, name := range all.Databases {
		if err := all.read(ctx, connect, name); err != nil {
			return nil, fmt.Errorf("database %q: %w", name, err)
		}
	}
	return all, nil
}

// read adds the relations of one database.
func (all *Contents) read(ctx context.Context, connect session.Connecter, database string) error {
	c, err := connect(ctx, database)
	if err != nil {
		return err
	}
	defer c.Close()
	rows, err := c.Query(ctx, tablesSQL)
	if err != nil {
		return session.Explain(err)
	}
	tables, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (t table, err error) {
		var node, size *int64
		t.DB = database
		err = r.Scan(&t.Schema, &t.Name, &t.Kind, &node, &size, &t.Columns)
		if node != nil {
			t.Node = *node
		}
		if size != nil {
			t.Size = *size
		}
		return t, err
	})
	if err != nil {
		return session.Explain(err)
	}
	for i := range tables {
		if t := &tables[i]; all.Rows && (t.Kind == "r" || t.Kind == "m") {
			if err := c.Row(ctx, t.rowsSQL(), &t.Count, &t.Sum); err != nil {
				return fmt.Errorf("%s: %w", t.path(), err)
			}
		}
	}
	all.Tables = append(all.Tables, tables...)
	return nil
}

// rowsSQL returns the query for the number of a table's rows and the sum of their hashes, which does not depend on their order.
func (t table) rowsSQL() string {
	return fmt.Sprintf("SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text FROM ONLY %s AS t",
		pgx.Identifier{t.Schema, t.Name}.Sanitize())
}

func (t table) path() string { return t.DB + "/" + t.Schema + "." + t.Name }

// Digest returns a digest that is equal for equal contents. Contents that were not read are not part of it.
func (all *Contents) Digest() snap.Hash {
	if all == nil {
		return snap.Hash{}
	}
	data, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return blake3.Sum256(data)
}

// Differences describes the changes from target to base, which is the present state.
func Differences(target, base *Contents) (list []snap.Change) {
	if target == nil || base == nil {
		return nil
	}
	old := map[string]table{}
	for _, t := range target.Tables {
		old[t.path()] = t
	}
	counted := target.Rows && base.Rows
	for _, t := range base.Tables {
		was, found := old[t.path()]
		delete(old, t.path())
		switch {
		case !found:
			list = append(list, snap.Change{Path: t.path(), Operation: snap.Create, Summary: "CREATE " + t.kind() + " " + sqlName(t.path()) + t.holding("; ", base.Rows)})
		case was.summary(t, counted) != "":
			list = append(list, snap.Change{Path: t.path(), Operation: snap.Modify, Summary: was.summary(t, counted)})
		}
	}
	for _, t := range target.Tables {
		if _, found := old[t.path()]; found {
			list = append(list, snap.Change{Path: t.path(), Operation: snap.Delete, Summary: "DROP " + t.kind() + " " + sqlName(t.path()) + t.holding("; it had ", target.Rows)})
		}
	}
	return list
}

// kinds maps kinds of relations to SQL.
var kinds = map[string]string{"v": "VIEW", "m": "MATERIALIZED VIEW", "S": "SEQUENCE", "f": "FOREIGN TABLE"}

func (t table) kind() string { return cmp.Or(kinds[t.Kind], "TABLE") }

// rows returns the number and the sum of a table's rows.
func (t table) rows() database.Rows {
	return database.Rows{N: t.Count, Sum: t.Sum, About: t.Sum == ""}
}

// holding returns word and the number of a table's rows, or "" if the rows were not counted.
func (t table) holding(word string, counted bool) string {
	if !counted || t.kind() != "TABLE" || t.Sum == "" {
		return ""
	}
	return word + t.rows().String()
}

// summary describes in a few words how now differs from t, by numbers of rows if they were counted and otherwise by sizes. It
// returns "" if they are equal.
func (t table) summary(now table, counted bool) string {
	var words []string
	if t.Columns != now.Columns || t.Kind != now.Kind {
		words = append(words, "definition")
	}
	if t.Node != now.Node {
		words = append(words, "rewritten")
	}
	if counted && t.Kind == "r" && now.Kind == "r" {
		if said := t.rows().Became(now.rows(), len(words) == 0); said != "" {
			words = append(words, said)
		}
		return strings.Join(words, ", ")
	}
	switch {
	case now.Size > t.Size:
		words = append(words, fmt.Sprintf("%d kB more", (now.Size-t.Size)>>10))
	case now.Size < t.Size:
		words = append(words, fmt.Sprintf("%d kB fewer", (t.Size-now.Size)>>10))
	}
	return strings.Join(words, ", ")
}

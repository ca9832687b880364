package contents

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/session"
)

// Relation is a table, or another object that its definition describes completely.
type Relation struct {
	Kind    string   // TABLE, VIEW, INDEX, DATABASE, …
	SQL     string   // definition, if it is not a table
	Names   []string // of columns
	Columns []string // their definitions
	Size    int64    // in bytes
	Rows    int64    // exact, or the server's estimate if Sum is ""
	Sum     string   // sum of the rows' hashes
}

const relationsSQL = `SELECT n.nspname || '.' || c.relname, CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'i' THEN 'INDEX' WHEN 'I' THEN 'INDEX'
		WHEN 'S' THEN 'SEQUENCE' WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END,
	CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) WHEN c.relkind IN ('i', 'I') THEN pg_get_indexdef(c.oid) ELSE '' END,
	ARRAY(SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND c.relkind IN ('r', 'p', 'f') ORDER BY attnum),
	ARRAY(SELECT quote_ident(attname) || ' ' || format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
		FROM pg_attribute a LEFT JOIN pg_attrdef f ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND c.relkind IN ('r', 'p', 'f') ORDER BY attnum),
	coalesce(pg_relation_size(c.oid), 0), greatest(c.reltuples, 0)::bigint
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relpersistence <> 't' AND c.relkind IN ('r', 'p', 'm', 'S', 'v', 'f', 'i', 'I') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`

// Relations reads all databases of a server. The keys are DATABASE, DATABASE/SCHEMA.NAME, or "role NAME". It also reads the
// rows of tables with at most limit bytes.
func Relations(ctx context.Context, to session.Connecter, limit int64) (map[string]Relation, error) {
	c, err := to(ctx, "postgres")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	names, err := c.Column(ctx, "SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1")
	if err != nil {
		return nil, err
	}
	all := map[string]Relation{}
	for _, name := range names {
		all[name] = Relation{Kind: "DATABASE", SQL: "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()}
		if err := relationsIn(ctx, to, name, limit, all); err != nil {
			return nil, fmt.Errorf("database %q: %w", name, err)
		}
	}
	roles, err := c.Column(ctx, "SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_'")
	for _, name := range roles {
		all["role "+name] = Relation{Kind: "ROLE", SQL: "CREATE ROLE " + pgx.Identifier{name}.Sanitize()}
	}
	return all, err
}

func relationsIn(ctx context.Context, to session.Connecter, database string, limit int64, all map[string]Relation) error {
	c, err := to(ctx, database)
	if err != nil {
		return err
	}
	defer c.Close()
	rows, err := c.Query(ctx, relationsSQL)
	if err != nil {
		return session.Explain(err)
	}
	var name string
	var r Relation
	found := map[string]Relation{}
	_, err = pgx.ForEachRow(rows, []any{&name, &r.Kind, &r.SQL, &r.Names, &r.Columns, &r.Size, &r.Rows}, func() error {
		found[name] = r
		r = Relation{}
		return nil
	})
	if err != nil {
		return session.Explain(err)
	}
	for name, r := range found {
		if schema, name, _ := strings.Cut(name, "."); r.Kind == "TABLE" && r.Size <= limit {
			if err := c.Row(ctx, table{Schema: schema, Name: name}.rowsSQL(), &r.Rows, &r.Sum); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		all[database+"/"+name] = r
	}
	return nil
}

// Compare describes the changes from a to b.
func Compare(a, b map[string]Relation) []snap.Change {
	return database.Compare(comparable(a, b), comparable(b, b), "ALTER COLUMN")
}

// comparable converts relations for database.Compare. It leaves out relations in a database that other does not have, because
// the entry of the database suffices.
func comparable(all, other map[string]Relation) (list []database.Object) {
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if _, found := other[path]; found || !within(path, other) {
			list = append(list, all[path].comparable(path))
		}
	}
	return list
}

// within reports whether path is in a database that all does not have.
func within(path string, all map[string]Relation) bool {
	db, _, found := strings.Cut(path, "/")
	_, there := all[db]
	return found && !there
}

// sqlName returns the quoted SQL name of the relation with this path.
func sqlName(path string) string {
	if _, name, found := strings.Cut(path, "/"); found {
		schema, table, _ := strings.Cut(name, ".")
		return pgx.Identifier{schema, table}.Sanitize()
	}
	return pgx.Identifier{strings.TrimPrefix(path, "role ")}.Sanitize()
}

// comparable converts a relation for database.Compare.
func (r Relation) comparable(path string) database.Object {
	o := database.Object{Path: path, Kind: r.Kind, Name: sqlName(path), Create: r.SQL}
	switch r.Kind {
	case "TABLE", "FOREIGN TABLE":
		o.Create = fmt.Sprintf("CREATE %s %s (%s)", r.Kind, o.Name, strings.Join(r.Columns, ", "))
		o.Table = &database.Table{Rows: database.Rows{N: r.Rows, Sum: r.Sum, About: r.Sum == ""}}
		for i, name := range r.Names {
			o.Columns = append(o.Columns, database.Column{Name: name, Definition: r.Columns[i]})
		}
		if r.Kind != "TABLE" {
			o.Rows.N = -1
		} else if r.Sum == "" {
			o.Details = []database.Detail{{Name: "size", Value: fmt.Sprintf("%d kB", r.Size>>10)}}
		}
	case "VIEW", "MATERIALIZED VIEW":
		o.Create = fmt.Sprintf("CREATE %s %s AS %s", r.Kind, o.Name, r.SQL)
	case "SEQUENCE":
		o.Create = "CREATE SEQUENCE " + o.Name
	}
	return o
}

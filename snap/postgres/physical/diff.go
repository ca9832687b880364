package physical

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
)

// Diff says in SQL what happened to all databases of the cluster, with the
// numbers of rows. A marker holds no contents, so its state is made to be read: the
// nearest base is cloned, and the log replayed up to the marker, without a timeline
// of its own; where files are copied and not cloned, that takes the cluster's size
// for as long as it lasts. paths are names of databases, or DATABASE/SCHEMA.TABLE.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare cluster snapshots"
	if from == to {
		return nil, nil
	}
	var sides [2]map[string]relation
	err := d.Do(ctx, op, func() (err error) {
		if sides[0], err = d.describe(ctx, from); err == nil {
			sides[1], err = d.describe(ctx, to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(compare(sides[0], sides[1]), func(c snap.Change) bool {
		return len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool { return c.Path == p || strings.HasPrefix(c.Path, p+"/") })
	}), nil
}

// describe lists what a snapshot, or the live cluster, consists of.
func (d *Driver) describe(ctx context.Context, id snap.SnapshotID) (all map[string]relation, err error) {
	if id == "" {
		return d.relations(ctx, d.server.connectTo)
	}
	s, err := d.records.state(id)
	if err != nil {
		return nil, err
	}
	if s.raw != nil {
		return nil, errs.New(errs.Unsupported, "", "snapshot %s holds files that could not be read, which cannot be compared", id).
			WithHint("roll back to it, or compare two other checkpoints")
	}
	m := s.marker
	c, err := d.server.connect(ctx)
	if err != nil {
		return nil, err
	}
	f, err := d.server.inspect(ctx, c)
	c.close()
	if err != nil {
		return nil, err
	}
	err = d.forks.visit(ctx, m, f, func(to connecter) error {
		all, err = d.relations(ctx, to)
		return err
	})
	return all, err
}

// relation is a table, or anything else that a definition tells all of.
type relation struct {
	Kind    string   // TABLE, VIEW, INDEX, DATABASE, …
	SQL     string   // the definition of what is no table
	Names   []string // of columns
	Columns []string // their definitions
	Size    int64    // bytes
	Rows    int64    // exact, or where Sum is "" as the server estimates it
	Sum     string   // of the rows
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

// relations reads all databases of a server.
func (d *Driver) relations(ctx context.Context, to connecter) (map[string]relation, error) {
	c, err := to(ctx, "postgres")
	if err != nil {
		return nil, err
	}
	defer c.close()
	names, err := c.column(ctx, "SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1")
	if err != nil {
		return nil, err
	}
	all := map[string]relation{}
	for _, name := range names {
		all[name] = relation{Kind: "DATABASE", SQL: "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()}
		if err := d.relationsIn(ctx, to, name, all); err != nil {
			return nil, fmt.Errorf("database %q: %w", name, err)
		}
	}
	roles, err := c.column(ctx, "SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_'")
	for _, name := range roles {
		all["role "+name] = relation{Kind: "ROLE", SQL: "CREATE ROLE " + pgx.Identifier{name}.Sanitize()}
	}
	return all, err
}

func (d *Driver) relationsIn(ctx context.Context, to connecter, database string, all map[string]relation) error {
	c, err := to(ctx, database)
	if err != nil {
		return err
	}
	defer c.close()
	rows, err := c.Query(ctx, relationsSQL)
	if err != nil {
		return explain(err)
	}
	var name string
	var r relation
	found := map[string]relation{}
	_, err = pgx.ForEachRow(rows, []any{&name, &r.Kind, &r.SQL, &r.Names, &r.Columns, &r.Size, &r.Rows}, func() error {
		found[name] = r
		r = relation{}
		return nil
	})
	if err != nil {
		return explain(err)
	}
	for name, r := range found {
		if schema, name, _ := strings.Cut(name, "."); r.Kind == "TABLE" && r.Size <= d.cfg.DigestLimit {
			if err := c.row(ctx, table{Schema: schema, Name: name}.rowsSQL(), &r.Rows, &r.Sum); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		all[database+"/"+name] = r
	}
	return nil
}

// compare says what happened from a to b.
func compare(a, b map[string]relation) []snap.Change {
	return database.Compare(comparable(a, b), comparable(b, b), "ALTER COLUMN")
}

// comparable are relations as database.Compare wants them. What lies in a database that other
// has not is left out: the database's own entry says enough.
func comparable(all, other map[string]relation) (list []database.Object) {
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if _, found := other[path]; found || !within(path, other) {
			list = append(list, all[path].comparable(path))
		}
	}
	return list
}

// within reports whether path lies in a database that all has not, so that
// the database's own entry says enough.
func within(path string, all map[string]relation) bool {
	db, _, found := strings.Cut(path, "/")
	_, there := all[db]
	return found && !there
}

// sqlName is a relation's name, from its path.
func sqlName(path string) string {
	if _, name, found := strings.Cut(path, "/"); found {
		schema, table, _ := strings.Cut(name, ".")
		return pgx.Identifier{schema, table}.Sanitize()
	}
	return pgx.Identifier{strings.TrimPrefix(path, "role ")}.Sanitize()
}

func (r relation) comparable(path string) database.Object {
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

var _ snap.Differ = (*Driver)(nil)

package logical

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
)

// uncaptured is a table that belongs to an extension which does not name it as one that users fill: pg_dump leaves such tables out, with their rows.
type uncaptured struct {
	Extension, Version, Schema string // of the extension
	Table                      string
	Filled                     bool // it takes room on the disk, so it has rows or had some
}

// is reports whether both are the same table, in two databases or at two times.
func (u uncaptured) is(o uncaptured) bool { return u.Extension == o.Extension && u.Table == o.Table }

// among reports whether all tables of a list are in another one.
func among(list, known []uncaptured) bool {
	return !slices.ContainsFunc(list, func(u uncaptured) bool { return !slices.ContainsFunc(known, u.is) })
}

// uncaptured lists the tables that pg_dump leaves out.
func (c *conn) uncaptured(ctx context.Context) (list []uncaptured, err error) {
	rows, err := c.Query(ctx, `SELECT x.extname, x.extversion, s.nspname, pg_catalog.format('%I.%I', n.nspname, c.relname),
			c.relkind = 'r' AND coalesce(pg_catalog.pg_relation_size(c.oid), 0) > 0
		FROM pg_catalog.pg_extension x JOIN pg_catalog.pg_namespace s ON s.oid = x.extnamespace
		JOIN pg_catalog.pg_depend e ON e.refclassid = 'pg_catalog.pg_extension'::regclass AND e.refobjid = x.oid
			AND e.classid = 'pg_catalog.pg_class'::regclass AND e.objsubid = 0 AND e.deptype = 'e'
		JOIN pg_catalog.pg_class c ON c.oid = e.objid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND c.oid <> ALL (coalesce(x.extconfig, '{}')) ORDER BY 1, 4`)
	if err != nil {
		return nil, err
	}
	if list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[uncaptured]); err != nil {
		return nil, err
	}
	for _, u := range list {
		err = errors.Join(err, c.kept.Add(u.Extension, u.Version, u.Schema, u.Table))
	}
	return list, err
}

// uncaptured lists the tables of the live database that no checkpoint has. A database that does not exist has none.
func (d *Driver) uncaptured(ctx context.Context) ([]uncaptured, error) {
	live, err := d.connect(ctx, d.login.Database)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer live.close()
	return live.uncaptured(ctx)
}

// noteUncaptured says which tables with rows a checkpoint lacks; "" if there are none.
func noteUncaptured(list []uncaptured) string {
	filled := slices.DeleteFunc(slices.Clone(list), func(u uncaptured) bool { return !u.Filled })
	if len(filled) == 0 {
		return ""
	}
	const most = 3
	var names []string
	for _, u := range filled[:min(len(filled), most)] {
		names = append(names, u.Table+" of "+u.Extension)
	}
	if more := len(filled) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "Rows in tables that belong to extensions are not captured, except those that the extension names as configuration: " + strings.Join(names, ", ") + "."
}

// losesNone returns an error if a table that no checkpoint has was added to an extension by a user: the new database would be without it. What the
// extension's own script makes is made by that again.
func (b *builder) losesNone(ctx context.Context) error {
	if len(b.known) == 0 {
		return nil
	}
	c, err := b.d.connect(ctx, b.name)
	if err != nil {
		return err
	}
	defer c.close()
	there, err := c.uncaptured(ctx)
	if err != nil {
		return err
	}
	type script struct {
		tables []uncaptured
		err    error
	}
	scripts := map[string]script{} // by extension
	for _, u := range b.known {
		if slices.ContainsFunc(there, u.is) {
			continue
		}
		s, ran := scripts[u.Extension]
		if !ran {
			s.tables, s.err = c.madeBy(ctx, u)
			if s.err != nil && sqlState(s.err) == "" {
				return s.err
			}
			scripts[u.Extension] = s
		}
		switch {
		case slices.ContainsFunc(s.tables, u.is):
		case s.err == nil:
			return errs.New(errs.Unsupported, "", "the table %s was added to the extension %s, so no checkpoint has it, and the restore would lose it", u.Table, u.Extension).
				WithHint("`ALTER EXTENSION %s DROP TABLE %s` takes it out of the extension, and then checkpoints have it", quote(u.Extension), u.Table)
		case u.Filled:
			return errs.New(errs.Unsupported, "", "no checkpoint has the rows of the table %s, which belongs to the extension %s, and the restore would lose it", u.Table, u.Extension).
				WithHint("`DROP EXTENSION %s` first, if nobody needs its rows", quote(u.Extension))
		}
	}
	return nil
}

// madeBy lists the tables that an extension's script makes. It creates the extension, in a transaction that it rolls back.
func (c *conn) madeBy(ctx context.Context, u uncaptured) (list []uncaptured, err error) {
	err = c.exec(ctx, fmt.Sprintf("BEGIN; DROP EXTENSION IF EXISTS %s CASCADE; CREATE SCHEMA IF NOT EXISTS %s; CREATE EXTENSION %[1]s SCHEMA %[2]s VERSION %s CASCADE",
		quote(u.Extension), quote(u.Schema), literal(u.Version)))
	if err == nil {
		list, err = c.uncaptured(ctx)
	}
	return list, errs.Also(err, c.exec(ctx, "ROLLBACK"))
}

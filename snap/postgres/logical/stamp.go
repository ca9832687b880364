package logical

import (
	"context"
	"fmt"
	"io"
	"strings"

	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// pg_dump asks the server dozens of questions about the schema, which takes longer than to read a small database. Schemas seldom
// change: the catalogs tell whether one did.

// otherCatalogs are the catalogs that say nothing of what pg_dump writes of a schema. Properties of the database and large objects are
// read apart from it, and names of roles are taken from a view: not everybody may read pg_authid.
var otherCatalogs = strings.Fields(`pg_statistic pg_statistic_ext_data pg_largeobject pg_largeobject_metadata pg_db_role_setting pg_database
	pg_authid pg_auth_members pg_shdepend pg_shdescription pg_shseclabel pg_replication_origin pg_parameter_acl pg_subscription_rel`)

// stamp returns a digest of the versions of all rows in the catalogs that the session sees, or "" if it may not see all that pg_dump
// writes. In one running server, two equal stamps of a database mean the same schema: every statement that changes a row of a catalog
// gives the row a new transaction id (xmin). Servers before 14 set two flags of an index in place: they are in the digest themselves.
// The digest has the number of rows of each catalog and the sum of a hash of each row's xmin: a row that was changed, made or
// dropped changes it, except with a chance of 2^-64.
func (c *conn) stamp(ctx context.Context, of identity) (string, error) {
	names, err := c.list(ctx, `SELECT c.relname::text FROM pg_catalog.pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace
		AND c.relkind = 'r' AND c.relname <> ALL ($1::text[]) AND pg_catalog.has_table_privilege(c.oid, 'SELECT') ORDER BY 1`, otherCatalogs)
	if err != nil {
		return "", err
	}
	if err := c.kept.Add(names...); err != nil {
		return "", err
	}
	var sql strings.Builder
	mappings := false
	for _, name := range names {
		version := "xmin::text::int8"
		switch name {
		case "pg_index":
			version += " * 4 + indisvalid::int * 2 + indisready::int"
		case "pg_user_mapping":
			mappings = true
		}
		fmt.Fprintf(&sql, "SELECT pg_catalog.concat_ws(' ', %s, count(*), sum(pg_catalog.hashint8extended(%s, 0))) FROM pg_catalog.%s UNION ALL ",
			literal(name), version, quote(name))
	}
	if !mappings {
		var some bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_user_mappings)").Scan(&some); err != nil || some {
			return "", err
		}
	}
	rows, err := c.list(ctx, sql.String()+"SELECT oid || ' ' || rolname FROM pg_catalog.pg_roles UNION ALL SELECT current_user ORDER BY 1")
	if err != nil {
		return "", err
	}
	return digest(append(rows, of.System, fmt.Sprint(of.Database))), c.kept.Add(rows...)
}

// knownSchema takes the schema from an earlier snapshot of the same database with the same stamp, and reports whether there is one.
func (r *reader) knownSchema() bool {
	if r.m.stamp == "" {
		return false
	}
	for m := range r.earlier(func(of meta) bool { return of.Stamp == r.m.stamp }) {
		if m.Form != r.m.Form {
			continue // its digest is of another form of the text
		}
		if r.batch != nil && !(r.batch.Keep(m.text) && r.batch.Keep(m.archive)) {
			continue
		}
		text, err := readAll(r.d.cfg.Store, m.text)
		if err != nil {
			continue // damaged: another one, or a new one, is used
		}
		r.m.State.Schema, r.m.asWritten, r.m.plain, r.m.text, r.m.archive = m.State.Schema, digest(string(text)), text, m.text, m.archive
		return true
	}
	return false
}

// readAll returns the content of a stream in the store.
func readAll(s *cas.Store, h cas.Hash) ([]byte, error) {
	r, err := s.OpenStream(h)
	if err != nil {
		return nil, database.Damaged(err)
	}
	data, err := io.ReadAll(r)
	return data, database.Damaged(err)
}

package logical

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
)

// props reads the properties of the session's database. Properties that the server's version does not have stay empty.
func (c *conn) props(ctx context.Context) (p props, err error) {
	err = c.QueryRow(ctx, `SELECT pg_catalog.pg_get_userbyid(d.datdba), pg_catalog.pg_encoding_to_char(d.encoding), d.datcollate, d.datctype,
		coalesce(j->>'datlocprovider', ''), coalesce(j->>'datlocale', j->>'daticulocale', ''), coalesce(j->>'daticurules', ''),
		t.spcname, coalesce(pg_catalog.shobj_description(d.oid, 'pg_database'), ''), d.datistemplate, d.datconnlimit
		FROM pg_catalog.pg_database d JOIN pg_catalog.pg_tablespace t ON t.oid = d.dattablespace, pg_catalog.to_jsonb(d) j
		WHERE d.datname = pg_catalog.current_database()`).
		Scan(&p.Owner, &p.Encoding, &p.Collate, &p.CType, &p.Provider, &p.Locale, &p.Rules, &p.Tablespace, &p.Comment, &p.Template, &p.Limit)
	if err != nil {
		return p, err
	}
	rows, err := c.Query(ctx, `SELECT CASE a.grantee WHEN 0 THEN '' ELSE pg_catalog.pg_get_userbyid(a.grantee) END, a.privilege_type, bool_or(a.is_grantable)
		FROM pg_catalog.pg_database d, pg_catalog.aclexplode(coalesce(d.datacl, pg_catalog.acldefault('d', d.datdba))) a
		WHERE d.datname = pg_catalog.current_database() GROUP BY 1, 2`)
	if err != nil {
		return p, err
	}
	if p.Grants, err = pgx.CollectRows(rows, pgx.RowToStructByPos[grant]); err != nil {
		return p, err
	}
	slices.SortFunc(p.Grants, func(a, b grant) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Right, b.Right)) })
	rows, err = c.Query(ctx, `SELECT coalesce(r.rolname, ''), pg_catalog.split_part(x, '=', 1), pg_catalog.substr(x, pg_catalog.strpos(x, '=') + 1)
		FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) WITH ORDINALITY u (x, i)
		WHERE s.setdatabase = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) ORDER BY u.i`)
	if err != nil {
		return p, err
	}
	p.Settings, err = pgx.CollectRows(rows, pgx.RowToStructByPos[setting])
	if len(p.Settings) == 0 {
		p.Settings = nil // the value that decoding a stored state gives
	}
	for _, s := range p.Settings {
		err = errors.Join(err, c.kept.Add(s.Role, s.Name, s.Value))
	}
	slices.SortStableFunc(p.Settings, func(a, b setting) int { return cmp.Compare(a.Role, b.Role) })
	return p, err
}

// relation is a table in the snapshot.
type relation struct {
	OID   uint32
	table table
	bytes int64
}

// userTables selects the tables with rows of the user: no system tables, no temporary tables, and of the tables of extensions
// only those that the user fills.
const userTables = `FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	LEFT JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_class'::regclass AND e.objid = c.oid AND e.objsubid = 0
		AND e.deptype = 'e' AND e.refclassid = 'pg_catalog.pg_extension'::regclass
	LEFT JOIN pg_catalog.pg_extension x ON x.oid = e.refobjid
	WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND c.relpersistence <> 't'
		AND (x.oid IS NULL OR c.oid = ANY (x.extconfig))`

// relations lists the tables, sorted by name.
func (c *conn) relations(ctx context.Context) (list []*relation, err error) {
	rows, err := c.Query(ctx, `SELECT c.oid, n.nspname, c.relname, coalesce(x.extcondition[pg_catalog.array_position(x.extconfig, c.oid)], ''), pg_catalog.pg_table_size(c.oid)
		`+userTables+` AND c.relkind = 'r' ORDER BY n.nspname, c.relname`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r := &relation{}
		var size *int64 // null for a table that was just dropped
		if err := rows.Scan(&r.OID, &r.table.Schema, &r.table.Name, &r.table.Where, &size); err != nil {
			return nil, err
		}
		if size != nil {
			r.bytes = *size
		}
		if err := c.kept.Add(r.table.Schema, r.table.Name, r.table.Where); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

// columns reads the columns of relations.
func (c *conn) columns(ctx context.Context, list []*relation) error {
	byOID := map[uint32]*relation{}
	for _, r := range list {
		byOID[r.OID] = r
	}
	rows, err := c.Query(ctx, `SELECT a.attrelid, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
		pg_catalog.concat(CASE WHEN a.attnotnull THEN ' NOT NULL' END,
			CASE WHEN a.attgenerated <> '' THEN ' GENERATED ALWAYS AS (' || pg_catalog.pg_get_expr(f.adbin, f.adrelid) || ') STORED'
			WHEN a.attidentity <> '' THEN ' GENERATED AS IDENTITY' ELSE ' DEFAULT ' || pg_catalog.pg_get_expr(f.adbin, f.adrelid) END)
		FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
		WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid IN (SELECT c.oid `+userTables+` AND c.relkind = 'r') ORDER BY a.attrelid, a.attnum`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var oid uint32
		var col column
		if err := rows.Scan(&oid, &col.Name, &col.Type, &col.Generated, &col.Rest); err != nil {
			return err
		}
		if err := c.kept.Add(col.Name, col.Type, col.Rest); err != nil {
			return err
		}
		if r := byOID[oid]; r != nil {
			r.table.Columns = append(r.table.Columns, col)
		}
	}
	return rows.Err()
}

// lock takes a reader's lock on the tables, so that none can be dropped, truncated or rewritten from now on. It returns
// errMoved if that happened after the transaction's snapshot, because the snapshot does not have the rows of such a table.
func (c *conn) lock(ctx context.Context, list []*relation) error {
	const atOnce = 500
	for i := 0; i < len(list); i += atOnce {
		var names []string
		for _, r := range list[i:min(i+atOnce, len(list))] {
			names = append(names, "ONLY "+quote(r.table.Schema)+"."+quote(r.table.Name))
		}
		err := c.exec(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN ACCESS SHARE MODE")
		switch sqlState(err) {
		case stateLocked:
			return errs.New(errs.Busy, "", "a table of %s is locked, perhaps by a migration", c.db).
				WithHint("wait until the lock is released (see pg_locks), and try again")
		case stateNoTable, "3F000":
			return errMoved
		}
		if err != nil {
			return err
		}
	}
	// The functions return the present state, the query that of the snapshot.
	moved, err := c.list(ctx, `SELECT c.relname::text `+userTables+` AND c.relkind = 'r'
		AND (pg_catalog.pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode)`)
	if err == nil && len(moved) > 0 {
		return errMoved
	}
	return err
}

// sequences reads the present values of all sequences; the snapshot does not include them.
func (c *conn) sequences(ctx context.Context) (list []sequence, err error) {
	rows, err := c.Query(ctx, `SELECT n.nspname, c.relname `+userTables+` AND c.relkind = 'S' ORDER BY n.nspname, c.relname`)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Schema, Name string }])
	if err != nil {
		return nil, err
	}
	const atOnce = 200
	for i := 0; i < len(names); i += atOnce {
		var parts []string
		for j, s := range names[i:min(i+atOnce, len(names))] {
			parts = append(parts, fmt.Sprintf("SELECT %d, last_value, is_called FROM %s.%s", i+j, quote(s.Schema), quote(s.Name)))
		}
		rows, err := c.Query(ctx, strings.Join(parts, " UNION ALL ")+" ORDER BY 1")
		if err != nil {
			return nil, err
		}
		values, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			At     int
			Last   int64
			Called bool
		}])
		if sqlState(err) == stateNoTable {
			return nil, errMoved
		}
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if v.At < i || v.At >= len(names) {
				return nil, errs.New(errs.Failed, "", "the server returned a sequence that was not requested").WithHint("look into the server's log")
			}
			if err := c.kept.Add(names[v.At].Schema, names[v.At].Name); err != nil {
				return nil, err
			}
			list = append(list, sequence{names[v.At].Schema, names[v.At].Name, v.Last, v.Called})
		}
	}
	return list, nil
}

// roles lists the roles that the database depends on. Only a superuser can read password verifiers.
func (c *conn) roles(ctx context.Context) (list []role, err error) {
	verifier := "NULL"
	if c.superuser() {
		verifier = "(SELECT a.rolpassword FROM pg_catalog.pg_authid a WHERE a.oid = r.oid)"
	}
	rows, err := c.Query(ctx, `SELECT r.rolname, pg_catalog.concat_ws(' ',
		CASE WHEN r.rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END, CASE WHEN r.rolsuper THEN 'SUPERUSER' END, CASE WHEN NOT r.rolinherit THEN 'NOINHERIT' END,
		CASE WHEN r.rolcreatedb THEN 'CREATEDB' END, CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END, CASE WHEN r.rolreplication THEN 'REPLICATION' END,
		CASE WHEN r.rolbypassrls THEN 'BYPASSRLS' END, CASE WHEN r.rolconnlimit >= 0 THEN 'CONNECTION LIMIT ' || r.rolconnlimit END,
		'VALID UNTIL ' || pg_catalog.quote_literal(r.rolvaliduntil::text)), coalesce(`+verifier+`, ''),
		ARRAY(SELECT g.rolname::text FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.roleid WHERE m.member = r.oid ORDER BY 1)
		FROM pg_catalog.pg_roles r, (SELECT oid, datdba FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) d
		WHERE r.rolname NOT LIKE 'pg\_%' AND (r.oid = d.datdba OR r.oid IN (SELECT s.refobjid FROM pg_catalog.pg_shdepend s
			WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND (s.dbid = d.oid OR s.dbid = 0 AND s.classid = 'pg_catalog.pg_database'::regclass AND s.objid = d.oid))
			OR r.oid IN (SELECT setrole FROM pg_catalog.pg_db_role_setting WHERE setdatabase = d.oid))
		ORDER BY r.rolname`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[role])
}

// superuser reports whether the session's role is a superuser.
func (c *conn) superuser() bool { return c.PgConn().ParameterStatus("is_superuser") == "on" }

// process returns a function that asks for the process of the server that serves c. That may be on another host.
func (c *conn) process(ctx context.Context) func() (int, error) {
	return func() (pid int, err error) {
		err = c.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid)
		return pid, err
	}
}

// version returns the server's major version.
func (c *conn) version(ctx context.Context) (n int, err error) {
	err = c.QueryRow(ctx, "SELECT pg_catalog.current_setting('server_version_num')::int / 10000").Scan(&n)
	if err == nil && n < 13 {
		return n, errs.New(errs.Unsupported, "", "the server is PostgreSQL %d", n).WithHint("upgrade it to 13 or newer")
	}
	return n, err
}

// notes returns sentences about contents that a dump does not include.
func (c *conn) notes(ctx context.Context) (notes []string, err error) {
	var subs, views int
	err = c.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_catalog.pg_subscription WHERE subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())),
		(SELECT count(*) FROM pg_catalog.pg_class WHERE relkind = 'm')`).Scan(&subs, &views)
	if subs > 0 {
		notes = append(notes, "The database subscribes to another's changes: a restored subscription is disabled until it is enabled by hand.")
	}
	if views > 0 {
		notes = append(notes, "Materialized views are computed anew when they are restored.")
	}
	if err != nil {
		return notes, err
	}
	list, err := c.uncaptured(ctx)
	if note := noteUncaptured(list); note != "" {
		notes = append(notes, note)
	}
	return notes, err
}

// quoteAny quotes an identifier with ASCII characters only, for any client encoding.
func quoteAny(name string) string {
	ascii := true
	for i := range len(name) {
		ascii = ascii && name[i] < utf8.RuneSelf
	}
	if ascii {
		return quote(name)
	}
	var b strings.Builder
	b.WriteString(`U&"`)
	for _, r := range name {
		switch {
		case r == '"':
			b.WriteString(`""`)
		case r == '\\':
			b.WriteString(`\\`)
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\+%06X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

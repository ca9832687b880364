package mysql

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap/mysql/definition"
)

// nextNumber matches the next number in the answer to SHOW CREATE TABLE.
var nextNumber = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// engines are the storage engines whose tables can be captured and restored exactly.
var engines = []string{"InnoDB", "MyISAM", "Aria", "MEMORY"}

// schema reads the definitions of a database without the rows. It returns the absent state if the
// database does not exist.
func (s *session) schema(ctx context.Context, db string) (*state, error) {
	found, err := s.rows(ctx, "SELECT default_character_set_name, default_collation_name FROM information_schema.schemata WHERE schema_name = ?", db)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return &state{Absent: true}, nil
	}
	s.kept = 0
	st := &state{Charset: found[0][0], Collation: found[0][1]}
	if st.Comment, err = s.comment(ctx, db); err != nil {
		return nil, err
	}
	if err := s.kept.add(st.Charset, st.Collation, st.Comment); err != nil {
		return nil, err
	}
	if err := s.exec(ctx, "USE "+quote(db)); err != nil {
		return nil, err
	}
	if st.Tables, err = s.tables(ctx, db); err != nil {
		return nil, err
	}
	st.Objects, err = s.objects(ctx, db)
	return st, err
}

// comment reads a database's comment. Older servers have no such column.
func (s *session) comment(ctx context.Context, db string) (string, error) {
	c, err := s.rows(ctx, "SELECT schema_comment FROM information_schema.schemata WHERE schema_name = ?", db)
	if isCode(err, 1054) || len(c) == 0 {
		return "", ignore(err, 1054)
	}
	return c[0][0], err
}

// ignore returns nil if err is one of the codes, and otherwise err.
func ignore(err error, codes ...uint16) error {
	if isCode(err, codes...) {
		return nil
	}
	return err
}

func (s *session) tables(ctx context.Context, db string) ([]table, error) {
	list, err := s.rows(ctx, "SELECT table_name, table_type, IFNULL(engine, ''), IFNULL(create_options, '') FROM information_schema.tables WHERE table_schema = ? AND table_type <> 'VIEW'", db)
	if err != nil {
		return nil, err
	}
	var all []table
	for _, row := range list {
		t := table{Name: row[0], Sequence: row[1] == "SEQUENCE", Engine: row[2]}
		switch {
		case row[1] != "BASE TABLE" && !t.Sequence:
			return nil, errs.New(errs.Unsupported, "", "table %s is %s: its history cannot be restored", t.Name, strings.ToLower(row[1])).
				WithHint("keep it in another database, or drop its versioning")
		case strings.Contains(row[3], "partitioned"): // after a crash, such tables were half renamed and unusable
			return nil, errs.New(errs.Unsupported, "", "table %s has partitions, which the server would lose if it died while a restore renames them", t.Name).
				WithHint("keep it in another database, or ALTER TABLE … REMOVE PARTITIONING")
		case !slices.Contains(engines, t.Engine):
			return nil, errs.New(errs.Unsupported, "", "table %s has the engine %s", t.Name, t.Engine).
				WithHint("only tables of %s can be restored: keep it in another database", strings.Join(engines, ", "))
		}
		all = append(all, t)
	}
	if err := s.replicable(ctx, all); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b table) int { return strings.Compare(a.Name, b.Name) })
	for i := range all {
		if err := s.describe(ctx, db, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// replicable returns an error if tables include one without transactions, and the server rejects transactions that change such
// tables together with others, as a switch does. Only MySQL has this rule.
func (s *session) replicable(ctx context.Context, tables []table) error {
	i := slices.IndexFunc(tables, func(t table) bool { return t.Engine != "InnoDB" })
	if s.maria || i < 0 {
		return nil
	}
	enforced, err := s.rows(ctx, "SELECT @@GLOBAL.enforce_gtid_consistency")
	if err != nil || len(enforced) != 1 || enforced[0][0] != "ON" {
		return err
	}
	return errs.New(errs.Unsupported, "", "table %s has the engine %s, which a server that enforces GTID consistency does not let a restore change together with other tables", tables[i].Name, tables[i].Engine).
		WithHint("ALTER TABLE %s ENGINE = InnoDB, or keep it in another database", quote(tables[i].Name))
}

// describe reads a table's definition.
func (s *session) describe(ctx context.Context, db string, t *table) error {
	show := "SHOW CREATE TABLE "
	if t.Sequence {
		show = "SHOW CREATE SEQUENCE "
	}
	create, err := s.rows(ctx, show+in(db, t.Name))
	if err != nil {
		return err
	}
	if len(create) != 1 {
		return errProtocol
	}
	t.Create = create[0][1]
	if !s.maria {
		t.Create = definition.Collated(t.Create)
	}
	if err := s.kept.add(t.Name, t.Engine, t.Create); err != nil {
		return err
	}
	if t.Sequence {
		t.Columns = []column{{Name: "next_not_cached_value"}, {Name: "cycle_count"}}
		return nil
	}
	columns, err := s.rows(ctx, "SELECT column_name, data_type, IFNULL(generation_expression, '') FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position", db, t.Name)
	if err != nil {
		return err
	}
	for _, c := range columns {
		if c[2] == "" {
			t.Columns = append(t.Columns, columnOf(c[0], c[1]))
			if err := s.kept.add(c[0]); err != nil {
				return err
			}
		}
	}
	key, err := s.rows(ctx, "SELECT column_name FROM information_schema.statistics WHERE table_schema = ? AND table_name = ? AND index_name = 'PRIMARY' ORDER BY seq_in_index", db, t.Name)
	for _, k := range key {
		t.Key = append(t.Key, k[0])
		if err := s.kept.add(k[0]); err != nil {
			return err
		}
	}
	return err
}

// columnOf returns how a column is read without loss: the server shows a FLOAT with six digits, but as a DOUBLE with all of
// them.
func columnOf(name, kind string) column {
	switch c := (column{Name: name}); kind {
	case "float":
		c.Read = "%s * 1e0"
		return c
	case "json", "inet4", "inet6", "uuid":
		c.Text = true
		return c
	default:
		return c
	}
}

// objects reads views, routines, triggers and events.
func (s *session) objects(ctx context.Context, db string) (all []object, err error) {
	for _, q := range []string{
		"SELECT routine_type, routine_name, '' FROM information_schema.routines WHERE routine_schema = ? ORDER BY 1, 2",
		"SELECT 'VIEW', table_name, '' FROM information_schema.views WHERE table_schema = ? ORDER BY 2",
		"SELECT 'TRIGGER', trigger_name, event_object_table FROM information_schema.triggers WHERE trigger_schema = ? ORDER BY 3, event_manipulation, action_timing, action_order, 2",
		"SELECT 'EVENT', event_name, '' FROM information_schema.events WHERE event_schema = ? AND (event_type = 'RECURRING' OR on_completion = 'PRESERVE') ORDER BY 2",
	} {
		list, err := s.rows(ctx, q, db)
		if err != nil {
			return nil, err
		}
		for _, row := range list {
			o := object{Kind: row[0], Name: row[1], Table: row[2]}
			if err := s.show(ctx, db, &o); err != nil {
				return nil, err
			}
			if o.Kind == "VIEW" {
				if err := s.works(ctx, db, &o); err != nil {
					return nil, err
				}
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// show reads an object's definition. The columns of the answer differ by kind, so show uses their names.
func (s *session) show(ctx context.Context, db string, o *object) error {
	rows, names, err := s.table(ctx, "SHOW CREATE "+o.Kind+" "+in(db, o.Name))
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errs.New(errs.Conflict, "", "%s %s is gone", strings.ToLower(o.Kind), o.Name)
	}
	values := rows[0]
	for i, name := range names {
		switch v := values[i]; strings.ToLower(name) {
		case "sql_mode":
			o.SQLMode = v
		case "time_zone":
			o.TimeZone = v
		case "character_set_client":
			o.Client = v
		case "collation_connection":
			o.Connection = v
		case "database collation":
			o.Database = v
		case "sql original statement", "create " + strings.ToLower(o.Kind):
			o.Create = []byte(v)
		}
	}
	if len(o.Create) == 0 {
		return errs.New(errs.Denied, "", "the definition of %s %s cannot be read", strings.ToLower(o.Kind), o.Name).
			WithHint("the user needs SHOW CREATE ROUTINE, or SELECT on mysql.proc")
	}
	o.unqualify()
	text := base64.StdEncoding.EncodedLen(len(o.Create)) // size of the definition in JSON
	s.kept += kept(text)
	return s.kept.add(o.Kind, o.Name, o.Table, o.SQLMode, o.TimeZone, o.Client, o.Connection, o.Database)
}

// works sets o.Broken if a view cannot be used. The server shows the definition of a broken view with the database's name
// before each column; works removes that name.
func (s *session) works(ctx context.Context, db string, o *object) error {
	_, err := s.rows(ctx, "SHOW COLUMNS FROM "+in(db, o.Name))
	if o.Broken = isCode(err, 1356); o.Broken {
		o.Create = bytes.ReplaceAll(o.Create, []byte(quote(db)+"."), nil)
	}
	return ignore(err, 1356)
}

// warnings describes what a capture of the state lacks.
func (s *session) warnings(ctx context.Context, db string, st *state) (list []string, err error) {
	for _, t := range st.Tables {
		if t.Engine != "InnoDB" {
			list = append(list, fmt.Sprintf("Table %s has the engine %s: what is written to it during a capture may be captured in part.", t.Name, t.Engine))
		}
	}
	once, err := s.rows(ctx, "SELECT event_name FROM information_schema.events WHERE event_schema = ? AND event_type <> 'RECURRING' AND on_completion <> 'PRESERVE'", db)
	for _, e := range once {
		list = append(list, fmt.Sprintf("Event %s runs only once and is dropped afterwards: it is neither captured nor changed by a restore.", e[0]))
	}
	return list, err
}

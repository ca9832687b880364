package mysql

import (
	"context"
	"strings"

	"mulligan/errs"
	"mulligan/snap/cas"
	"mulligan/snap/mysql/definition"
)

// loadSide loads the tables of a stored state into the database side and verifies them.
func (d *Driver) loadSide(ctx context.Context, s *session, side string, st *stored) error {
	if st.Absent {
		return s.createDatabase(ctx, side, &state{Charset: "utf8mb4", Collation: "utf8mb4_bin"})
	}
	if err := s.createDatabase(ctx, side, &st.state); err != nil {
		return err
	}
	if err := s.exec(ctx, "USE "+quote(side)); err != nil {
		return err
	}
	for _, sequences := range []bool{true, false} { // a table's default may need one
		for i := range st.Tables {
			if st.Tables[i].Sequence != sequences {
				continue
			}
			if err := s.createTable(ctx, side, &st.Tables[i]); err != nil {
				return err
			}
		}
	}
	for i := range st.Tables {
		if err := d.loadTable(ctx, s, side, &st.Tables[i], st.rows[i]); err != nil {
			return err
		}
	}
	if err := s.verify(ctx, side, &st.state); err != nil {
		return err
	}
	return s.rehearse(ctx, side, &st.state)
}

func (s *session) createDatabase(ctx context.Context, db string, st *state) error {
	return s.exec(ctx, "CREATE DATABASE IF NOT EXISTS "+quote(db)+" CHARACTER SET "+st.Charset+" COLLATE "+st.Collation)
}

// createTable runs the captured CREATE TABLE statement in the database side, which the session uses. If a sequence that a default
// names is not live, the default uses the one in side until the tables have changed places.
func (s *session) createTable(ctx context.Context, side string, t *table) error {
	err := s.all(ctx, "SET NAMES utf8mb4", t.Create)
	if aside := definition.Redirect(t.Create, s.db, side); err != nil && aside != t.Create {
		err = s.exec(ctx, aside)
	}
	if isCode(err, 1146) {
		return &errs.Error{Kind: errs.Unsupported, Message: "a default of table " + t.Name + " refers to a sequence that is missing", Err: err,
			Hint: "create the sequence, or use a checkpoint that has it"}
	}
	if err != nil {
		return err
	}
	return s.exec(ctx, "SET NAMES binary")
}

// loadTable loads a table's rows from the store into db.
func (d *Driver) loadTable(ctx context.Context, s *session, db string, t *table, rows cas.Hash) error {
	if err := s.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	into := &insert{ctx: ctx, s: s, db: db, t: t}
	err := d.chunks(ctx, rows, func(data []byte) error {
		return s.during(ctx, func() error { return into.chunk(data) })
	})
	if err == nil {
		err = s.during(ctx, into.end)
	}
	if err != nil {
		return err
	}
	if err := s.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	return d.cfg.Failpoint.At("prepare: load")
}

// verify returns an error if the contents of a database differ from want. It sets a table's next number if only that differs.
func (s *session) verify(ctx context.Context, db string, want *state) error {
	for _, t := range want.Tables {
		got := table{Name: t.Name, Sequence: t.Sequence, Engine: t.Engine}
		if err := s.describe(ctx, db, &got); err != nil {
			return err
		}
		if next := nextNumber.FindString(t.Create); got.Create != t.Create && next != "" {
			if err := s.exec(ctx, "ALTER TABLE "+in(db, t.Name)+next); err != nil {
				return err
			}
			got = table{Name: t.Name, Sequence: t.Sequence, Engine: t.Engine}
			if err := s.describe(ctx, db, &got); err != nil {
				return err
			}
		}
		if _, err := s.readRows(ctx, db, &got, nil); err != nil {
			return err
		}
		got.Create = definition.Redirect(got.Create, db, s.db)
		if got.Create != t.Create || got.Digest != t.Digest || got.Rows != t.Rows {
			return errs.New(errs.Failed, "", "table %s, loaded into this server, differs from the captured one: %s", t.Name, changesOf(t, got)).
				WithHint("restore it with the server that it was captured from")
		}
	}
	return nil
}

// rehearse creates the objects of want in the database side and drops them again, so that a missing privilege shows before
// anything is changed.
func (s *session) rehearse(ctx context.Context, side string, want *state) error {
	cast := *want
	cast.Objects = want.movable(s.db, side)
	if err := s.converge(ctx, side, &cast); err != nil {
		return err
	}
	cast.Objects = nil
	return s.converge(ctx, side, &cast)
}

// foreign returns an error if tables of other databases have foreign keys to tables of this database: such keys would follow
// the tables that are moved away.
func (s *session) foreign(ctx context.Context) error {
	list, err := s.rows(ctx, "SELECT constraint_schema, table_name, referenced_table_name FROM information_schema.referential_constraints "+
		"WHERE unique_constraint_schema = ? AND constraint_schema <> ?", s.db, s.db)
	if err != nil {
		return err
	}
	for _, row := range list {
		if !strings.Contains(row[0], sideMark) {
			return errs.New(errs.Unsupported, "", "table %s of database %s has a foreign key to table %s", row[1], row[0], row[2]).
				WithHint("drop that foreign key, restore, and add it again")
		}
	}
	return nil
}

// dangling returns the missing tables to which foreign keys refer.
func (s *state) dangling() (list []string) {
	for _, t := range s.Tables {
		for _, name := range definition.References(t.Create) {
			if s.table(name) == nil {
				list = append(list, name)
			}
		}
	}
	return list
}

// referred returns an error if a foreign key refers to a missing table.
func (s *state) referred() error {
	if list := s.dangling(); len(list) > 0 {
		return errs.New(errs.Unsupported, "", "a foreign key of the snapshot refers to table %s, which is missing", list[0]).
			WithHint("use a checkpoint that has this table")
	}
	return nil
}

// broken returns an error if Commit or Undo would have to create a view that refers to a missing object.
func broken(target, base *state) error {
	for _, way := range [][2]*state{{target, base}, {base, target}} {
		for _, o := range way[0].Objects {
			if o.Broken && !way[1].has(o) {
				return errs.New(errs.Conflict, "", "view %s refers to a missing table, view or column, and cannot be created", o.Name).
					WithHint("drop the view, and restore again")
			}
		}
	}
	return nil
}

package mysql

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"mulligan/snap/mysql/definition"
)

// unqualify takes the database's name out of a trigger's definition. It returns false if the definition may still have it.
func (o *object) unqualify() (ok bool) {
	if o.Kind != "TRIGGER" {
		return true
	}
	o.Create, ok = definition.Trigger(o.Create)
	return ok
}

// redirectBack gives live tables their own defaults if they were loaded into the database side when the sequences of these were not live.
func (s *session) redirectBack(ctx context.Context, side string, want *state) error {
	for _, t := range want.Tables {
		if definition.Redirect(t.Create, s.db, side) == t.Create {
			continue
		}
		now := table{Name: t.Name}
		if err := s.describe(ctx, s.db, &now); err != nil {
			return err
		}
		if definition.Redirect(now.Create, side, s.db) == now.Create {
			continue
		}
		var columns []string
		for line := range strings.Lines(t.Create) {
			if line = strings.TrimSuffix(strings.TrimSpace(line), ","); definition.Redirect(line, s.db, side) != line {
				columns = append(columns, "MODIFY COLUMN "+line)
			}
		}
		if err := s.all(ctx, "SET NAMES utf8mb4", "ALTER TABLE "+in(s.db, t.Name)+" "+strings.Join(columns, ", "), "SET NAMES binary"); err != nil {
			return err
		}
	}
	return nil
}

// movable returns the objects of a state of the database db as they can be created in the database side. It leaves out events, which would
// run; broken views; triggers whose heads may have db's name; and views that have it also as the name of something else, or use such a view.
func (s *state) movable(db, side string) (list []object) {
	var out []string
	for _, o := range s.Objects {
		text := string(o.Create)
		named := strings.Count(text, quote(db)+".")
		switch {
		case o.Kind == "EVENT", o.Broken, !o.unqualify():
			continue
		case o.Kind == "VIEW" && named > 0 && named < strings.Count(text, quote(db)):
			out = append(out, quote(o.Name))
			continue
		case o.Kind == "VIEW":
			o.Create = []byte(strings.ReplaceAll(text, quote(db)+".", quote(side)+"."))
		}
		list = append(list, o)
	}
	for i := 0; i < len(out); i++ {
		list = slices.DeleteFunc(list, func(o object) bool {
			uses := o.Kind == "VIEW" && bytes.Contains(o.Create, []byte(out[i]))
			if uses {
				out = append(out, quote(o.Name))
			}
			return uses
		})
	}
	return list
}

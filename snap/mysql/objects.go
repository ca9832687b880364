package mysql

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap/mysql/definition"
)

// has reports whether the state has this object, unchanged. It ignores Broken, which depends on other objects.
func (s *state) has(o object) bool {
	o.Broken = false
	return slices.ContainsFunc(s.Objects, func(p object) bool {
		p.Broken = false
		return reflect.DeepEqual(o, p)
	})
}

// triggers returns the triggers of the state, in order.
func (s *state) triggers() (list []object) {
	for _, o := range s.Objects {
		if o.Kind == "TRIGGER" {
			list = append(list, o)
		}
	}
	return list
}

// aged returns what the server makes of a state by itself: an event that will not run again is dropped, or disabled if it is preserved. Once its
// last moment has passed, the server does not create it otherwise.
func (s *session) aged(ctx context.Context, st *state) (*state, error) {
	aged := *st
	aged.Objects = nil
	for _, o := range st.Objects {
		if last, then := definition.Ending(o.Create); o.Kind == "EVENT" && last != "" {
			past, err := s.rows(ctx, "SELECT CONVERT_TZ(?, ?, '+00:00') < UTC_TIMESTAMP()", last, o.TimeZone)
			if err != nil {
				return nil, err
			}
			if len(past) == 1 && past[0][0] == "1" {
				o.Create = then
			}
		}
		if o.Create != nil {
			aged.Objects = append(aged.Objects, o)
		}
	}
	return &aged, nil
}

// aged returns what the server makes of the states by now.
func (d *Driver) aged(ctx context.Context, states ...*state) ([]*state, error) {
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.end()
	for i, st := range states {
		if states[i], err = s.aged(ctx, st); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// converge gives a database the character set and the objects of want. It changes only differences, so it may be repeated. It does not see
// events that will not run again: what it drops of them could not be created.
func (s *session) converge(ctx context.Context, db string, want *state) error {
	if err := s.attributes(ctx, db, want); err != nil {
		return err
	}
	if err := s.exec(ctx, "USE "+quote(db)); err != nil {
		return err
	}
	list, err := s.objects(ctx, db)
	if err != nil {
		return err
	}
	now, err := s.aged(ctx, &state{Objects: list})
	if err != nil {
		return err
	}
	if want, err = s.aged(ctx, want); err != nil {
		return err
	}
	again := !reflect.DeepEqual(now.triggers(), want.triggers()) // their order matters
	stays := func(o object) bool { return want.has(o) && (o.Kind != "TRIGGER" || !again) }
	for _, o := range now.Objects {
		if !stays(o) && !s.replaced(o, want) {
			if err := s.exec(ctx, "DROP "+o.Kind+" IF EXISTS "+in(db, o.Name)); err != nil {
				return err
			}
		}
	}
	var missing []object
	for _, o := range want.Objects {
		if !now.has(o) || o.Kind == "TRIGGER" && again {
			missing = append(missing, o)
		}
	}
	return s.create(ctx, db, want, missing)
}

// replaced reports whether an object is replaced instead of dropped: dropping a routine would drop the users' privileges on it.
func (s *session) replaced(o object, want *state) bool {
	return o.Kind != "TRIGGER" && slices.ContainsFunc(want.Objects, func(p object) bool { return p.Kind == o.Kind && p.Name == o.Name })
}

// attributes sets the character set, the collation and the comment of a database.
func (s *session) attributes(ctx context.Context, db string, want *state) error {
	now, err := s.rows(ctx, "SELECT default_character_set_name, default_collation_name FROM information_schema.schemata WHERE schema_name = ?", db)
	if err != nil {
		return err
	}
	if len(now) == 0 || now[0][0] != want.Charset || now[0][1] != want.Collation {
		if err := s.exec(ctx, "ALTER DATABASE "+quote(db)+" CHARACTER SET "+want.Charset+" COLLATE "+want.Collation); err != nil {
			return err
		}
	}
	comment, err := s.comment(ctx, db)
	if err != nil || comment == want.Comment {
		return err
	}
	return s.exec(ctx, "ALTER DATABASE "+quote(db)+" COMMENT = CONVERT(? USING utf8mb4)", want.Comment)
}

// create creates objects. It tries views repeatedly, because a view may need another one.
func (s *session) create(ctx context.Context, db string, want *state, list []object) error {
	for len(list) > 0 {
		var later []object
		var first error
		for _, o := range list {
			err := s.createObject(ctx, db, want, o)
			if err != nil && o.Kind != "VIEW" {
				return err
			}
			if err != nil {
				later = append(later, o)
			}
			if first == nil {
				first = err
			}
		}
		if len(later) == len(list) && isCode(first, 1054, 1146, 1305, 1356) {
			return &errs.Error{Kind: errs.Failed, Message: "view " + later[0].Name + " cannot be made", Err: first,
				Hint: "see whether all that it refers to is there"}
		}
		if len(later) == len(list) {
			return first
		}
		list = later
	}
	return nil
}

// errTriggerExists is the server's error number for a trigger that exists, perhaps only as a file that a crash left. The server
// does not list such a trigger, but can drop it by name.
const errTriggerExists = 1359

// createObject creates an object with the settings that were in force when it was first created.
func (s *session) createObject(ctx context.Context, db string, want *state, o object) error {
	client, zone := o.Client, o.TimeZone
	if o.Kind == "VIEW" && slices.ContainsFunc(o.Create, func(c byte) bool { return c >= 0x80 }) {
		client = "utf8mb4" // the server shows a view's definition in UTF-8, and others as they were typed
	}
	if zone == "" {
		zone = "+00:00"
	}
	query := string(o.Create)
	if rest, ok := strings.CutPrefix(query, "CREATE "); ok && o.Kind != "TRIGGER" && (s.maria || o.Kind == "VIEW") {
		query = "CREATE OR REPLACE " + rest
	} else if o.Kind != "TRIGGER" {
		if err := s.exec(ctx, "DROP "+o.Kind+" IF EXISTS "+in(db, o.Name)); err != nil {
			return err
		}
	}
	moved := o.Database != "" && o.Database != want.Collation
	if moved {
		if err := s.exec(ctx, "ALTER DATABASE "+quote(db)+" COLLATE "+o.Database); err != nil {
			return err
		}
	}
	err := s.exec(ctx, "SET SESSION sql_mode = ?, time_zone = ?, character_set_client = ?, collation_connection = ?", o.SQLMode, zone, client, o.Connection)
	if err == nil {
		err = s.exec(ctx, query)
	}
	if o.Kind == "TRIGGER" && isCode(err, errTriggerExists) { // converge dropped all listed triggers
		if err = s.exec(ctx, "DROP TRIGGER IF EXISTS "+in(db, o.Name)); err == nil {
			err = s.exec(ctx, query)
		}
	}
	if e := s.exec(ctx, "SET NAMES binary, SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"); err == nil {
		err = e
	}
	if moved {
		if e := s.exec(ctx, "ALTER DATABASE "+quote(db)+" CHARACTER SET "+want.Charset+" COLLATE "+want.Collation); err == nil {
			err = e
		}
	}
	return err
}

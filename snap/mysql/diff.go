package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mulligan/snap"
	"mulligan/snap/database"
)

// Diff returns the tables and objects that differ. paths are their names; an object's name begins with its kind ("view v").
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare database snapshots"
	var sides [2]*state
	err := d.Do(ctx, op, func() (err error) {
		if sides[0], err = d.state(ctx, op, from); err == nil {
			sides[1], err = d.state(ctx, op, to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return compare(sides[0], sides[1], paths), nil
}

// state returns a stored state, or the live state if id is "".
func (d *Driver) state(ctx context.Context, op string, id snap.SnapshotID) (st *state, err error) {
	if id != "" {
		root, err := d.records.Snapshot(op, id)
		if err != nil {
			return nil, err
		}
		s, err := d.load(root)
		if err != nil {
			return nil, err
		}
		return &s.state, nil
	}
	err = d.retry(ctx, func(s *session) error {
		if err := d.allowed(ctx, s); err != nil {
			return err
		}
		if err := d.limit(ctx, s); err != nil {
			return err
		}
		if _, err := s.begin(ctx); err != nil {
			return err
		}
		r, err := s.read(ctx, nil, s)
		if err == nil {
			st = r.state
		}
		return err
	})
	return st, err
}

// compare describes the changes from a to b.
func compare(a, b *state, paths []string) []snap.Change {
	var list []snap.Change
	say := func(path string, op snap.Operation, summary string) {
		if len(paths) == 0 || slices.Contains(paths, path) {
			list = append(list, snap.Change{Path: path, Operation: op, Summary: summary})
		}
	}
	if a.Absent != b.Absent || a.Charset != b.Charset || a.Collation != b.Collation || a.Comment != b.Comment {
		say("(database)", map[bool]snap.Operation{true: snap.Create, false: snap.Modify}[a.Absent], "character set, comment")
		if b.Absent {
			list[len(list)-1].Operation = snap.Delete
		}
	}
	for _, c := range database.Compare(a.comparable(), b.comparable(), "MODIFY COLUMN") {
		say(c.Path, c.Operation, c.Summary)
	}
	return list
}

// comparable converts the state for database.Compare.
func (s *state) comparable() (list []database.Object) {
	for i := range s.Tables {
		list = append(list, s.Tables[i].comparable())
	}
	for _, o := range s.Objects {
		list = append(list, database.Object{
			Path: strings.ToLower(o.Kind) + " " + o.Name, Kind: strings.ToUpper(o.Kind), Name: quote(o.Name), Create: string(o.Create),
			Same: fmt.Sprint(o), // with the settings in force at its creation
		})
	}
	return list
}

// comparable parses the answer to SHOW CREATE TABLE, which has one line for each column and key.
func (t *table) comparable() database.Object {
	o := database.Object{Path: t.Name, Kind: "TABLE", Name: quote(t.Name), Create: t.Create, Table: &database.Table{
		Rows: database.Rows{N: t.Rows, Sum: t.Digest},
	}}
	definition := nextNumber.ReplaceAllString(t.Create, "")
	if t.Sequence {
		o.Kind = "SEQUENCE"
		o.Clauses = []string{")" + strings.TrimPrefix(definition, "CREATE SEQUENCE "+o.Name)}
		return o
	}
	for line := range strings.Lines(definition) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ",")
		if name, _, found := strings.Cut(line, "` "); found && strings.HasPrefix(line, "`") {
			o.Columns = append(o.Columns, database.Column{Name: name + "`", Definition: line})
		} else {
			o.Clauses = append(o.Clauses, line)
		}
	}
	_, next, found := strings.Cut(nextNumber.FindString(t.Create), "=")
	if !found {
		next = "none"
	}
	o.Details = []database.Detail{
		{Name: "next number", Value: next}, {Name: "ENGINE", Value: t.Engine}, {Name: "the key by which its rows are read is", Value: strings.Join(t.Key, ", ")},
		{Name: "its definition is", Value: strings.Join(strings.Fields(definition), " ")},
	}
	return o
}

// changesOf describes the changes from t to now.
func changesOf(t, now table) string {
	list := database.Compare([]database.Object{t.comparable()}, []database.Object{now.comparable()}, "MODIFY COLUMN")
	if len(list) == 0 {
		return fmt.Sprintf("its definition is %q, was %q", now.Create, t.Create)
	}
	return list[0].Summary
}

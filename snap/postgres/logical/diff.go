package logical

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/logical/dumptext"
)

// Diff describes in SQL, with numbers of rows, how the database changed from one snapshot to
// another or to the live state. paths are names of schemas, or of tables as SCHEMA.TABLE.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare database snapshots"
	var sides [2]*side
	err := d.Do(ctx, op, func() (err error) {
		if sides[0], err = d.side(ctx, from, nil); err == nil {
			sides[1], err = d.side(ctx, to, sides[0])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	list := compare(d.login.Database, sides[0], sides[1])
	if len(paths) == 0 {
		return list, nil
	}
	return slices.DeleteFunc(list, func(c snap.Change) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return c.Path == p || strings.HasPrefix(c.Path, p+".") })
	}), nil
}

// side is one of the two states that Diff compares.
type side struct {
	state *state
	text  []byte // of the schema
}

// side returns a stored state, or the live state if id is "". other is the state that the live one is compared with, or nil.
func (d *Driver) side(ctx context.Context, id snap.SnapshotID, other *side) (*side, error) {
	if id != "" {
		root, err := d.records.Snapshot("", id)
		if err != nil {
			return nil, err
		}
		m, err := load(d.cfg.Store, root.Hash)
		if err != nil {
			return nil, err
		}
		return d.storedSide(m)
	}
	var like *state
	if other != nil {
		like = other.state
	}
	m, err := d.readLive(ctx, nil, like)
	if err != nil {
		return nil, err
	}
	return &side{&m.State, m.plain}, nil
}

func (d *Driver) storedSide(m *manifest) (*side, error) {
	if m.State.Absent {
		return &side{state: &m.State}, nil
	}
	text, err := readAll(d.cfg.Store, m.text)
	return &side{&m.State, text}, err
}

// compare describes the changes from a to b.
func compare(db string, a, b *side) []snap.Change {
	switch {
	case a.state.hash() == b.state.hash():
		return nil
	case a.state.Absent:
		return []snap.Change{{Path: db, Operation: snap.Create, Summary: "CREATE DATABASE " + quote(db)}}
	case b.state.Absent:
		return []snap.Change{{Path: db, Operation: snap.Delete, Summary: "DROP DATABASE " + quote(db)}}
	}
	list := differences(a.state, b.state)
	told := map[string]bool{}
	for _, c := range list {
		told[c.Path] = true
	}
	before, after := dumptext.Objects(a.text), dumptext.Objects(b.text)
	list = append(list, dumptext.Changes(before, after, told, false)...)
	if len(list) == 0 { // only a part of a table differs, such as a default
		list = dumptext.Changes(before, after, nil, true)
	}
	if len(list) == 0 {
		list = []snap.Change{{Path: db, Operation: snap.Modify, Summary: dumptext.Difference(a.text, b.text)}}
	}
	return list
}

// differences returns the changes of tables, sequences, large objects and the database's properties.
func differences(a, b *state) (list []snap.Change) {
	list = database.Compare(tablesOf(a), tablesOf(b), "ALTER COLUMN")
	return append(append(list, sequenceChanges(a, b)...), otherChanges(a, b)...)
}

// tablesOf converts the tables for database.Compare.
func tablesOf(s *state) (list []database.Object) {
	for _, t := range s.Tables {
		o := database.Object{Path: t.id(), Kind: "TABLE", Name: sqlName(t.Schema, t.Name), Table: &database.Table{
			Rows: database.Rows{N: t.Rows, Sum: t.Sum}, Details: []database.Detail{{Name: "the condition for its captured rows is", Value: t.Where}},
		}}
		o.Create = fmt.Sprintf("CREATE TABLE %s (%s)", o.Name, columnText(t.Columns))
		for _, c := range t.Columns {
			o.Columns = append(o.Columns, database.Column{Name: ident(c.Name), Definition: c.text()})
		}
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b database.Object) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func sequenceChanges(a, b *state) (list []snap.Change) {
	before := map[string]sequence{}
	for _, s := range a.Sequences {
		before[s.Schema+"."+s.Name] = s
	}
	for _, s := range b.Sequences {
		old, was := before[s.Schema+"."+s.Name]
		if was && old != s {
			list = append(list, snap.Change{Path: s.Schema + "." + s.Name, Operation: snap.Modify,
				Summary: fmt.Sprintf("ALTER SEQUENCE %s RESTART; at %d, was at %d", sqlName(s.Schema, s.Name), s.Last, old.Last)})
		}
	}
	return list
}

// otherChanges returns the changes of large objects and of the database's properties.
func otherChanges(a, b *state) (list []snap.Change) {
	if a.Blobs != b.Blobs || digest(a.Objects) != digest(b.Objects) {
		list = append(list, snap.Change{Path: "large objects", Operation: snap.Modify,
			Summary: fmt.Sprintf("%d, were %d", len(b.Objects), len(a.Objects))})
	}
	var names []string
	x, y := reflect.ValueOf(a.Props), reflect.ValueOf(b.Props)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			names = append(names, strings.ToLower(x.Type().Field(i).Name))
		}
	}
	if len(names) > 0 {
		list = append(list, snap.Change{Path: "database", Operation: snap.Modify, Summary: "ALTER DATABASE: " + strings.Join(names, ", ")})
	}
	return list
}

// summarize returns the first few changes in one line.
func summarize(list []snap.Change) string {
	var said []string
	for _, c := range list[:min(3, len(list))] {
		said = append(said, c.Path+": "+c.Summary)
	}
	if n := len(list) - len(said); n > 0 {
		said = append(said, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(said, "; ")
}

func (c column) text() string { return ident(c.Name) + " " + c.Type + c.Rest }

func columnText(list []column) string {
	var parts []string
	for _, c := range list {
		parts = append(parts, c.text())
	}
	return strings.Join(parts, ", ")
}

func sqlName(schema, name string) string { return ident(schema) + "." + ident(name) }

// ident quotes a name if SQL needs it.
func ident(name string) string {
	for i, c := range name {
		if !(c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9') {
			return quote(name)
		}
	}
	return name
}

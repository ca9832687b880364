package mysql

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"mulligan/snap"
)

// Diff lists the tables and objects that differ. paths are their names; an
// object's has its kind before it ("view v").
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

// state gives a stored state, or the live one.
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

// compare says what happened from a to b.
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
	for _, t := range b.Tables {
		old := a.table(t.Name)
		switch {
		case old == nil:
			say(t.Name, snap.Create, short(t.Create)+"; "+rows(t.Rows))
		case !reflect.DeepEqual(*old, t):
			say(t.Name, snap.Modify, strings.Join(old.differences(&t), "; "))
		}
	}
	for _, t := range a.Tables {
		if b.table(t.Name) == nil {
			say(t.Name, snap.Delete, "DROP TABLE "+quote(t.Name)+"; it had "+rows(t.Rows))
		}
	}
	compareObjects(a, b, say)
	return list
}

func compareObjects(a, b *state, say func(string, snap.Operation, string)) {
	same := func(o object) func(object) bool {
		return func(p object) bool { return p.Kind == o.Kind && p.Name == o.Name }
	}
	for _, o := range b.Objects {
		path := strings.ToLower(o.Kind) + " " + o.Name
		switch i := slices.IndexFunc(a.Objects, same(o)); {
		case i < 0:
			say(path, snap.Create, short(string(o.Create)))
		case !reflect.DeepEqual(a.Objects[i], o):
			say(path, snap.Modify, short(string(o.Create)))
		}
	}
	for _, o := range a.Objects {
		if !slices.ContainsFunc(b.Objects, same(o)) {
			say(strings.ToLower(o.Kind)+" "+o.Name, snap.Delete, "DROP "+strings.ToUpper(o.Kind)+" "+quote(o.Name))
		}
	}
}

// differences says in which ways a table differs from what it became.
func (t *table) differences(b *table) (list []string) {
	list = t.columnChanges(b)
	if len(list) == 0 && nextNumber.ReplaceAllString(t.Create, "") != nextNumber.ReplaceAllString(b.Create, "") {
		list = append(list, t.otherChanges(b)...)
	}
	switch n := b.Rows - t.Rows; {
	case n > 0:
		list = append(list, fmt.Sprintf("%s, were %d (%d more)", rows(b.Rows), t.Rows, n))
	case n < 0:
		list = append(list, fmt.Sprintf("%s, were %d (%d fewer)", rows(b.Rows), t.Rows, -n))
	case t.Digest != b.Digest && len(list) == 0:
		list = append(list, rows(b.Rows)+", as many as before, with other content")
	}
	switch {
	case len(list) > 0:
	case nextNumber.FindString(t.Create) != nextNumber.FindString(b.Create):
		list = append(list, fmt.Sprintf("next number %s, was %s", number(b.Create), number(t.Create)))
	case t.Create != b.Create:
		list = append(list, "its columns are in another order: "+short(b.Create))
	case t.Engine != b.Engine:
		list = append(list, fmt.Sprintf("ENGINE=%s, was %s", b.Engine, t.Engine))
	default:
		list = append(list, "the key by which its rows are read")
	}
	return list
}

// number is the next number of a table's definition, or "none".
func number(create string) string {
	_, n, found := strings.Cut(nextNumber.FindString(create), "=")
	if !found {
		return "none"
	}
	return n
}

// definitions takes SHOW CREATE TABLE's answer apart, which has a line for each
// column and each key: columns by name, in order, and the other lines.
func (t *table) definitions() (names []string, def map[string]string, others []string) {
	def = map[string]string{}
	for line := range strings.Lines(nextNumber.ReplaceAllString(t.Create, "")) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ",")
		if !strings.HasPrefix(line, "`") {
			others = append(others, line)
			continue
		}
		name, _, _ := strings.Cut(line, "` ")
		names = append(names, name+"`")
		def[name+"`"] = line
	}
	return names, def, others
}

func (t *table) columnChanges(b *table) (list []string) {
	names, before, _ := t.definitions()
	newNames, after, _ := b.definitions()
	alter := "ALTER TABLE " + quote(t.Name)
	for _, n := range names {
		if def, found := after[n]; !found {
			list = append(list, alter+" DROP COLUMN "+n)
		} else if def != before[n] {
			list = append(list, fmt.Sprintf("%s MODIFY COLUMN %s (was %s)", alter, def, before[n]))
		}
	}
	for _, n := range newNames {
		if _, found := before[n]; !found {
			list = append(list, alter+" ADD COLUMN "+after[n])
		}
	}
	return list
}

// otherChanges are those of keys, constraints and options.
func (t *table) otherChanges(b *table) (list []string) {
	_, _, before := t.definitions()
	_, _, after := b.definitions()
	alter := "ALTER TABLE " + quote(t.Name)
	for _, line := range before {
		if !slices.Contains(after, line) && !strings.HasPrefix(line, ")") {
			list = append(list, alter+" DROP "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			list = append(list, strings.Replace(alter+" ADD "+line, "ADD ) ", "", 1))
		}
	}
	return list
}

// short is a definition on one line, cut where it is long.
func short(sql string) string {
	const most = 400
	text := strings.Join(strings.Fields(sql), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "")
}

func rows(n int64) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

package logical

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"mulligan/snap"
	"mulligan/snap/database"
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

// entry is one object of the schema.
type entry struct {
	kind, schema, name string
	sql                string
	same               string // sql in the form that is compared
}

// partMark begins an object's part of pg_dump's text.
const partMark = "\n--\n-- Name: "

// entriesOf splits pg_dump's text at the comment before each object:
// "-- Name: N; Type: T; Schema: S; Owner: O".
func entriesOf(text []byte) map[string]entry {
	list := map[string]entry{}
	for _, part := range bytes.Split(text, []byte(partMark))[min(1, len(text)):] {
		head, body, _ := strings.Cut(string(part), "\n")
		e := entry{sql: withoutSets(strings.TrimPrefix(body, "--\n"))}
		e.name, head, _ = strings.Cut(head, "; Type: ")
		e.kind, head, _ = strings.Cut(head, "; Schema: ")
		e.schema, _, _ = strings.Cut(head, "; Owner: ")
		e.same = sortedTable(e.kind, e.sql)
		key := e.kind + " " + e.schema + "." + e.name
		if old, ok := list[key]; ok {
			e.sql, e.same = old.sql+"\n"+e.sql, old.same+"\n"+e.same
		}
		list[key] = e
	}
	return list
}

// withoutSets removes the SET statements that pg_dump writes for the next object.
func withoutSets(sql string) string {
	sql = strings.TrimSpace(sql)
	for {
		i := strings.LastIndexByte(sql, '\n')
		if last := sql[i+1:]; i < 0 || !strings.HasPrefix(last, "SET default_") {
			return strings.TrimSpace(strings.TrimSuffix(sql, "--\n-- PostgreSQL database dump complete\n--"))
		}
		sql = strings.TrimSpace(sql[:i])
	}
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
	before, after := entriesOf(a.text), entriesOf(b.text)
	list = append(list, objectChanges(before, after, told, false)...)
	if len(list) == 0 { // only a part of a table differs, such as a default
		list = objectChanges(before, after, nil, true)
	}
	if len(list) == 0 {
		list = []snap.Change{{Path: db, Operation: snap.Modify, Summary: textChange(canonical(a.text), canonical(b.text))}}
	}
	return list
}

// differences returns the changes of tables, sequences, large objects and the database's properties.
func differences(a, b *state) (list []snap.Change) {
	list = database.Compare(tablesOf(a), tablesOf(b), "ALTER COLUMN")
	return append(append(list, sequenceChanges(a, b)...), otherChanges(a, b)...)
}

// textChange describes the first difference between two schema texts with equal objects.
func textChange(a, b []byte) string {
	before, after := strings.Split(string(a), partMark), strings.Split(string(b), partMark)
	head := func(parts []string, i int) string {
		if i >= len(parts) {
			return "the end of the dump"
		}
		name, rest, _ := strings.Cut(parts[i], "; Type: ")
		kind, _, _ := strings.Cut(rest, "; Schema: ")
		return kind + " " + name
	}
	if before[0] != after[0] {
		was, is := strings.Split(before[0], "\n"), strings.Split(after[0], "\n")
		for i := range min(len(was), len(is)) {
			if was[i] != is[i] {
				return fmt.Sprintf("the dump begins with %q, was %q", is[i], was[i])
			}
		}
		return "the dump begins with other settings"
	}
	for i := 1; i < max(len(before), len(after)); i++ {
		if i >= min(len(before), len(after)) || before[i] != after[i] {
			if was, is := head(before, i), head(after, i); was != is {
				return fmt.Sprintf("the dump has %s where it had %s", is, was)
			}
			return "the definition of " + head(after, i) + " differs"
		}
	}
	return "the digests of the schemas differ, although their texts are equal"
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

// secret are the kinds of objects whose definition may hold a password.
var secret = map[string]bool{"USER MAPPING": true, "SERVER": true, "SUBSCRIPTION": true, "FOREIGN TABLE": true}

// parts are the kinds of objects that belong to a table or a sequence, which is reported instead of them.
var parts = map[string]bool{"DEFAULT": true, "SEQUENCE OWNED BY": true, "SEQUENCE SET": true, "TABLE ATTACH": true, "MATERIALIZED VIEW DATA": true}

// objectChanges returns the changes of all other objects in the schema's text. told has the paths of the tables that are
// reported already. If all is set, parts of tables are included.
func objectChanges(a, b map[string]entry, told map[string]bool, all bool) (list []snap.Change) {
	skip := func(e entry) bool {
		return parts[e.kind] && !all || (e.kind == "TABLE" || about[e.kind] != "") && told[e.path()]
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if e := a[key]; b[key].kind == "" && !skip(e) {
			list = append(list, snap.Change{Path: e.path(), Operation: snap.Delete, Summary: e.phrase("DROP")})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		e := b[key]
		old, was := a[key]
		switch {
		case skip(e) || was && old.same == e.same:
		case was:
			list = append(list, snap.Change{Path: e.path(), Operation: snap.Modify, Summary: e.phrase("ALTER")})
		default:
			list = append(list, snap.Change{Path: e.path(), Operation: snap.Create, Summary: e.created()})
		}
	}
	return list
}

// about maps each kind of object that describes another object to the words for it. The name of such an object begins with the
// kind of the other.
var about = map[string]string{"ACL": "GRANT or REVOKE on", "COMMENT": "COMMENT ON"}

func (e entry) path() string {
	name := e.name
	if _, ok := about[e.kind]; ok {
		_, name, _ = strings.Cut(name, " ")
	}
	if e.schema == "-" || e.schema == "" {
		return name
	}
	return e.schema + "." + name
}

// phrase describes the change of the object.
func (e entry) phrase(verb string) string {
	if on, ok := about[e.kind]; ok {
		return on + " " + e.name
	}
	return verb + " " + e.kind + " " + e.name
}

// created returns the beginning of the object's CREATE statement.
func (e entry) created() string {
	const most = 160
	if secret[e.kind] || e.sql == "" {
		return "CREATE " + e.kind + " " + e.name
	}
	text := strings.Join(strings.Fields(strings.TrimSuffix(strings.SplitN(e.sql, ";\n", 2)[0], ";")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
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

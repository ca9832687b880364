// Package dumptext reads what pg_dump writes of a schema: the form of the text that is compared, its objects, and how two texts differ.
package dumptext

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mulligan/snap"
)

// Object is one object of the schema.
type Object struct {
	kind, schema, name string
	sql                string
	same               string // sql in the form that is compared
}

// partMark begins an object's part of pg_dump's text.
const partMark = "\n--\n-- Name: "

// Objects splits pg_dump's text at the comment before each object:
// "-- Name: N; Type: T; Schema: S; Owner: O". The keys have no meaning but that objects of two texts with the same key are the same object.
func Objects(text []byte) map[string]Object {
	list := map[string]Object{}
	for _, part := range bytes.Split(text, []byte(partMark))[min(1, len(text)):] {
		head, body, _ := strings.Cut(string(part), "\n")
		e := Object{sql: withoutSets(strings.TrimPrefix(body, "--\n"))}
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

const inherits = "\nINHERITS ("

// Canonical returns pg_dump's text in the form that is compared. If tables inherit, it sorts the objects, and the lines of
// those tables' definitions, because their order depends on the order of the columns. It puts the settings in force before each
// object.
func Canonical(text []byte) []byte {
	if !bytes.Contains(text, []byte(inherits)) {
		return text
	}
	parts := strings.Split(string(text), partMark)
	settings := map[string]string{}
	var list []string
	for i, part := range parts {
		before := strings.Join(slices.Sorted(maps.Values(settings)), "")
		lines := strings.SplitAfter(strings.TrimRight(part, "\n"), "\n")
		end := len(lines)
		for end > 0 && (strings.HasPrefix(lines[end-1], "SET default_") || strings.TrimSpace(lines[end-1]) == "") {
			end--
		}
		for _, line := range lines[end:] {
			if name, _, ok := strings.Cut(line, " = "); ok {
				settings[name] = strings.TrimSpace(line) + "\n"
			}
		}
		body := strings.TrimRight(strings.Join(lines[:end], ""), "\n")
		if i == 0 {
			list = append(list, body)
			continue
		}
		kind := kindOf(body)
		if kind != "COMMENT" && kind != "ACL" && kind != "DEFAULT" {
			body = before + body
		}
		list = append(list, sortedTable(kind, body))
	}
	slices.Sort(list[1:])
	return []byte(strings.Join(list, partMark))
}

// kindOf returns the type in pg_dump's comment at the beginning of part.
func kindOf(part string) string {
	head, _, _ := strings.Cut(part, "\n")
	_, kind, _ := strings.Cut(head, "; Type: ")
	kind, _, _ = strings.Cut(kind, "; Schema: ")
	return kind
}

// sortedTable sorts the lines of a table's definition if the table inherits.
func sortedTable(kind, sql string) string {
	if kind != "TABLE" && kind != "FOREIGN TABLE" || !strings.Contains(sql, inherits) {
		return sql
	}
	lines := strings.Split(sql, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, ",")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Difference describes the first difference between two texts with equal objects.
func Difference(a, b []byte) string {
	a, b = Canonical(a), Canonical(b)
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

// secret are the kinds of objects whose definition may hold a password.
var secret = map[string]bool{"USER MAPPING": true, "SERVER": true, "SUBSCRIPTION": true, "FOREIGN TABLE": true}

// parts are the kinds of objects that belong to a table or a sequence, which is reported instead of them.
var parts = map[string]bool{"DEFAULT": true, "SEQUENCE OWNED BY": true, "SEQUENCE SET": true, "TABLE ATTACH": true, "MATERIALIZED VIEW DATA": true}

// Changes returns the changes of the objects of a text from a to b. told has the paths of the tables that are
// reported already. If all is set, parts of tables are included.
func Changes(a, b map[string]Object, told map[string]bool, all bool) (list []snap.Change) {
	skip := func(e Object) bool {
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

func (e Object) path() string {
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
func (e Object) phrase(verb string) string {
	if on, ok := about[e.kind]; ok {
		return on + " " + e.name
	}
	return verb + " " + e.kind + " " + e.name
}

// created returns the beginning of the object's CREATE statement.
func (e Object) created() string {
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

package database

import (
	"fmt"
	"slices"
	"strings"

	"mulligan/snap"
)

// Object is a table of a database, or another object that is completely described by its definition.
type Object struct {
	Path   string // the Path of a Change
	Kind   string // SQL's word for the kind: "TABLE", "VIEW"
	Name   string // quoted as in SQL
	Create string // the statement that creates the object
	Same   string // compared instead of Create if Create is incomplete; unused for tables
	*Table        // nil unless the object is a table
}

// Table describes a table.
type Table struct {
	Columns []Column
	Clauses []string // keys, constraints and options, as in the table's definition
	Rows    Rows
	Details []Detail // reported only if nothing else differs
}

// Column is a column of a table.
type Column struct {
	Name       string // quoted as in SQL
	Definition string // the definition in SQL, including the name
}

// Rows describes the rows of a table.
type Rows struct {
	N     int64  // number of rows; -1: unknown
	Sum   string // digest, which is the same for the same rows; "": unknown
	About bool   // N is an estimate
}

// Detail is a named property of a table, such as its next AUTO_INCREMENT number.
type Detail struct{ Name, Value string }

// String returns the number of rows, for people.
func (r Rows) String() string {
	text := fmt.Sprintf("%d rows", r.N)
	if r.N == 1 {
		text = "1 row"
	}
	if r.About {
		return "about " + text
	}
	return text
}

// Short returns a statement on one line, cut off after 400 bytes.
func Short(sql string) string {
	const most = 400
	text := strings.Join(strings.Fields(sql), " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "")
}

// Compare describes in SQL how the objects of a database changed from a to b, with numbers of rows. alterColumn is the clause
// with which the engine's SQL changes a column, such as "ALTER COLUMN".
func Compare(a, b []Object, alterColumn string) (list []snap.Change) {
	before, after := byPath(a), byPath(b)
	for _, o := range a {
		if _, there := after[o.Path]; !there {
			list = append(list, snap.Change{Path: o.Path, Operation: snap.Delete, Summary: o.dropped()})
		}
	}
	for _, o := range b {
		old, was := before[o.Path]
		if !was {
			list = append(list, snap.Change{Path: o.Path, Operation: snap.Create, Summary: o.created()})
		} else if said := old.became(o, alterColumn); said != "" {
			list = append(list, snap.Change{Path: o.Path, Operation: snap.Modify, Summary: said})
		}
	}
	return list
}

func byPath(list []Object) map[string]Object {
	m := map[string]Object{}
	for _, o := range list {
		m[o.Path] = o
	}
	return m
}

func (o Object) dropped() string {
	text := "DROP " + o.Kind + " " + o.Name
	if o.Table != nil && o.Rows.N >= 0 {
		text += "; it had " + o.Rows.String()
	}
	return text
}

func (o Object) created() string {
	text := Short(o.Create)
	if o.Table != nil && o.Rows.N >= 0 {
		text += "; " + o.Rows.String()
	}
	return text
}

// became describes how the object changed into now. It returns "" if the object did not change.
func (o Object) became(now Object, alterColumn string) string {
	if o.Table == nil || now.Table == nil || o.Kind != now.Kind {
		if o.Kind == now.Kind && o.Create == now.Create && o.Same == now.Same {
			return ""
		}
		return now.created()
	}
	said := o.columnChanges(now, alterColumn)
	if len(said) == 0 {
		said = o.clauseChanges(now)
	}
	if words := o.Rows.Became(now.Rows, len(said) == 0); words != "" {
		said = append(said, words)
	}
	if len(said) == 0 {
		said = o.detailChanges(now)
	}
	return strings.Join(said, "; ")
}

func (t *Table) column(name string) (Column, bool) {
	i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, false
	}
	return t.Columns[i], true
}

// columnChanges describes the columns that were dropped, added or changed. If there are none, it describes a new order of
// columns.
func (o Object) columnChanges(now Object, alterColumn string) (said []string) {
	alter := "ALTER " + o.Kind + " " + o.Name
	for _, c := range o.Columns {
		if new, found := now.column(c.Name); !found {
			said = append(said, alter+" DROP COLUMN "+c.Name)
		} else if new != c {
			said = append(said, fmt.Sprintf("%s %s %s (was %s)", alter, alterColumn, new.Definition, c.Definition))
		}
	}
	for _, c := range now.Columns {
		if _, found := o.column(c.Name); !found {
			said = append(said, alter+" ADD COLUMN "+c.Definition)
		}
	}
	if len(said) == 0 && !slices.Equal(o.Columns, now.Columns) {
		said = append(said, fmt.Sprintf("the order of its columns is %s, was %s", namesOf(now.Columns), namesOf(o.Columns)))
	}
	return said
}

func namesOf(list []Column) string {
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// clauseChanges describes the keys, constraints and options that were dropped or added. Dropped options are not reported,
// because new values replace them.
func (o Object) clauseChanges(now Object) (said []string) {
	alter := "ALTER " + o.Kind + " " + o.Name
	for _, c := range o.Clauses {
		if !slices.Contains(now.Clauses, c) && !isOption(c) {
			said = append(said, alter+" DROP "+c)
		}
	}
	for _, c := range now.Clauses {
		switch {
		case slices.Contains(o.Clauses, c):
		case isOption(c):
			said = append(said, alter+" "+strings.TrimSpace(strings.TrimPrefix(c, ")")))
		default:
			said = append(said, alter+" ADD "+c)
		}
	}
	return said
}

// isOption reports whether the clause is an option: one after the closing parenthesis of the table's definition.
func isOption(clause string) bool { return strings.HasPrefix(clause, ")") }

// Became describes how the rows changed into now. It returns "" if they did not change. If the number of rows is the same and
// their content differs, Became reports this only if alone is set: nothing else about the table changed.
func (r Rows) Became(now Rows, alone bool) string {
	switch n := now.N - r.N; {
	case r.N < 0 || now.N < 0:
	case n > 0:
		return fmt.Sprintf("%s, were %d (%d more)", now, r.N, n)
	case n < 0:
		return fmt.Sprintf("%s, were %d (%d fewer)", now, r.N, -n)
	case alone && r.Sum != now.Sum && r.Sum != "" && now.Sum != "":
		return now.String() + ", as many as before, with other content"
	}
	return ""
}

func (o Object) detailChanges(now Object) (said []string) {
	for _, d := range now.Details {
		i := slices.IndexFunc(o.Details, func(old Detail) bool { return old.Name == d.Name })
		if i >= 0 && o.Details[i].Value != d.Value {
			said = append(said, fmt.Sprintf("%s %s, was %s", d.Name, d.Value, o.Details[i].Value))
		}
	}
	return said
}

package database

import (
	"fmt"
	"slices"
	"testing"
)

// TestCompare: what happened to a table is told in SQL and in numbers of rows, once.
func TestCompare(t *testing.T) {
	column := func(name, rest string) Column { return Column{name, name + " " + rest} }
	a, b := column("a", "int"), column("b", "text")
	base := Table{Columns: []Column{a, b}, Clauses: []string{"PRIMARY KEY (a)", ") STRICT"}, Rows: Rows{N: 2, Sum: "x"}, Details: []Detail{{"next number", "3"}}}
	table := func(change func(*Table)) Object {
		now := Table{Columns: slices.Clone(base.Columns), Clauses: slices.Clone(base.Clauses), Rows: base.Rows, Details: slices.Clone(base.Details)}
		change(&now)
		return Object{Path: "t", Kind: "TABLE", Name: "t", Create: "CREATE TABLE  t", Table: &now}
	}
	same := func(*Table) {}
	view := Object{Path: "v", Kind: "VIEW", Name: "v", Create: "CREATE VIEW v"}
	for _, x := range []struct {
		what     string
		old, now []Object
		want     string
	}{
		{"nothing", []Object{table(same), view}, []Object{table(same), view}, "[]"},
		{"gone", []Object{table(same), view}, nil, "[{t delete DROP TABLE t; it had 2 rows} {v delete DROP VIEW v}]"},
		{"new", nil, []Object{table(same)}, "[{t create CREATE TABLE t; 2 rows}]"},
		{"a column more", []Object{table(same)}, []Object{table(func(t *Table) { t.Columns = append(t.Columns, column("c", "int")) })}, "[{t modify ALTER TABLE t ADD COLUMN c int}]"},
		{"a column less", []Object{table(same)}, []Object{table(func(t *Table) { t.Columns, t.Rows.N = t.Columns[:1], 1 })}, "[{t modify ALTER TABLE t DROP COLUMN b; 1 row, were 2 (1 fewer)}]"},
		{"another type", []Object{table(same)}, []Object{table(func(t *Table) { t.Columns[1] = column("b", "blob") })}, "[{t modify ALTER TABLE t ALTER COLUMN b blob (was b text)}]"},
		{"another order", []Object{table(same)}, []Object{table(func(t *Table) { slices.Reverse(t.Columns) })}, "[{t modify the order of its columns is b, a, was a, b}]"},
		{"another key", []Object{table(same)}, []Object{table(func(t *Table) { t.Clauses[0] = "UNIQUE (b)" })}, "[{t modify ALTER TABLE t DROP PRIMARY KEY (a); ALTER TABLE t ADD UNIQUE (b)}]"},
		{"another option", []Object{table(same)}, []Object{table(func(t *Table) { t.Clauses[1] = ") WITHOUT ROWID" })}, "[{t modify ALTER TABLE t WITHOUT ROWID}]"},
		{"more rows", []Object{table(same)}, []Object{table(func(t *Table) { t.Rows.N, t.Details[0].Value = 9, "10" })}, "[{t modify 9 rows, were 2 (7 more)}]"},
		{"other rows", []Object{table(same)}, []Object{table(func(t *Table) { t.Rows.Sum = "y" })}, "[{t modify 2 rows, as many as before, with other content}]"},
		{"rows not read", []Object{table(same)}, []Object{table(func(t *Table) { t.Rows.Sum = "" })}, "[]"},
		{"rows not counted", []Object{table(same)}, []Object{table(func(t *Table) { t.Rows.N = -1 })}, "[]"},
		{"a detail", []Object{table(same)}, []Object{table(func(t *Table) { t.Details[0].Value = "4" })}, "[{t modify next number 4, was 3}]"},
		{"a view", []Object{view}, []Object{{Path: "v", Kind: "VIEW", Name: "v", Create: "CREATE VIEW v AS 1"}}, "[{v modify CREATE VIEW v AS 1}]"},
		{"a view's settings", []Object{view}, []Object{{Path: "v", Kind: "VIEW", Name: "v", Create: "CREATE VIEW v", Same: "utf8"}}, "[{v modify CREATE VIEW v}]"},
		{"a view for a table", []Object{{Path: "t", Kind: "VIEW", Name: "t", Create: "CREATE VIEW t"}}, []Object{table(same)}, "[{t modify CREATE TABLE t; 2 rows}]"},
	} {
		if got := fmt.Sprint(Compare(x.old, x.now, "ALTER COLUMN")); got != x.want {
			t.Errorf("%s: %s, want %s", x.what, got, x.want)
		}
	}
}

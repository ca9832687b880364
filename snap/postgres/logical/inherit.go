package logical

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// A restore cannot always create the columns of an inheriting table in the same order. A column that the parent got later comes
// last in the live table. But a dump names the parent and the table's own columns, which creates inherited columns first. So
// the columns of such tables are stored in the order of a restored dump, and the lines of their definitions are compared in any
// order.

// lineage has the facts that determine the order in which a dump creates columns.
type lineage struct {
	parents map[uint32][]uint32
	columns map[uint32][]heir // in the live order
	done    map[uint32][]string
}

// heir is a column of a table that has a parent or a child.
type heir struct {
	name string
	own  bool // a dump lists it among the table's own columns
}

// lineage reads the inheritance between tables.
func (c *conn) lineage(ctx context.Context) (*lineage, error) {
	l := &lineage{parents: map[uint32][]uint32{}, columns: map[uint32][]heir{}, done: map[uint32][]string{}}
	const links = `FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE c.relkind IN ('r', 'f') AND NOT c.relispartition`
	rows, err := c.Query(ctx, `SELECT i.inhrelid, i.inhparent `+links+` ORDER BY i.inhrelid, i.inhseqno`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var child, parent uint32
		if err := rows.Scan(&child, &parent); err != nil {
			return nil, err
		}
		if err := c.kept.Add("an oid"); err != nil {
			return nil, err
		}
		l.parents[child] = append(l.parents[child], parent)
	}
	if rows.Err() != nil || len(l.parents) == 0 {
		return l, rows.Err()
	}
	rows, err = c.Query(ctx, `SELECT a.attrelid, a.attname, a.attislocal FROM pg_catalog.pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped
		AND a.attrelid IN (SELECT i.inhrelid `+links+` UNION SELECT i.inhparent `+links+`) ORDER BY a.attrelid, a.attnum`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var oid uint32
		var h heir
		if err := rows.Scan(&oid, &h.name, &h.own); err != nil {
			return nil, err
		}
		if err := c.kept.Add(h.name); err != nil {
			return nil, err
		}
		l.columns[oid] = append(l.columns[oid], h)
	}
	return l, rows.Err()
}

// order returns the names of a table's columns in the order in which a dump creates them: inherited columns first.
func (l *lineage) order(oid uint32) []string {
	if names, ok := l.done[oid]; ok {
		return names
	}
	l.done[oid] = nil // ends the recursion on a cycle, which no real server has
	parents := l.parents[oid]
	var names []string
	have := map[string]bool{}
	add := func(name string) {
		if !have[name] {
			have[name] = true
			names = append(names, name)
		}
	}
	for _, p := range parents {
		for _, name := range l.order(p) {
			add(name)
		}
	}
	for _, h := range l.columns[oid] {
		if h.own || len(parents) == 0 {
			add(h.name)
		}
	}
	l.done[oid] = names
	return names
}

// arrange sorts the columns of inheriting tables in the order of a dump. It returns a note about the tables whose live order
// differs.
func (c *conn) arrange(ctx context.Context, list []*relation) (notes []string, err error) {
	l, err := c.lineage(ctx)
	if err != nil {
		return nil, err
	}
	var moved []string
	for _, r := range list {
		if len(l.parents[r.OID]) == 0 {
			continue
		}
		if now := r.table.Columns; r.table.reorder(l.order(r.OID)) {
			moved = append(moved, fmt.Sprintf("%s (%s instead of %s)", r.table.id(), namesOf(r.table.Columns), namesOf(now)))
		}
	}
	const most = 3
	if n := len(moved); n > 0 {
		text := strings.Join(moved[:min(n, most)], ", ")
		if n > most {
			text += fmt.Sprintf(" and %d tables more", n-most)
		}
		notes = append(notes, "A dump cannot keep the position of columns that a parent table got later. A restore changes the order of columns in "+text+
			". Statements that name their columns are not affected.")
	}
	return notes, nil
}

func namesOf(columns []column) string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// reorder sorts the columns by names, and reports whether their order changed. Columns not in
// names come last.
func (t *table) reorder(names []string) bool {
	rank := map[string]int{}
	for i, name := range names {
		rank[name] = i - len(names)
	}
	sorted := slices.Clone(t.Columns)
	slices.SortStableFunc(sorted, func(a, b column) int { return cmp.Compare(rank[a.Name], rank[b.Name]) })
	if slices.Equal(sorted, t.Columns) {
		return false
	}
	t.Columns = sorted
	return true
}

// follow sorts the columns of tables in the order of state s, if the columns are equal: earlier versions of the driver stored
// them in the live order.
func follow(s *state, list []*relation) {
	if s == nil {
		return
	}
	tables := map[string]table{}
	for _, t := range s.Tables {
		tables[t.id()] = t
	}
	for _, r := range list {
		was, ok := tables[r.table.id()]
		if !ok || len(was.Columns) != len(r.table.Columns) {
			continue
		}
		var names []string
		for _, c := range was.Columns {
			names = append(names, c.Name)
		}
		r.table.reorder(names)
	}
}

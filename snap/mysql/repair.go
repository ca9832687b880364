package mysql

import (
	"context"
	"slices"
)

// unreadable are the server's error numbers for a table with missing or damaged parts: 7, 29, 1017 files; 1030, 1033, 1034
// contents; 1194, 1195 marked as crashed; 1932 unknown to the storage engine.
var unreadable = []uint16{7, 29, 1017, 1030, 1033, 1034, 1194, 1195, 1932}

// repair handles tables that were damaged because the server crashed during a RENAME, which is atomic only for InnoDB tables.
// It drops such a table in every database of the move, and loads it again from the store into m.from.
func (d *Driver) repair(ctx context.Context, s *session, m move) error {
	var torn []string
	for _, db := range []string{s.db, m.from, m.away} {
		tables, _, err := s.names(ctx, db)
		if err != nil {
			return err
		}
		for _, t := range tables {
			_, err := s.rows(ctx, "SELECT 1 FROM "+in(db, t)+" LIMIT 1")
			if isCode(err, unreadable...) {
				torn = append(torn, t)
				err = s.exec(ctx, "DROP TABLE IF EXISTS "+in(db, t))
			}
			if err != nil {
				return err
			}
		}
	}
	slices.Sort(torn)
	return d.remake(ctx, s, m, slices.Compact(torn))
}

// remake loads the tables with these names from the store into m.from.
func (d *Driver) remake(ctx context.Context, s *session, m move, names []string) error {
	var made state
	for i, t := range m.want.Tables {
		if !slices.Contains(names, t.Name) {
			continue
		}
		if err := s.createDatabase(ctx, m.from, &m.want.state); err != nil {
			return err
		}
		if err := s.all(ctx, "USE "+quote(m.from), "DROP TABLE IF EXISTS "+in(m.from, t.Name)); err != nil {
			return err
		}
		if err := s.createTable(ctx, m.from, &t); err != nil {
			return err
		}
		if err := d.loadTable(ctx, s, m.from, &t, m.want.rows[i]); err != nil {
			return err
		}
		made.Tables = append(made.Tables, t)
	}
	return s.verify(ctx, m.from, &made)
}

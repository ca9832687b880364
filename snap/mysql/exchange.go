package mysql

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"mulligan/snap"
)

// names lists the tables, sequences and triggers of a database.
func (s *session) names(ctx context.Context, db string) (tables, triggers []string, err error) {
	list, err := s.rows(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND IFNULL(table_type, '') <> 'VIEW' ORDER BY 1", db)
	if err != nil {
		return nil, nil, err
	}
	for _, row := range list {
		tables = append(tables, row[0])
	}
	list, err = s.rows(ctx, "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = ? ORDER BY 1", db)
	for _, row := range list {
		triggers = append(triggers, row[0])
	}
	return tables, triggers, err
}

// move is an exchange of tables. The live database's tables move to the database away, unless they are there already, and all
// tables of from become live.
type move struct {
	from, away string
	want       *stored  // the state of the live database after the move
	base       *state   // the state that the tables which move away must have; nil: any
	drop       []string // live tables that are dropped first
	lock       func(ctx context.Context, s *session) error
}

// statement returns the RENAME TABLE that remains to be done, given where the tables are now, or "" if nothing remains. So it
// gives the right statement after a crash at any point.
func (m *move) statement(ctx context.Context, s *session) (rename string, triggers []string, err error) {
	live, triggers, err := s.names(ctx, s.db)
	if err != nil {
		return "", nil, err
	}
	from, _, err := s.names(ctx, m.from)
	if err != nil {
		return "", nil, err
	}
	var parts []string
	for _, t := range live {
		there := m.want.table(t) != nil && !slices.Contains(from, t)
		if !there {
			parts = append(parts, in(s.db, t)+" TO "+in(m.away, t))
		}
	}
	for _, t := range from {
		parts = append(parts, in(m.from, t)+" TO "+in(s.db, t))
	}
	if len(parts) == 0 {
		return "", nil, nil
	}
	return "RENAME TABLE " + strings.Join(parts, ", "), triggers, nil
}

// exchange runs the move. It drops all triggers first, because a table with a trigger cannot move to another database.
func (d *Driver) exchange(ctx context.Context, m move, begin func() error) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	like := &m.want.state
	if like.Absent {
		like = &state{Charset: "utf8mb4", Collation: "utf8mb4_bin"}
	}
	if err := s.createDatabase(ctx, m.away, like); err != nil {
		return err
	}
	if m.lock == nil {
		if err := d.repair(ctx, s, m); err != nil {
			return err
		}
		err = d.move(ctx, s, s, m, begin)
	} else {
		err = d.moveLocked(ctx, s, m, begin)
	}
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("exchanged"); err != nil {
		return err
	}
	if m.want.Absent {
		return s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(s.db))
	}
	if err := s.redirectBack(ctx, m.from, &m.want.state); err != nil {
		return err
	}
	return s.converge(ctx, s.db, &m.want.state)
}

// move renames the tables. If holder is another session than s, it has locked the tables, and move releases the locks.
func (d *Driver) move(ctx context.Context, s, holder *session, m move, begin func() error) error {
	if err := begin(); err != nil {
		return err
	}
	if holder == s && !m.want.Absent { // otherwise tables are locked, so the database exists
		if err := s.createDatabase(ctx, s.db, &m.want.state); err != nil {
			return err
		}
	}
	for _, t := range m.drop {
		if err := holder.exec(ctx, "DROP TABLE IF EXISTS "+in(s.db, t)); err != nil {
			return err
		}
	}
	rename, triggers, err := m.statement(ctx, s)
	if err != nil {
		return err
	}
	if rename == "" { // an earlier process renamed the tables, and perhaps did not compare them
		return s.late(ctx, m, "")
	}
	for _, t := range triggers {
		if err := holder.exec(ctx, "DROP TRIGGER IF EXISTS "+in(s.db, t)); err != nil {
			return err
		}
	}
	if err := d.cfg.Failpoint.At("exchange"); err != nil {
		return err
	}
	if holder == s {
		if err := s.exec(ctx, rename); err != nil {
			return err
		}
		return s.late(ctx, m, "")
	}
	before, err := holder.counters(ctx)
	if err != nil {
		return err
	}
	if err := s.overtake(ctx, holder, rename); err != nil {
		return err
	}
	return s.late(ctx, m, before)
}

// errLate means that a table was written to between the last comparison and the exchange.
var errLate = errors.New("a table was written to at the last moment")

// late returns errLate if a table that was moved away is not the base's. A write that waited for the locks may have been executed
// before the rename, because RENAME TABLE waits for one table after the other; if the server's counts are still those in before,
// there was none. And clients may have written since the crash of a process that had begun the move. A table that is missing is no
// loss, because the base has it.
func (s *session) late(ctx context.Context, m move, before string) error {
	if m.base == nil {
		return nil
	}
	if before != "" {
		after, err := s.counters(ctx)
		if err != nil || before == after {
			return err
		}
	}
	tables, _, err := s.names(ctx, m.away)
	if err != nil {
		return err
	}
	definition := func(t *table) string { // in a table that was moved, a foreign key to a missing table names the live database
		return strings.ReplaceAll(nextNumber.ReplaceAllString(t.Create, ""), quote(s.db)+".", "")
	}
	for _, name := range tables {
		want := m.base.table(name)
		if want == nil {
			return errLate
		}
		now := table{Name: name, Sequence: want.Sequence, Engine: want.Engine}
		if err := s.describe(ctx, m.away, &now); err != nil {
			return err
		}
		if _, err := s.readRows(ctx, m.away, &now, nil); err != nil {
			return err
		}
		if definition(&now) != definition(want) || now.Digest != want.Digest {
			return errLate
		}
	}
	return nil
}

// moveLocked locks all tables, compares them with the base in the locking session, and exchanges them
// before any other session gets a lock.
func (d *Driver) moveLocked(ctx context.Context, s *session, m move, begin func() error) error {
	tables, _, err := s.names(ctx, s.db)
	if err != nil {
		return err
	}
	holder, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer holder.end()
	if len(tables) == 0 {
		if err := m.lock(ctx, holder); err != nil {
			return err
		}
		return d.move(ctx, s, s, m, begin)
	}
	var list []string
	for _, t := range tables {
		list = append(list, in(s.db, t)+" WRITE")
	}
	if err := d.limit(ctx, holder); err != nil {
		return err
	}
	if err := holder.exec(ctx, "LOCK TABLES "+strings.Join(list, ", ")); err != nil {
		return err
	}
	holder.locked = true
	if err := m.lock(ctx, holder); err != nil {
		return err
	}
	return d.move(ctx, s, holder, m, begin)
}

const poll = 2 * time.Millisecond

// overtake renames tables that session holder has locked. RENAME TABLE is not allowed under LOCK TABLES, but the server
// executes a waiting rename before all waiting reads and writes. So overtake releases the locks once the rename waits.
func (s *session) overtake(ctx context.Context, holder *session, rename string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.exec(ctx, rename) }()
	for {
		state, err := holder.rows(ctx, "SELECT IFNULL(state, '') FROM information_schema.processlist WHERE id = ?", s.id)
		if err != nil {
			cancel()
			<-done
			return err
		}
		if len(state) == 1 && strings.HasPrefix(state[0][0], "Waiting for") {
			break
		}
		select {
		case err := <-done: // the rename failed under the locks
			return err
		case <-time.After(poll):
		}
	}
	err := holder.exec(ctx, "UNLOCK TABLES")
	if e := <-done; e != nil {
		return e
	}
	return err
}

// stillBase returns an error if the tables, which holder has locked, differ from the base.
func (d *Driver) stillBase(ctx context.Context, holder *session, base snap.Hash) error {
	about, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer about.end()
	now, err := about.begin(ctx)
	if err != nil {
		return err
	}
	if now.proof != "" && now.proof == d.proved.at {
		if d.proved.hash == base {
			return nil
		}
		return snap.Changed("", d.login.String())
	}
	if err := about.exec(ctx, "ROLLBACK"); err != nil { // otherwise the session would not see new definitions
		return err
	}
	holder.db = d.login.db
	r, err := holder.read(ctx, nil, about)
	if err != nil {
		return err
	}
	if r.hash != base {
		return snap.Changed("", d.login.String())
	}
	return nil
}

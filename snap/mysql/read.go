package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// reading is the result of reading the live state.
type reading struct {
	*state   // nil: the server's log proves that the state equals the newest capture
	hash     snap.Hash
	node     cas.Hash // node in the batch, if there was one
	at       moment
	warnings []string
}

// moment is the server's position when a reading began.
type moment struct {
	position string // for messages: log, offset, GTID
	proof    string // nothing was written as long as it stays the same; "" if the server cannot prove that
}

// take reads the live state into b, or returns the newest capture if nothing changed.
func (d *Driver) take(ctx context.Context, b *cas.Batch) (*reading, error) {
	var r *reading
	err := d.retry(ctx, func(s *session) (err error) {
		if err := d.allowed(ctx, s); err != nil {
			return err
		}
		if err := d.limit(ctx, s); err != nil {
			return err
		}
		at, err := s.begin(ctx)
		if err != nil {
			return err
		}
		if r = d.unchanged(at, b); r != nil {
			st, err := s.schema(ctx, s.db)
			if err != nil {
				return err
			}
			r.warnings, err = s.warnings(ctx, s.db, st)
			return err
		}
		if err := d.cfg.Failpoint.At("capture: read"); err != nil {
			return err
		}
		r, err = s.read(ctx, b, s)
		if err == nil {
			r.at = at
			r.warnings, err = s.warnings(ctx, s.db, r.state)
		}
		return err
	})
	return r, err
}

// unchanged returns the newest capture if the server proves that nothing was written since.
func (d *Driver) unchanged(at moment, b *cas.Batch) *reading {
	if at.proof == "" || at.proof != d.proved.at {
		return nil
	}
	root, err := d.cfg.Store.Root(d.proved.root)
	if err != nil || !b.Keep(root.Hash) {
		return nil
	}
	return &reading{hash: d.proved.hash, node: root.Hash, at: at}
}

// live reads the live state. If trust is set and the server proves that nothing was written since the last reading, it returns only that
// one's hash.
func (d *Driver) live(ctx context.Context, trust bool) (r *reading, err error) {
	err = d.retry(ctx, func(s *session) error {
		if err := d.allowed(ctx, s); err != nil {
			return err
		}
		if err := d.limit(ctx, s); err != nil {
			return err
		}
		at, err := s.begin(ctx)
		if err != nil {
			return err
		}
		if trust && at.proof != "" && at.proof == d.proved.at {
			r = &reading{hash: d.proved.hash}
			return nil
		}
		r, err = s.read(ctx, nil, s)
		if err == nil {
			d.proved = proof{at: at.proof, hash: r.hash}
		}
		return err
	})
	return r, err
}

var errShape = errors.New("a definition changed meanwhile")

// retry calls f with a new session, and repeats that if a definition changed meanwhile.
func (d *Driver) retry(ctx context.Context, f func(*session) error) error {
	for tries := 0; ; tries++ {
		s, err := d.connect(ctx)
		if err != nil {
			return err
		}
		err = f(s)
		s.end()
		// These codes mean that a table, view, routine, trigger, event or database was removed or changed.
		if !errors.Is(err, errShape) && !isCode(err, 1412, 1146, 1305, 1360, 1539, 1049, 4084) {
			return err
		}
		if tries == 10 {
			return snap.Changed("", d.login.String())
		}
	}
}

// begin starts a consistent snapshot of all InnoDB tables and returns its moment. MariaDB reports the position in its log that
// corresponds to the snapshot. The counters also show writes that a session keeps out of the log.
func (s *session) begin(ctx context.Context) (m moment, err error) {
	if err := s.exec(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
		return m, err
	}
	counters, err := s.counters(ctx)
	if err != nil {
		return m, err
	}
	if err := s.exec(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		return m, err
	}
	place, err := s.rows(ctx, "SHOW STATUS WHERE Variable_name IN ('Binlog_snapshot_file', 'Binlog_snapshot_position')")
	if err != nil || len(place) != 2 || place[0][1] == "" || place[0][1] == "none" {
		return m, err
	}
	file, offset := place[0][1], place[1][1]
	m.position = file + ":" + offset
	gtid, err := s.rows(ctx, "SELECT IFNULL(BINLOG_GTID_POS(?, ?), '')", file, offset)
	if err == nil && len(gtid) == 1 && gtid[0][0] != "" {
		m.position += " gtid " + gtid[0][0]
	}
	filters, err := s.rows(ctx, "SHOW MASTER STATUS")
	if err != nil || len(filters) != 1 || filters[0][2]+filters[0][3] != "" {
		return m, nil // the user may not query it, or filters make the log incomplete
	}
	if counters != "" {
		m.proof = m.position + counters
	}
	return m, nil
}

// counters returns the server's counts of rows written and definitions changed by all clients, or "" if the server does not
// count them.
func (s *session) counters(ctx context.Context) (string, error) {
	list, err := s.rows(ctx, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_write', 'Handler_update', 'Handler_delete', "+
		"'Com_truncate', 'Com_alter_table', 'Com_create_table', 'Com_drop_table')")
	if err != nil || len(list) != 7 {
		return "", err
	}
	return fmt.Sprint(list), nil
}

// read reads the state in the session's snapshot, or under its locks. It reads the definitions through the session about before
// and after the rows, so that they match the rows.
func (s *session) read(ctx context.Context, b *cas.Batch, about *session) (*reading, error) {
	st, err := about.schema(ctx, s.db)
	if err != nil {
		return nil, err
	}
	r := &reading{state: st}
	var rows []cas.Hash
	for i := range st.Tables {
		node, err := s.readTable(ctx, &st.Tables[i], b)
		if err != nil {
			return nil, err
		}
		rows = append(rows, node)
	}
	again, err := about.schema(ctx, s.db)
	if err != nil {
		return nil, err
	}
	if again.shape() != st.shape() {
		return nil, errShape
	}
	r.hash = st.hash()
	if b == nil {
		return r, nil
	}
	data, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	r.node, err = b.Node(data, rows)
	return r, err
}

// readTable reads a table's rows and then releases the table, so that a change of its definition does not wait for the other
// tables.
func (s *session) readTable(ctx context.Context, t *table, b *cas.Batch) (cas.Hash, error) {
	if s.locked {
		return s.readRows(ctx, s.db, t, b)
	}
	if err := s.exec(ctx, "SAVEPOINT mulligan"); err != nil {
		return cas.Hash{}, err
	}
	node, err := s.readRows(ctx, s.db, t, b)
	if err != nil {
		return node, err
	}
	return node, s.exec(ctx, "ROLLBACK TO SAVEPOINT mulligan")
}

// rights are the privileges that a user needs to see a whole database: the server silently omits what a user may not see.
var rights = []string{"SELECT", "SHOW VIEW", "TRIGGER", "EVENT"}

var grantLine = regexp.MustCompile("^GRANT (.*) ON (\\S+|`(?:[^`]|``)+`)\\.(\\S+) TO ")

// allowed returns an error if the user cannot see the whole database.
func (d *Driver) allowed(ctx context.Context, s *session) error {
	lines, err := s.rows(ctx, "SHOW GRANTS")
	if err != nil {
		return err
	}
	missing := slices.Clone(rights)
	for _, line := range lines {
		m := grantLine.FindStringSubmatch(line[0])
		if m == nil || m[3] != "*" || m[2] != "*" && !matches(m[2], s.db) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(r string) bool {
			return strings.HasPrefix(m[1], "ALL PRIVILEGES") || slices.Contains(strings.Split(m[1], ", "), r)
		})
	}
	if len(missing) > 0 {
		return errs.New(errs.Denied, "", "the user lacks %s on %s", strings.Join(missing, ", "), d.login).WithHint("%s", d.grantHint())
	}
	return nil
}

// matches reports whether db matches the database name in a grant, which may have wildcards.
func matches(granted, db string) bool {
	name := strings.ReplaceAll(strings.Trim(granted, "`"), "``", "`")
	var re strings.Builder
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '\\' && i+1 < len(name):
			i++
			re.WriteString(regexp.QuoteMeta(name[i : i+1]))
		case c == '_':
			re.WriteString(".")
		case c == '%':
			re.WriteString(".*")
		default:
			re.WriteString(regexp.QuoteMeta(name[i : i+1]))
		}
	}
	ok, err := regexp.MatchString("(?s)^"+re.String()+"$", db)
	return ok && err == nil
}

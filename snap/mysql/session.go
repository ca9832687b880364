package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/mysql/definition"
)

// session is a connection to the server. With SET NAMES binary, texts are exchanged as the bytes that the server stores, so
// names and definitions are UTF-8.
type session struct {
	*wire
	d      *Driver
	id     string
	db     string
	maria  bool // the server is MariaDB
	locked bool // it has locks on the tables that it reads, instead of a snapshot
	kept   kept // size of the definitions that are being read
}

// settings override the server's settings that influence reading and writing.
const settings = "SET NAMES binary, SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', sql_quote_show_create = 1, " +
	"foreign_key_checks = 0, unique_checks = 0, auto_increment_increment = 1, auto_increment_offset = 1, innodb_strict_mode = 0, " +
	"sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, autocommit = 1, completion_type = 0, " +
	"wait_timeout = 28800, net_read_timeout = 3600, net_write_timeout = 3600, lock_wait_timeout = %[1]d, innodb_lock_wait_timeout = %[1]d"

// connect opens a session. The caller must end it.
func (d *Driver) connect(ctx context.Context) (*session, error) {
	cfg, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	w, err := enter(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &session{wire: w, d: d, db: d.login.db}
	if err := s.set(ctx, max(1, int(d.cfg.BusyTimeout.Seconds()))); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// set applies the session's settings. Locks are waited for at most so many seconds.
func (s *session) set(ctx context.Context, seconds int) error {
	if err := s.exec(ctx, fmt.Sprintf(settings, seconds)); err != nil {
		return err
	}
	who, err := s.rows(ctx, "SELECT CONNECTION_ID(), VERSION() LIKE '%MariaDB%'")
	if err != nil {
		return err
	}
	if len(who) != 1 {
		return errProtocol
	}
	s.id, s.maria = who[0][0], who[0][1] == "1"
	// Not every server has these settings, or lets this user change them.
	for _, set := range []string{"check_constraint_checks = 0", "max_statement_time = 0", "max_execution_time = 0", "idle_transaction_timeout = 0", "TRANSACTION READ WRITE",
		"explicit_defaults_for_timestamp = 1", "sql_if_exists = 0", "sql_generate_invisible_primary_key = 0", "sql_require_primary_key = 0",
		"show_gipk_in_create_table_and_information_schema = 1"} {
		if err := s.exec(ctx, "SET SESSION "+set); err != nil && !isCode(err, 1193, 1227, 1238) {
			return err
		}
	}
	return nil
}

// abandonedAfter is after how long the server ends a session that has read tables or locked them, and says nothing: it may not see that the daemon
// is gone, because the network is cut, or because the connection leads into a container through a program there, whose engine was killed. A session
// that only waits for others has no such limit.
const abandonedAfter = 2 * time.Minute

// limit has the server end the session if it says nothing for d.abandoned.
func (d *Driver) limit(ctx context.Context, s *session) error {
	return s.exec(ctx, fmt.Sprint("SET SESSION wait_timeout = ", int(d.abandoned.Seconds())))
}

// awake calls f, which does not use the session, and lets the server know meanwhile that the session is not abandoned.
func (s *session) awake(ctx context.Context, f func() error) (err error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	tick := time.NewTicker(s.d.abandoned / 6)
	defer tick.Stop()
	for {
		select {
		case e := <-done:
			return errs.Also(e, err)
		case <-tick.C:
			if err == nil {
				err = s.exec(ctx, "DO 0")
			}
		}
	}
}

// end ends the session and rolls back its transaction.
func (s *session) end() { s.close() }

// exec runs a statement and ignores its answer.
func (s *session) exec(ctx context.Context, query string, args ...string) error {
	_, _, err := s.table(ctx, query, args...)
	return err
}

// all runs statements one after the other.
func (s *session) all(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if err := s.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// rows runs a query and returns its whole answer, in which NULL is "". Every row has at least minColumns texts, whatever the
// server sent, so the caller may index them. The answer takes at most maxAnswer bytes.
func (s *session) rows(ctx context.Context, query string, args ...string) ([][]string, error) {
	all, _, err := s.table(ctx, query, args...)
	return all, err
}

// table does the same as rows, and also returns the names of the columns.
func (s *session) table(ctx context.Context, query string, args ...string) (all [][]string, names []string, err error) {
	room := int64(maxAnswer)
	err = s.during(ctx, func() error {
		return s.query(interpolate(query, args), func(r *row) error {
			names = r.names
			line, err := r.texts(&room)
			all = append(all, line)
			return err
		})
	})
	return all, names, err
}

func quote(name string) string { return definition.Quote(name) }

// in returns the quoted name of an object in a database.
func in(db, name string) string { return quote(db) + "." + quote(name) }

// isCode reports whether err is a server's error with one of the numbers
// (https://mariadb.com/kb/en/mariadb-error-code-reference/).
func isCode(err error, codes ...uint16) bool {
	var e *client.MySQLError
	return errors.As(err, &e) && slices.Contains(codes, e.Number)
}

// classify gives an error without a kind a kind and a hint.
func (d *Driver) classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *errs.Error
	if errors.As(err, &known) {
		return errs.Wrap(errs.Failed, op, err)
	}
	e := &errs.Error{Kind: errs.Failed, Op: op, Message: d.login.String(), Err: err}
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Kind = errs.Unavailable
	case isCode(err, 1045, 1698, 1524, 1251):
		e.Kind, e.Hint = errs.Denied, "check the user and the password in the database's dsn or in ~/.my.cnf"
	case isCode(err, 1044, 1142, 1143, 1227, 1370, 1410, 1419):
		e.Kind, e.Hint = errs.Denied, d.grantHint()
	case isCode(err, 1205, 1213, 1969):
		e.Kind, e.Hint = errs.Busy, "a client holds a transaction or a lock on a table: let it end, and try again"
	case isCode(err, 1040, 1053, 1152, 1927, 1158, 1159, 1160, 1161), errors.Is(err, net.ErrClosed), errors.Is(err, client.ErrInvalidConn):
		e.Kind, e.Hint = errs.Unavailable, "see whether the MariaDB or MySQL server runs, and look into its log"
	case isCode(err, 1021, 1114, 3, 1030, 1026, 1180, 1005, 1006), errors.Is(err, unix.ENOSPC):
		e.Hint = "free some space on the server's disk, if it is full"
	case isCode(err, 1153):
		e.Hint = "raise the server's max_allowed_packet"
	case errors.Is(err, os.ErrPermission):
		e.Kind, e.Hint = errs.Denied, "the app's owner must be allowed to open the socket"
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		e.Kind, e.Hint = errs.Unavailable, "see whether the MariaDB or MySQL server runs, and look into its log"
	}
	return e
}

// grantHint returns the hint with the privileges that the user needs.
func (d *Driver) grantHint() string {
	escaped := strings.NewReplacer("_", `\_`, "%", `\%`, "`", "``").Replace(d.login.db)
	return fmt.Sprintf("the user needs GRANT ALL ON `%[1]s`.* and ON `%[1]s%[2]s%%`.*, SELECT ON mysql.proc, and for definers other than itself SET USER (SUPER)", escaped, strings.ReplaceAll(sideMark, "_", `\_`))
}

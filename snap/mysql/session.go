package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	client "github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
)

// session is one connection to the server. Texts go to and fro as the bytes that
// the server has (SET NAMES binary): names and definitions are UTF-8 then.
type session struct {
	*sql.Conn
	id     int64
	db     string
	maria  bool // it is MariaDB's server
	locked bool // it holds locks on the tables that it reads, and no snapshot
	end    func()
}

// settings make what is read, and how it is written, not depend on the server's own.
const settings = "SET NAMES binary, SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', sql_quote_show_create = 1, " +
	"foreign_key_checks = 0, unique_checks = 0, auto_increment_increment = 1, auto_increment_offset = 1, innodb_strict_mode = 0, " +
	"net_read_timeout = 3600, net_write_timeout = 3600, lock_wait_timeout = %[1]d, innodb_lock_wait_timeout = %[1]d"

// connect opens sessions, as many as asked for, that end together with ctx or by the first's end.
func (d *Driver) connect(ctx context.Context) (*session, error) {
	db, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &session{Conn: c, db: d.login.db}
	s.end = func() { _ = c.Close(); _ = db.Close() } // nothing is lost by an error of it
	seconds := max(1, int(d.cfg.BusyTimeout.Seconds()))
	err = s.exec(ctx, fmt.Sprintf(settings, seconds))
	if err == nil {
		err = s.QueryRowContext(ctx, "SELECT CONNECTION_ID(), VERSION() LIKE '%MariaDB%'").Scan(&s.id, &s.maria)
	}
	// Not every server knows these.
	for _, set := range []string{"check_constraint_checks = 0", "max_statement_time = 0", "max_execution_time = 0", "idle_transaction_timeout = 0"} {
		if err == nil {
			if e := s.exec(ctx, "SET SESSION "+set); e != nil && !isCode(e, 1193) {
				err = e
			}
		}
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *session) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.ExecContext(ctx, query, args...)
	return err
}

// all runs statements in turn.
func (s *session) all(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if err := s.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// rows runs a query and gives all of its answer; NULL is "".
func (s *session) rows(ctx context.Context, query string, args ...any) ([][]string, error) {
	var all [][]string
	err := s.each(ctx, query, args, func(row []sql.RawBytes) error {
		line := make([]string, len(row))
		for i, v := range row {
			line[i] = string(v)
		}
		all = append(all, line)
		return nil
	})
	return all, err
}

// each runs a query and calls f for every row of its answer.
func (s *session) each(ctx context.Context, query string, args []any, f func([]sql.RawBytes) error) error {
	rows, err := s.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() // its error is rows.Err's
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	values, into := make([]sql.RawBytes, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := f(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

// quote makes a name of s, whatever it holds.
func quote(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// in is the quoted name of a thing in a database.
func in(db, name string) string { return quote(db) + "." + quote(name) }

// isCode reports whether the server answered with one of the error numbers
// (https://mariadb.com/kb/en/mariadb-error-code-reference/).
func isCode(err error, codes ...uint16) bool {
	var e *client.MySQLError
	return errors.As(err, &e) && slices.Contains(codes, e.Number)
}

// classify gives err a kind and a hint, where it has none yet.
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
	case isCode(err, 1040, 1053, 1152, 1927, 1158, 1159, 1160, 1161), errors.Is(err, client.ErrInvalidConn), errors.Is(err, driver.ErrBadConn):
		e.Kind, e.Hint = errs.Unavailable, "see whether the MariaDB or MySQL server runs, and look into its log"
	case isCode(err, 1021, 1114, 3, 1030, 1026, 1180, 1005, 1006), errors.Is(err, unix.ENOSPC):
		e.Hint = "is a disk full? free some space on the server's"
	case isCode(err, 1153):
		e.Hint = "raise the server's max_allowed_packet"
	case errors.Is(err, os.ErrPermission):
		e.Kind, e.Hint = errs.Denied, "the app's owner must be allowed to open the socket"
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		e.Kind, e.Hint = errs.Unavailable, "see whether the MariaDB or MySQL server runs, and look into its log"
	}
	return e
}

// grantHint says which rights a user needs.
func (d *Driver) grantHint() string {
	escaped := strings.NewReplacer("_", `\_`, "%", `\%`, "`", "``").Replace(d.login.db)
	return fmt.Sprintf("the user needs GRANT ALL ON `%[1]s`.* and ON `%[1]s%[2]s%%`.*, SELECT ON mysql.proc, and for definers other than itself SET USER (SUPER)", escaped, strings.ReplaceAll(sideMark, "_", `\_`))
}

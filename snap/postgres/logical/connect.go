package logical

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/postgres/pgwire"
)

// conn is one session. It sets every setting by which a database or a role could change the values that are read or written.
type conn struct {
	*pgx.Conn
	db   string
	kept pgwire.Kept // counts what is kept of the server's answers, which is limited
}

// session sets the same settings as pg_dump, and every setting that changes the text of a value.
const session = `SELECT pg_catalog.set_config('search_path', '', false);
SET standard_conforming_strings = on; SET DateStyle = ISO; SET IntervalStyle = postgres; SET TimeZone = 'UTC';
SET extra_float_digits = 3; SET bytea_output = hex; SET xmloption = content; SET xmlbinary = base64; SET array_nulls = on;
SET lc_monetary = 'C'; SET synchronize_seqscans = off; SET row_security = off; SET check_function_bodies = off;
SET statement_timeout = 0; SET default_transaction_read_only = off;
SET synchronous_commit = on; SET client_min_messages = warning; SET default_tablespace = ''; SET quote_all_identifiers = off`

// abandonedAfter is after how long the server ends a transaction of a session that says nothing. The server may not see that the daemon is gone:
// the network is cut, or the connection leads into a container through a program there, whose engine was killed, and the program waits. Until the
// transaction ends, nobody can change the tables that it has read.
const abandonedAfter = 2 * time.Minute

// connectTimeout bounds the time to open a session, and the time to close it.
const connectTimeout = 10 * time.Second

// connect opens a session in db.
func (d *Driver) connect(ctx context.Context, db string) (*conn, error) {
	cfg, err := d.config(ctx, db)
	if err != nil {
		return nil, err
	}
	c, err := snap.Login(ctx, connectTimeout, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg) })
	if err != nil {
		return nil, d.refused(db, err)
	}
	out := &conn{Conn: c, db: db}
	limits := fmt.Sprintf("; SET lock_timeout = %d; SET idle_in_transaction_session_timeout = %d", d.cfg.LockTimeout.Milliseconds(), d.abandoned.Milliseconds())
	if err := out.exec(ctx, session+limits+"; "+pglogin.Unlimit+"; SET "+strings.Join(pgtools.Patience, "; SET ")); err != nil {
		out.close()
		return nil, err
	}
	return out, nil
}

// close ends the session and rolls back its transaction.
func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_ = c.Conn.Close(ctx) // nothing depends on the result
}

// exec runs statements whose results are ignored.
func (c *conn) exec(ctx context.Context, sql string) error {
	_, err := c.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// transact runs the steps in one transaction and returns the transaction's id.
func (c *conn) transact(ctx context.Context, steps ...step) (xid uint64, err error) {
	if err := c.exec(ctx, "BEGIN"); err != nil {
		return 0, err
	}
	xid, err = c.finish(ctx, steps...)
	if err != nil {
		return 0, errs.Also(err, c.exec(ctx, "ROLLBACK"))
	}
	return xid, c.exec(ctx, "COMMIT")
}

// finish runs the last steps of the open transaction and returns the transaction's id. The caller commits.
func (c *conn) finish(ctx context.Context, steps ...step) (xid uint64, err error) {
	for _, s := range steps {
		if err := c.exec(ctx, s.sql); err != nil {
			return 0, err
		}
	}
	err = c.QueryRow(ctx, "SELECT pg_catalog.pg_current_xact_id()::text::bigint").Scan(&xid)
	return xid, err
}

// list returns the first column of all rows, as text.
func (c *conn) list(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// outsides are the databases for sessions outside of the live database.
var outsides = []string{"postgres", "template1"}

// outside opens a session in another database of the same server.
func (d *Driver) outside(ctx context.Context) (*conn, error) {
	var first error
	for _, db := range outsides {
		if db == d.login.Database {
			continue
		}
		c, err := d.connect(ctx, db)
		if err == nil {
			return c, nil
		}
		if k := errs.KindOf(err); k != errs.NotFound && k != errs.Denied {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, errs.Wrap(errs.Denied, "connect to another database of the server", first)
}

// SQLSTATEs, from the manual's appendix A.
const (
	stateNoDatabase   = "3D000"
	stateBadPassword  = "28P01"
	stateBadLogin     = "28000"
	stateDenied       = "42501"
	stateTooMany      = "53300"
	stateDiskFull     = "53100"
	stateStarting     = "57P03"
	stateShutdown     = "57P01"
	stateCrash        = "57P02"
	stateLocked       = "55P03"
	stateInUse        = "55006"
	stateNoTable      = "42P01"
	stateDuplicateDB  = "42P04"
	stateDependent    = "2BP01"
	stateNoFeature    = "0A000"
	stateNotInStandby = "25006"
	stateAbandoned    = "25P03"
)

// sqlState returns the SQLSTATE of err, or "".
func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isAbsent reports whether err says that the server has no such database.
func isAbsent(err error) bool { return sqlState(err) == stateNoDatabase }

// refused returns the error for a session in db that could not be opened, with a kind and a hint.
func (d *Driver) refused(db string, err error) error {
	var known *errs.Error
	if errors.As(err, &known) {
		return &errs.Error{Kind: known.Kind, Message: known.Message, Hint: known.Hint} // pgx adds user, host and database
	}
	e := &errs.Error{Kind: errs.Unavailable, Message: "the server at " + place(d.login) + " does not answer", Err: cause(err),
		Hint: "start PostgreSQL, or correct the dsn"}
	switch sqlState(err) {
	case stateBadPassword, stateBadLogin:
		e.Kind, e.Message = errs.Denied, fmt.Sprintf("the server refuses to let %s into %s", d.login.User, db)
		e.Hint = "give the right password in the dsn or in the owner's password file (~/.pgpass), or allow the login in pg_hba.conf"
	case stateDenied:
		e.Kind, e.Message = errs.Denied, fmt.Sprintf("%s may not connect to %s", d.login.User, db)
		e.Hint = fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s", quote(db), quote(d.login.User))
	case stateNoDatabase:
		e.Kind, e.Message, e.Hint = errs.NotFound, "the server has no database "+db, "create it, or correct the dsn"
	case stateTooMany:
		e.Kind, e.Message, e.Hint = errs.Busy, "the server has no connection left", "close some, or raise max_connections"
	case "":
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			e.Kind, e.Hint = errs.Denied, "let the app's owner reach the socket, or use TCP in the dsn"
		}
	}
	return e
}

// cause returns the useful part of a connection error, without the user, host and database that pgx adds.
func cause(err error) error {
	var p *pgconn.PgError
	var n *net.OpError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &n):
		return n
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	}
	return err
}

// classify gives an error of the server or the system a kind and a hint.
func (d *Driver) classify(op string, err error) error {
	var known *errs.Error
	err = d.refusal.Take(err)
	e := &errs.Error{Op: op, Kind: errs.Failed, Err: err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, snap.ErrChanged):
		return snap.Changed(op, "database "+d.login.Database)
	case errors.As(err, &known):
		return errs.Wrap(errs.Failed, op, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Kind = errs.Unavailable
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Hint = "free some space for mulligan's state, or delete checkpoints"
	case sqlState(err) != "":
		e.Kind, e.Hint = kindOfState(sqlState(err))
	case brokenOff(err):
		e.Kind, e.Hint = errs.Unavailable, "see why PostgreSQL ended the connection, and try again"
	}
	return e
}

func kindOfState(state string) (errs.Kind, string) {
	switch state {
	case stateDenied, stateBadPassword, stateBadLogin:
		return errs.Denied, "grant the right to the role in the dsn, or use one that has it"
	case stateLocked:
		return errs.Busy, "wait until the session that holds the lock, perhaps a migration, has ended (see pg_locks), and try again"
	case stateInUse, stateTooMany:
		return errs.Busy, "wait until the other session has ended (see pg_stat_activity), and try again"
	case stateDiskFull:
		return errs.Failed, "free some space on the server's disk"
	case stateAbandoned:
		return errs.Unavailable, "the daemon stood still for minutes; try again"
	case stateStarting, stateShutdown, stateCrash:
		return errs.Unavailable, "wait until PostgreSQL is up, and try again"
	case stateNotInStandby:
		return errs.Unsupported, "name the primary server in the dsn"
	}
	return errs.Failed, ""
}

// brokenOff reports whether the connection ended during a statement.
func brokenOff(err error) bool {
	var n *net.OpError
	var p *fs.PathError
	return errors.As(err, &n) || (pgconn.SafeToRetry(err) && !errors.As(err, &p)) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF)
}

// identity identifies one visible state of a server. A snapshot is the set of transactions whose writes it includes, so two
// equal snapshots of the same running server have the same rows. Sequences are not transactional, so the identity also has
// their values.
type identity struct {
	System    string // the cluster's system identifier, and the start time of the server
	Database  uint32
	Snapshot  string // as pg_current_snapshot returns it, with 64-bit transaction ids
	Sequences string // digest of their values
	Durable   bool   // all transactions in the snapshot are on the server's disk, so that no crash can undo them
	Position  string `json:"-"` // timeline and LSN
}

// surely reports whether i, taken now, certainly identifies the same state as earlier.
func (i identity) surely(earlier identity) bool {
	i.Position, i.Durable, earlier.Position = "", true, ""
	return i == earlier
}

// idleUntil reports whether no transaction except xid wrote anything on the server since i was taken: i's snapshot had no open
// transaction, and xid was the next free id.
func (i identity) idleUntil(xid uint64) bool {
	return i.Snapshot == fmt.Sprintf("%d:%d:", xid, xid)
}

const identitySQL = `SELECT s.system_identifier::text || ' ' || pg_catalog.pg_postmaster_start_time()::text, d.oid,
	pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn(),
	pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) || ':' || pg_catalog.pg_current_wal_insert_lsn()::text
	FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()`

// identify returns the identity of the state that the session sees, sequences included.
func (c *conn) identify(ctx context.Context) (i identity, err error) {
	if i, err = c.identifyRows(ctx); err != nil {
		return i, err
	}
	list, err := c.sequences(ctx)
	i.Sequences = digest(list)
	return i, err
}

func (c *conn) identifyRows(ctx context.Context) (i identity, err error) {
	err = c.QueryRow(ctx, identitySQL).Scan(&i.System, &i.Database, &i.Snapshot, &i.Durable, &i.Position)
	if sqlState(err) == "55000" { // object_not_in_prerequisite_state: "recovery is in progress"
		return i, errs.New(errs.Unsupported, "", "the server is a standby").WithHint("name the primary server in the dsn")
	}
	return i, err
}

// quote quotes an identifier.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal quotes a string constant.
func literal(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

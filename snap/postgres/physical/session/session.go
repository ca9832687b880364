// Package session connects to PostgreSQL servers as a superuser: to the server of an app, and to those of copies of its
// cluster. It limits how much a server may send (package pgwire), and gives errors a kind and a hint.
package session

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgwire"
	"mulligan/snap/postgres/physical/wal"
)

// Conn is one connection, used for one task. Only captures keep theirs. It is not safe for concurrent use.
type Conn struct {
	*pgx.Conn
	refusal *pgwire.Refusal
}

// Config returns a configuration of pgx from the settings alone. It reads no file.
func Config(settings map[string]string) (*pgx.ConnConfig, error) {
	text := "passfile=" + os.DevNull + " sslrootcert='' sslcert='' sslkey='' target_session_attrs=any"
	for k, v := range settings {
		text += " " + k + "=" + pglogin.Quote(v)
	}
	cfg, err := pgx.ParseConfig(text)
	if err == nil {
		cfg.RuntimeParams = map[string]string{}
	}
	return cfg, err
}

// connectTimeout bounds how long a server may take to accept a connection.
const connectTimeout = 10 * time.Second

// Open connects. It overrides those settings of the server that change how values are written and how long a statement waits.
func Open(ctx context.Context, cfg *pgx.ConnConfig) (Conn, error) {
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	refusal := &pgwire.Refusal{}
	pgwire.Guard(cfg, refusal)
	for k, v := range map[string]string{
		"application_name": "mulligan", "log_min_error_statement": "panic", "search_path": "pg_catalog", "synchronous_commit": "on", "statement_timeout": "0",
		"lock_timeout": "0", "idle_in_transaction_session_timeout": "0", "default_transaction_read_only": "off", "extra_float_digits": "1", "DateStyle": "ISO", "bytea_output": "hex",
	} {
		cfg.RuntimeParams[k] = v
	}
	c, err := snap.Login(ctx, connectTimeout, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg) })
	if err != nil {
		return Conn{}, Explain(refusal.Take(err))
	}
	out := Conn{c, refusal}
	if err := out.Run(ctx, pglogin.Unlimit); err != nil {
		out.Close()
		return Conn{}, err
	}
	return out, nil
}

// Explain gives an error of the server or the connection a kind and a hint.
func Explain(err error) error {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var known *errs.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &known):
		return errs.Wrap(errs.Failed, "", err)
	case errors.As(err, &pg) && pg.Code == "42501":
		return errs.New(errs.Denied, "", "the role of the DSN is not a superuser, and only a superuser can restore a whole cluster").
			WithHint("give a DSN of a superuser, or use mode = logical")
	case errors.As(err, &pg) && (pg.Code == "28P01" || pg.Code == "28000"):
		return &errs.Error{Kind: errs.Denied, Message: "the server does not let us in: " + pg.Message, Hint: "correct the user or the password of the DSN, or pg_hba.conf"}
	case errors.As(err, &pg) && (pg.Code == "53100" || pg.Code == "53200"):
		return &errs.Error{Kind: errs.Failed, Err: err, Hint: "free some space, or memory, for the server"}
	case errors.As(err, &pg) && strings.HasPrefix(pg.Code, "57P"), errors.As(err, &connect) && pg == nil, errors.Is(err, net.ErrClosed):
		return &errs.Error{Kind: errs.Unavailable, Err: err, Hint: "see that the server runs and takes connections"}
	}
	return err
}

// Close ends the connection.
func (c Conn) Close() { _ = c.Conn.Close(context.Background()) } // the work has succeeded or failed already

// Row runs sql and reads its only row.
func (c Conn) Row(ctx context.Context, sql string, into ...any) error {
	return c.explain(c.QueryRow(ctx, sql).Scan(into...))
}

// Run runs statements.
func (c Conn) Run(ctx context.Context, sql string) error {
	_, err := c.Exec(ctx, sql)
	return c.explain(err)
}

// explain does the same as Explain, and also detects the end of the server during a statement.
func (c Conn) explain(err error) error {
	why := Explain(c.refusal.Take(err))
	if e := (*errs.Error)(nil); why != nil && c.IsClosed() && !errors.As(why, &e) && !errors.Is(why, context.Canceled) && !errors.Is(why, context.DeadlineExceeded) {
		return &errs.Error{Kind: errs.Unavailable, Message: "the server ended the connection", Err: err, Hint: "see that the server runs and takes connections"}
	}
	return why
}

// Column runs sql and returns its only column.
func (c Conn) Column(ctx context.Context, sql string) ([]string, error) {
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return nil, c.explain(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return all, c.explain(err)
}

// Timeline returns the timeline on which the server writes.
func (c Conn) Timeline(ctx context.Context) (wal.Timeline, error) {
	var name string
	if err := c.Row(ctx, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &name); err != nil {
		return 0, err
	}
	return wal.ParseTimeline(name)
}

// Reload makes the server read its settings again. It returns a moment before the settings take effect.
func (c Conn) Reload(ctx context.Context) error {
	return c.Run(ctx, "SELECT pg_reload_conf()")
}

// Barrier flushes everything that was committed before the call, and returns a later position where a record begins. A commit
// waits for the disk only if its transaction wrote something, so Barrier writes a message that nobody reads.
func (c Conn) Barrier(ctx context.Context) (end wal.LSN, err error) {
	err = c.Row(ctx, "SELECT pg_current_wal_insert_lsn()::text, txid_current(), pg_logical_emit_message(false, 'mulligan', '')::text",
		&end, new(int64), new(string))
	return end, err
}

// Connecter connects to a database of a server.
type Connecter func(ctx context.Context, database string) (Conn, error)

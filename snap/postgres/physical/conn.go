package physical

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
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgwire"
	"mulligan/snap/postgres/physical/wal"
)

// conn is one connection, for one piece of work. Only captures keep theirs.
type conn struct {
	*pgx.Conn
	refusal *pgwire.Refusal
}

// configOf is what pgx makes of settings, and of nothing else: no file is read.
func configOf(settings map[string]string) (*pgx.ConnConfig, error) {
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

const connectTimeout = 10 * time.Second

func open(ctx context.Context, cfg *pgx.ConnConfig) (conn, error) {
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.ConnectTimeout = connectTimeout
	refusal := &pgwire.Refusal{}
	pgwire.Guard(cfg, refusal)
	for k, v := range map[string]string{
		"application_name": "mulligan", "log_min_error_statement": "panic", "search_path": "pg_catalog", "synchronous_commit": "on", "statement_timeout": "0",
		"lock_timeout": "0", "default_transaction_read_only": "off", "extra_float_digits": "1", "DateStyle": "ISO", "bytea_output": "hex",
	} {
		cfg.RuntimeParams[k] = v
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return conn{}, explain(refusal.Take(err))
	}
	return conn{c, refusal}, nil
}

// explain gives a kind to what the server, or its absence, says.
func explain(err error) error {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var known *errs.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &known):
		return errs.Wrap(errs.Failed, "", err)
	case errors.As(err, &pg) && pg.Code == "42501":
		return errs.New(errs.Denied, "", "the role of the DSN is not a superuser, and only one can take a cluster back as a whole").
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

func (c conn) close() { _ = c.Conn.Close(context.Background()) } // the work is done or has failed by then

// row reads one row.
func (c conn) row(ctx context.Context, sql string, into ...any) error {
	return c.explain(c.QueryRow(ctx, sql).Scan(into...))
}

// exec runs statements.
func (c conn) exec(ctx context.Context, sql string) error {
	_, err := c.Exec(ctx, sql)
	return c.explain(err)
}

// explain also knows when the server died in the middle.
func (c conn) explain(err error) error {
	why := explain(c.refusal.Take(err))
	if e := (*errs.Error)(nil); why != nil && c.IsClosed() && !errors.As(why, &e) && !errors.Is(why, context.Canceled) && !errors.Is(why, context.DeadlineExceeded) {
		return &errs.Error{Kind: errs.Unavailable, Message: "the server ended the connection", Err: err, Hint: "see that the server runs and takes connections"}
	}
	return why
}

// column reads the only column of all rows.
func (c conn) column(ctx context.Context, sql string) ([]string, error) {
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return nil, c.explain(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return all, c.explain(err)
}

func (c conn) timeline(ctx context.Context) (wal.Timeline, error) {
	var name string
	if err := c.row(ctx, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &name); err != nil {
		return 0, err
	}
	return wal.ParseTimeline(name)
}

func (c conn) reload(ctx context.Context) error {
	// The answer comes before the server has read its settings, which it does in an instant.
	return c.exec(ctx, "SELECT pg_reload_conf()")
}

// barrier flushes all that was committed before the call, and gives a place
// behind it that a record begins at. A commit waits for the disk only if its
// transaction wrote something: here, a message that nobody reads.
func (c conn) barrier(ctx context.Context) (end wal.LSN, err error) {
	err = c.row(ctx, "SELECT pg_current_wal_insert_lsn()::text, txid_current(), pg_logical_emit_message(false, 'mulligan', '')::text",
		&end, new(int64), new(string))
	return end, err
}

// connecter connects to a database of some server.
type connecter func(ctx context.Context, database string) (conn, error)

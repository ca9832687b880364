package logical

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
	"mulligan/snap/postgres/logical/dumptext"
	"mulligan/snap/postgres/pgtools"
)

// errMoved means that a table was rewritten or dropped while it was read.
var errMoved = errors.New("a table was rewritten meanwhile")

// queued is an error of a session that waited for a table which the first session of the same reading has locked. So a statement of the app
// waits for the first session, and the other session waits behind it: that ends when the first one lets go.
type queued struct{ error }

func (q queued) Unwrap() error { return q.error }

// besideWait bounds how long the sessions beside the first one wait for a table. All tries of a capture together wait as long as the first
// session would.
func (d *Driver) besideWait() string {
	return strconv.FormatInt(max(d.cfg.LockTimeout.Milliseconds()/maxTries, 1), 10)
}

// readLive reads the live database, which may be absent. b and like are as for read.
func (d *Driver) readLive(ctx context.Context, b *cas.Batch, like *state) (*manifest, error) {
	m, err := d.read(ctx, d.login.Database, b, like)
	if isAbsent(err) {
		return d.readAbsent(ctx)
	}
	return m, err
}

// readAbsent returns the state without a database, after it has checked that the server does not have the database.
func (d *Driver) readAbsent(ctx context.Context) (*manifest, error) {
	c, err := d.outside(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	found, err := c.list(ctx, "SELECT datname::text FROM pg_catalog.pg_database WHERE datname = $1", d.login.Database)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, errs.New(errs.Busy, "", "database %s was just renamed or created", d.login.Database).WithHint("try again")
	}
	m := &manifest{State: state{Absent: true}, Form: 1}
	i, err := c.identifyRows(ctx)
	m.Position = i.Position
	return m, err
}

// read reads the state of database db at one moment. If b is not nil, read writes the content into it. like, unless nil, is the
// state with which the caller compares the result.
func (d *Driver) read(ctx context.Context, db string, b *cas.Batch, like *state) (*manifest, error) {
	c, err := d.connect(ctx, db)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return d.readIn(ctx, c, b, like)
}

// readIn reads the state of the session's database, as read does.
func (d *Driver) readIn(ctx context.Context, c *conn, b *cas.Batch, like *state) (*manifest, error) {
	for tries := 1; ; tries++ {
		r := &reader{d: d, batch: b, like: like, lead: c}
		m, err := r.run(ctx)
		var behind queued
		if !errors.Is(err, errMoved) && !errors.As(err, &behind) {
			return m, err
		}
		if tries == maxTries {
			if behind.error != nil {
				return nil, behind.error
			}
			return nil, snap.Changed("", "database "+c.db)
		}
		if err := c.exec(ctx, "ROLLBACK"); err != nil {
			return nil, err
		}
	}
}

// reader is one reading of a database.
type reader struct {
	d        *Driver
	batch    *cas.Batch
	like     *state
	lead     *conn      // the session that has the snapshot and the locks until its transaction ends
	reading  sync.Mutex // held by a goroutine that reads rows through lead
	snapshot string
	encoding string
	m        *manifest
	tool     pgtools.Pair
}

func (r *reader) run(ctx context.Context) (m *manifest, err error) {
	r.lead.kept = 0 // what earlier statements of the session kept is gone
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	rels, err := r.catalog(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.d.cfg.Failpoint.At("read: rows"); err != nil {
		return nil, err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.schema(gctx) })
	r.contents(gctx, group, rels)
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	if err := r.await(ctx, done); err != nil {
		return nil, err
	}
	// Sequences are read last, so that they are at or after every value in the rows.
	s := &r.m.State
	if s.Sequences, err = r.lead.sequences(ctx); err != nil {
		return nil, err
	}
	r.m.Identity.Sequences = digest(s.Sequences)
	var durable bool // whether everything in the snapshot is durable by now
	err = r.lead.QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_flush_lsn() >= $1::text::pg_lsn", lsnOf(r.m.Position)).Scan(&durable)
	r.m.Identity.Durable = r.m.Identity.Durable || durable
	return r.m, err
}

// await waits until the other sessions are done, and lets the server know meanwhile that the transaction is not abandoned.
func (r *reader) await(ctx context.Context, done <-chan error) (err error) {
	tick := time.NewTicker(r.d.abandoned / 6)
	defer tick.Stop()
	for {
		select {
		case e := <-done:
			return errs.Also(e, err)
		case <-tick.C:
			if err == nil && r.reading.TryLock() {
				err = r.lead.exec(ctx, "SELECT 1")
				r.reading.Unlock()
			}
		}
	}
}

func lsnOf(position string) string {
	_, lsn, _ := strings.Cut(position, ":")
	return lsn
}

// begin takes the snapshot in which everything is read. The statement takes the snapshot before it reads the position, so the
// snapshot has only changes before that position.
func (r *reader) begin(ctx context.Context) (err error) {
	r.m = &manifest{Form: 1}
	if r.m.Server, err = r.lead.version(ctx); err != nil {
		return err
	}
	if r.tool, err = r.d.tools.Find(ctx, r.m.Server, r.lead.process(ctx)); err != nil {
		return err
	}
	r.m.Tool, r.m.Major = r.tool.Version, r.tool.Major
	if err := r.lead.exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"); err != nil {
		return err
	}
	if err := r.lead.QueryRow(ctx, "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.current_setting('server_encoding')").Scan(&r.snapshot, &r.encoding); err != nil {
		return err
	}
	if r.m.Identity, err = r.lead.identifyRows(ctx); err != nil {
		return err
	}
	r.m.Position = r.m.Identity.Position
	if r.lead.db == r.d.login.Database { // no snapshot is of another one, such as a copy that was just built
		if r.m.stamp, err = r.lead.stamp(ctx, r.m.Identity); err != nil {
			return err
		}
	}
	if r.d.exported != nil {
		r.d.exported(r.snapshot)
	}
	return r.d.cfg.Failpoint.At("read: snapshot")
}

// catalog locks the tables, and reads everything except rows and the schema's text.
func (r *reader) catalog(ctx context.Context) (rels []*relation, err error) {
	if rels, err = r.lead.relations(ctx); err != nil {
		return nil, err
	}
	if err := r.lead.lock(ctx, rels); err != nil {
		return nil, err
	}
	if err := r.lead.columns(ctx, rels); err != nil {
		return nil, err
	}
	s := &r.m.State
	if s.Props, err = r.lead.props(ctx); err != nil {
		return nil, err
	}
	if r.m.Roles, err = r.lead.roles(ctx); err != nil {
		return nil, err
	}
	if r.m.Notes, err = r.lead.notes(ctx); err != nil {
		return nil, err
	}
	if s.Objects, err = r.lead.objects(ctx); err != nil {
		return nil, err
	}
	moved, err := r.lead.arrange(ctx, rels)
	if err != nil {
		return nil, err
	}
	r.m.Notes = append(r.m.Notes, moved...)
	follow(r.like, rels)
	for _, rel := range rels {
		if !utf8.ValidString(rel.table.id()) {
			return nil, errs.New(errs.Unsupported, "", "the name of table %q is not UTF-8", rel.table.id()).WithHint("rename it")
		}
	}
	return rels, r.lead.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'public'),
		EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'plpgsql')`).Scan(&s.Public, &s.Plpgsql)
}

// schemaArgs returns the arguments of pg_dump for everything in the snapshot except rows, values of sequences and large
// objects.
func (r *reader) schemaArgs(format string) []string {
	return []string{
		"--format=" + format, "--compress=0", "--section=pre-data", "--section=post-data", "--no-blobs", "--no-password",
		"--lock-wait-timeout=" + r.d.besideWait(),
		"--snapshot=" + r.snapshot, pgtools.ToDatabase(r.lead.db),
	}
}

// schema reads the schema's text, and an archive for pg_restore, or takes them from an earlier snapshot if the schema is the same
// for sure. If an earlier snapshot has the same text, schema uses its archive.
func (r *reader) schema(ctx context.Context) error {
	if r.knownSchema() {
		return nil
	}
	text := &bounded{most: maxSchema}
	text.to = &text.buf
	if err := r.dump(ctx, "plain", text); err != nil {
		if text.err != nil {
			return text.err
		}
		return err
	}
	tidied := tidy(text.buf.Bytes())
	r.m.State.Schema, r.m.asWritten, r.m.plain = digest(string(dumptext.Canonical(tidied))), digest(string(tidied)), tidied
	if r.batch == nil {
		return nil
	}
	var err error
	if r.m.text, _, err = r.d.cfg.Store.PutReader(r.batch, bytes.NewReader(tidied), cas.ChunkSize/4); err != nil {
		return err
	}
	if r.m.archive = r.knownArchive(); !r.m.archive.IsZero() {
		return nil
	}
	pipe, in := io.Pipe()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		out := &bounded{to: in, most: maxArchive}
		err := r.dump(ctx, "custom", out)
		if out.err != nil {
			err = out.err
		}
		in.CloseWithError(err)
		return err
	})
	group.Go(func() (err error) {
		r.m.archive, _, err = r.d.cfg.Store.PutReader(r.batch, pipe, cas.ChunkSize)
		pipe.CloseWithError(err)
		return err
	})
	return group.Wait()
}

// dump runs pg_dump for the schema.
func (r *reader) dump(ctx context.Context, format string, out io.Writer) error {
	locking := false // it failed to lock a table; what it says of that is in the server's language
	err := r.d.tools.Run(ctx, *r.d.login, pgtools.Command{Tools: r.tool, Name: "pg_dump", Args: r.schemaArgs(format), Out: out, Harmless: func(said string) bool {
		locking = strings.Contains(said, "LOCK TABLE")
		return false
	}})
	if err != nil && locking {
		return queued{err}
	}
	return err
}

// knownArchive returns the archive of an earlier snapshot with the same schema.
func (r *reader) knownArchive() cas.Hash {
	for m := range r.earlier(func(of meta) bool { return of.Schema == r.m.State.Schema }) {
		if r.batch.Keep(m.archive) {
			return m.archive
		}
	}
	return cas.Hash{}
}

// earlier returns the snapshots that the same version of pg_dump took of the same version of the server, and whose records match. Damaged
// ones are left out.
func (r *reader) earlier(match func(meta) bool) iter.Seq[*manifest] {
	return func(yield func(*manifest) bool) {
		for _, root := range r.d.records.All() {
			of, err := database.Meta[meta](root)
			if err != nil || !match(of) {
				continue
			}
			m, err := load(r.d.cfg.Store, root.Hash)
			if err == nil && m.Tool == r.m.Tool && m.Server == r.m.Server && !yield(m) {
				return
			}
		}
	}
}

// few is the size of all tables up to which one session reads them, in bytes. To open another one takes the server longer.
const few = 4 << 20

// contents starts in the group to read the rows and the large objects, the largest table first.
func (r *reader) contents(ctx context.Context, group *errgroup.Group, rels []*relation) {
	r.m.State.Tables, r.m.rows = make([]table, len(rels)), make([]cas.Hash, len(rels))
	order := make([]int, len(rels))
	var size int64
	for i, rel := range rels {
		order[i], r.m.State.Tables[i] = i, rel.table
		size += rel.bytes
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(max(rels[b].bytes-rels[a].bytes, -1), 1)) })
	next := make(chan int, len(order))
	for _, i := range order {
		next <- i
	}
	close(next)
	group.Go(func() error { return r.blobs(ctx) })
	if size <= few && r.encoding == utf8Encoding {
		group.Go(func() error {
			r.reading.Lock()
			defer r.reading.Unlock()
			return r.rest(ctx, r.lead, next)
		})
		return
	}
	for range min(r.d.cfg.Jobs, len(rels)) {
		group.Go(func() error {
			c, err := r.worker(ctx, r.encoding)
			if err != nil {
				return err
			}
			defer c.close()
			return r.rest(ctx, c, next)
		})
	}
}

// rest reads the tables that are left.
func (r *reader) rest(ctx context.Context, c *conn, next <-chan int) error {
	for i := range next {
		if err := r.table(ctx, c, i); err != nil {
			return err
		}
	}
	return nil
}

// utf8Encoding is the encoding in which sessions speak unless another one is set.
const utf8Encoding = "UTF8"

// worker opens another session in the same snapshot. For rows its encoding is that of the database, so that no text is
// converted.
func (r *reader) worker(ctx context.Context, encoding string) (*conn, error) {
	c, err := r.d.connect(ctx, r.lead.db)
	if err != nil {
		return nil, err
	}
	err = c.exec(ctx, "SET client_encoding = "+literal(encoding)+"; SET lock_timeout = "+r.d.besideWait()+"; BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT "+literal(r.snapshot))
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (r *reader) table(ctx context.Context, c *conn, i int) error {
	t := &r.m.State.Tables[i]
	w := &rowWriter{batch: r.batch}
	_, err := c.PgConn().CopyTo(ctx, w, t.copyOut(quoteAny))
	if err == nil {
		r.m.rows[i], err = w.end()
	}
	if sqlState(err) == stateDenied {
		return errs.New(errs.Denied, "", "%s may not read table %s", r.d.login.User, t.id()).
			WithHint("GRANT SELECT ON %s.%s TO %s, or let its owner read it", quote(t.Schema), quote(t.Name), quote(r.d.login.User))
	}
	if sqlState(err) == stateLocked {
		return queued{fmt.Errorf("table %s: %w", t.id(), err)}
	}
	if err != nil {
		return fmt.Errorf("table %s: %w", t.id(), err)
	}
	t.content = content{Rows: w.Rows, Sum: w.String()}
	return nil
}

var errPage = errs.New(errs.Invalid, "", "the server's answer about a large object cannot be parsed").WithHint("is it a PostgreSQL server? look into its log")

// blobPage is the number of bytes of a large object that are read together and stored as a row.
const blobPage = 64 << 10

// blobs reads the large objects as rows of oid, offset and bytes in hex.
func (r *reader) blobs(ctx context.Context) error {
	s := &r.m.State
	w := &rowWriter{batch: r.batch}
	if len(s.Objects) > 0 {
		c, err := r.worker(ctx, utf8Encoding)
		if err != nil {
			return err
		}
		defer c.close()
		for _, o := range s.Objects {
			if err := c.copyObject(ctx, w, o.OID); err != nil {
				return fmt.Errorf("large object %d: %w", o.OID, err)
			}
		}
	}
	var err error
	if r.m.blobs, err = w.end(); err != nil {
		return err
	}
	s.Blobs = content{Rows: w.Rows, Sum: w.String()}
	return nil
}

func (c *conn) objects(ctx context.Context) (list []object, err error) {
	rows, err := c.Query(ctx, `SELECT m.oid, pg_catalog.pg_get_userbyid(m.lomowner), coalesce(pg_catalog.obj_description(m.oid, 'pg_largeobject'), ''),
		ARRAY(SELECT pg_catalog.concat_ws(' ', a.privilege_type, a.is_grantable, CASE WHEN a.grantee > 0 THEN pg_catalog.pg_get_userbyid(a.grantee) ELSE '' END)
			FROM pg_catalog.aclexplode(coalesce(m.lomacl, pg_catalog.acldefault('L', m.lomowner))) a ORDER BY 1)
		FROM pg_catalog.pg_largeobject_metadata m ORDER BY m.oid`)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		OID            uint32
		Owner, Comment string
		Grants         []string
	}])
	for _, f := range found {
		if err := c.kept.Add(append(f.Grants, f.Owner, f.Comment)...); err != nil {
			return nil, err
		}
		o := object{OID: f.OID, Owner: f.Owner, Comment: f.Comment}
		for _, g := range f.Grants {
			part := strings.SplitN(g, " ", 3)
			if len(part) < 3 {
				return nil, errPage
			}
			o.Grants = append(o.Grants, grant{Role: part[2], Right: part[0], Grantable: part[1] == "t"})
		}
		list = append(list, o)
	}
	return list, err
}

// copyObject writes a large object's pages to w. It stops at the first short page. It reads in steps because the server may
// omit whole pages of zeros.
func (c *conn) copyObject(ctx context.Context, w io.Writer, oid uint32) error {
	for off := int64(0); ; off += blobPage {
		var page string
		if err := c.QueryRow(ctx, fmt.Sprintf("SELECT pg_catalog.encode(pg_catalog.lo_get(%d, %d, %d), 'hex')", oid, off, blobPage)).Scan(&page); err != nil {
			return err
		}
		if len(page) > 2*blobPage || strings.ContainsRune(page, '\n') {
			return errPage
		}
		if page != "" || off == 0 {
			if _, err := fmt.Fprintf(w, "%d %d %s\n", oid, off, page); err != nil {
				return err
			}
		}
		if len(page) < 2*blobPage {
			return nil
		}
	}
}

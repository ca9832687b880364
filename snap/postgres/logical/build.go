package logical

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtools"
)

// builder creates a database from a snapshot under a temporary name.
type builder struct {
	d      *Driver
	m      *manifest
	name   string
	out    *conn // a session in another database of the server
	server int   // the server's major version
	tool   pgtools.Pair
	known  []uncaptured // tables of the live database that the new one may be without
}

// build creates the database called name, fills it and compares it with the snapshot. After an
// error the caller must drop the database. build returns the database's identity at the time of the
// comparison. known are the live database's tables that no checkpoint has: build returns an error if the new one would lose one.
func (d *Driver) build(ctx context.Context, out *conn, name, note string, m *manifest, known []uncaptured) (proven identity, err error) {
	b := &builder{d: d, m: m, name: name, out: out, known: known}
	if b.server, err = out.version(ctx); err != nil {
		return proven, err
	}
	if b.tool, err = d.tools.Find(ctx, max(b.server, m.Major), out.process(ctx)); err != nil {
		return proven, err
	}
	if err := b.create(ctx, note); err != nil {
		return proven, err
	}
	if err := b.fill(ctx); err != nil {
		return proven, err
	}
	if err := d.cfg.Failpoint.At("build: dress"); err != nil {
		return proven, err
	}
	if err := b.dress(ctx); err != nil {
		return proven, err
	}
	return b.prove(ctx)
}

func (c *conn) oidOf(ctx context.Context, db string) (oid uint32, err error) {
	err = c.QueryRow(ctx, "SELECT coalesce((SELECT oid FROM pg_catalog.pg_database WHERE datname = $1), 0)", db).Scan(&oid)
	return oid, err
}

// create creates the empty database with the snapshot's encoding and locale.
func (b *builder) create(ctx context.Context, note string) error {
	p := b.m.State.Props
	sql := fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 OWNER %s ENCODING %s LC_COLLATE %s LC_CTYPE %s",
		quote(b.name), quote(p.Owner), literal(p.Encoding), literal(p.Collate), literal(p.CType))
	if b.server >= copiesPages {
		// The statement reports a full disk. The other strategy leaves holes in the new database's files: the server finds the
		// disk full only when a later checkpoint writes those pages, and then it crashes.
		sql += " STRATEGY FILE_COPY"
	}
	if p.Tablespace != "pg_default" {
		sql += " TABLESPACE " + quote(p.Tablespace)
	}
	switch p.Provider {
	case "c":
		sql += " LOCALE_PROVIDER libc"
	case "i":
		sql += " LOCALE_PROVIDER icu ICU_LOCALE " + literal(p.Locale)
		if p.Rules != "" {
			sql += " ICU_RULES " + literal(p.Rules)
		}
	case "b":
		sql += " LOCALE_PROVIDER builtin BUILTIN_LOCALE " + literal(p.Locale)
	}
	if err := b.out.exec(ctx, sql); err != nil {
		return err
	}
	if err := b.d.cfg.Failpoint.At("build: created"); err != nil {
		return err
	}
	return b.out.exec(ctx, "COMMENT ON DATABASE "+quote(b.name)+" IS "+literal(note))
}

// fill loads the schema and the rows in pg_restore's order: rows come before the constraints and indexes that check them.
func (b *builder) fill(ctx context.Context) error {
	if err := b.bare(ctx); err != nil {
		return err
	}
	archive, err := readAll(b.d.cfg.Store, b.m.archive)
	if err != nil {
		return err
	}
	if err := b.restore(ctx, archive, "pre-data", 1); err != nil {
		return err
	}
	if err := b.losesNone(ctx); err != nil {
		return err
	}
	if err := b.rows(ctx); err != nil {
		return err
	}
	jobs := b.d.cfg.Jobs
	if b.m.rowCount() <= fewRows {
		jobs = 1
	}
	if err := b.restore(ctx, archive, "post-data", jobs); err != nil {
		return err
	}
	return b.analyze(ctx)
}

// fewRows is the number of rows up to which pg_restore makes the indexes in one session. To open more takes the server longer.
const fewRows = 20_000

// rowCount returns the number of rows of all tables.
func (m *manifest) rowCount() (n int64) {
	for _, t := range m.State.Tables {
		n += t.Rows
	}
	return n
}

// analyze collects the planner's statistics, which a dump does not include. It skips a table whose statistics cannot be
// collected, for example because a child is a foreign table, or an index is on an expression that fails.
func (b *builder) analyze(ctx context.Context) error {
	if len(b.m.State.Tables) == 0 {
		return nil
	}
	c, err := b.d.connect(ctx, b.name)
	if err != nil {
		return err
	}
	defer c.close()
	for _, t := range b.m.State.Tables {
		if err := c.exec(ctx, "ANALYZE "+quote(t.Schema)+"."+quote(t.Name)); err != nil && (sqlState(err) == "" || sqlState(err) == stateDiskFull || c.IsClosed()) {
			return err
		}
	}
	return nil
}

// bare removes the objects that every new database has and the snapshot does not have.
func (b *builder) bare(ctx context.Context) error {
	if b.m.State.Public && b.m.State.Plpgsql {
		return nil
	}
	c, err := b.d.connect(ctx, b.name)
	if err != nil {
		return err
	}
	defer c.close()
	if !b.m.State.Public {
		err = c.exec(ctx, "DROP SCHEMA public")
	}
	if !b.m.State.Plpgsql && err == nil {
		err = c.exec(ctx, "DROP EXTENSION plpgsql")
	}
	return err
}

func (b *builder) restore(ctx context.Context, archive []byte, section string, jobs int) error {
	c := pgtools.Command{Tools: b.tool, Name: "pg_restore", File: archive, Out: io.Discard, Args: []string{
		"--no-password", "--section=" + section, pgtools.ToDatabase(b.name), "--format=custom",
	}}
	if b.tool.Inside() {
		jobs = 1 // it reads its standard input
	}
	if b.tool.Major >= knowsTransactionTimeout && b.server < knowsTransactionTimeout {
		c.Harmless = onlyUnknownSetting // of one process: parallel ones would mix their messages
	} else {
		c.Args = append(c.Args, "--exit-on-error", fmt.Sprint("--jobs=", jobs))
	}
	return b.d.tools.Run(ctx, *b.d.login, c)
}

// copiesPages is the first version whose CREATE DATABASE has strategies. Older servers copy files.
const copiesPages = 15

// knowsTransactionTimeout is the first version whose pg_restore sets transaction_timeout. An older server rejects that
// statement.
const knowsTransactionTimeout = 17

// onlyUnknownSetting reports whether setting transaction_timeout was the only error of pg_restore, which continued after
// errors.
func onlyUnknownSetting(said string) bool {
	failed, harmless, ended := 0, 0, false
	for line := range strings.Lines(said) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "pg_restore: error: "):
			failed++
		case line == "Command was: SET transaction_timeout = 0;":
			harmless++
		case strings.HasPrefix(line, "pg_restore: warning: errors ignored on restore: "):
			ended = true
		}
	}
	return ended && failed > 0 && failed == harmless
}

// rows loads the tables' rows, the large objects and the sequences' values.
func (b *builder) rows(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	next := make(chan int, len(b.m.rows))
	for i := range b.m.rows {
		next <- i
	}
	close(next)
	for range min(b.d.cfg.Jobs, len(b.m.rows)) {
		group.Go(func() error { return b.load(gctx, next) })
	}
	group.Go(func() error { return b.loose(gctx) })
	return group.Wait()
}

func (b *builder) load(ctx context.Context, next <-chan int) error {
	c, err := b.d.connect(ctx, b.name)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.exec(ctx, "SET client_encoding = "+literal(b.m.State.Props.Encoding)); err != nil {
		return err
	}
	for i := range next {
		t := b.m.State.Tables[i]
		if err := b.d.cfg.Failpoint.At("build: table"); err != nil {
			return err
		}
		r, err := openRows(b.d.cfg.Store, b.m.rows[i])
		if err != nil {
			return err
		}
		_, err = c.PgConn().CopyFrom(ctx, r, t.copyIn(quoteAny))
		if err := r.stop(); err != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("load table %s: %w", t.id(), err)
		}
	}
	return nil
}

// loose loads the content outside of tables: sequences and large objects.
func (b *builder) loose(ctx context.Context) error {
	if len(b.m.State.Sequences) == 0 && len(b.m.State.Objects) == 0 {
		return nil
	}
	c, err := b.d.connect(ctx, b.name)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	for _, s := range b.m.State.Sequences {
		_, err := c.Exec(ctx, "SELECT pg_catalog.setval($1::text::regclass, $2, $3)", quote(s.Schema)+"."+quote(s.Name), s.Last, s.Called)
		if err != nil {
			return fmt.Errorf("sequence %s.%s: %w", s.Schema, s.Name, err)
		}
	}
	if err := b.objects(ctx, c); err != nil {
		return err
	}
	return c.exec(ctx, "COMMIT")
}

// objects creates the large objects.
func (b *builder) objects(ctx context.Context, c *conn) error {
	for _, o := range b.m.State.Objects {
		if err := c.exec(ctx, fmt.Sprintf("SELECT pg_catalog.lo_create(%d)", o.OID)); err != nil {
			return err
		}
	}
	r, err := openRows(b.d.cfg.Store, b.m.blobs)
	if err != nil {
		return err
	}
	if err := c.writeObjects(ctx, r); err != nil {
		return err
	}
	for _, o := range b.m.State.Objects {
		on := fmt.Sprintf("LARGE OBJECT %d", o.OID)
		sql := fmt.Sprintf("ALTER %s OWNER TO %s; ", on, quote(o.Owner)) + regrant(on, o.Owner, o.Grants)
		if o.Comment != "" {
			sql += fmt.Sprintf("COMMENT ON %s IS %s;", on, literal(o.Comment))
		}
		if err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// writeObjects writes the pages that copyObject has stored.
func (c *conn) writeObjects(ctx context.Context, r *rowReader) error {
	data := &bytes.Buffer{}
	for {
		line, err := readLine(r, data)
		if err != nil || line == "" {
			return err
		}
		var oid uint32
		var off int64
		var page string
		if n, err := fmt.Sscan(line, &oid, &off, &page); n < 2 {
			return errs.Wrap(errs.Corrupt, "read a large object", err)
		}
		raw, err := hex.DecodeString(page)
		if err != nil {
			return errs.Wrap(errs.Corrupt, "read a large object", err)
		}
		if _, err := c.Exec(ctx, "SELECT pg_catalog.lo_put($1, $2, $3)", oid, off, raw); err != nil {
			return err
		}
	}
}

// readLine returns the next line of r, buffered in buf, or "" at the end.
func readLine(r io.Reader, buf *bytes.Buffer) (string, error) {
	for {
		if i := bytes.IndexByte(buf.Bytes(), '\n'); i >= 0 {
			return string(buf.Next(i + 1)), nil
		}
		n, err := io.CopyN(buf, r, 32<<10)
		if n == 0 && err == io.EOF { //nolint:errorlint // CopyN returns it unwrapped
			return "", nil
		}
		if err != nil && err != io.EOF { //nolint:errorlint // likewise
			return "", err
		}
	}
}

// regrant returns statements after which the object has exactly these grants.
func regrant(on, owner string, grants []grant) string {
	var sql strings.Builder
	for _, who := range []string{"PUBLIC", quote(owner)} {
		fmt.Fprintf(&sql, "REVOKE ALL ON %s FROM %s; ", on, who)
	}
	for _, g := range grants {
		who, option := "PUBLIC", ""
		if g.Role != "" {
			who = quote(g.Role)
		}
		if g.Grantable {
			option = " WITH GRANT OPTION"
		}
		fmt.Fprintf(&sql, "GRANT %s ON %s TO %s%s; ", g.Right, on, who, option)
	}
	return sql.String()
}

// fromCurrent are settings whose value is a list of names. Written as one string, the list would become a single name, so dress
// sets them in the session and copies them with FROM CURRENT.
var fromCurrent = map[string]bool{"search_path": true, "temp_tablespaces": true, "session_preload_libraries": true, "local_preload_libraries": true}

// dress sets the database's properties except the comment: until the database is live, its comment names the restore that it
// belongs to.
func (b *builder) dress(ctx context.Context) error {
	p, db := b.m.State.Props, "DATABASE "+quote(b.name)
	if err := b.settings(ctx, db, p.Settings); err != nil {
		return err
	}
	return b.out.exec(ctx, regrant(db, p.Owner, p.Grants)+fmt.Sprintf("ALTER %s CONNECTION LIMIT %d IS_TEMPLATE %t", db, p.Limit, p.Template))
}

// settings sets the settings of the database db, in a session of their own: some are set in the session too.
func (b *builder) settings(ctx context.Context, db string, list []setting) error {
	if len(list) == 0 {
		return nil
	}
	c, err := b.d.connect(ctx, outsideOf(b.out))
	if err != nil {
		return err
	}
	defer c.close()
	for _, s := range list {
		of := "ALTER " + db
		if s.Role != "" {
			of = "ALTER ROLE " + quote(s.Role) + " IN " + db
		}
		sql := fmt.Sprintf("%s SET %s TO %s", of, quoteSetting(s.Name), literal(s.Value))
		if fromCurrent[s.Name] {
			sql = fmt.Sprintf("BEGIN; SET LOCAL search_path = ''; SELECT pg_catalog.set_config(%s, %s, true); %s SET %s FROM CURRENT; COMMIT",
				literal(s.Name), literal(s.Value), of, quoteSetting(s.Name))
		}
		if err := c.exec(ctx, sql); err != nil {
			return fmt.Errorf("setting %s: %w", s.Name, err)
		}
	}
	return nil
}

func outsideOf(c *conn) string { return c.db }

// quoteSetting quotes a setting's name, which may have a prefix and a dot.
func quoteSetting(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = quote(p)
	}
	return strings.Join(parts, ".")
}

// prove reads the database back and compares it with the snapshot.
func (b *builder) prove(ctx context.Context) (identity, error) {
	got, err := b.d.read(ctx, b.name, nil, &b.m.State)
	if err != nil {
		return identity{}, err
	}
	got.State.Props.Comment = b.m.State.Props.Comment // the database gets this comment when it becomes live
	if b.m.post(got) == b.m.State.hash() {
		return got.Identity, nil
	}
	list, err := b.apart(got)
	if err != nil {
		return identity{}, err
	}
	return identity{}, errs.New(errs.Failed, "", "the database that was built differs from the snapshot: %s", summarize(list)).
		WithHint("the live database is untouched; restore another checkpoint")
}

// apart returns the differences between the built database, read as got, and the snapshot.
func (b *builder) apart(got *manifest) ([]snap.Change, error) {
	if !b.m.comparable(got) {
		return differences(&b.m.State, &got.State), nil
	}
	want, err := b.d.storedSide(b.m)
	if err != nil {
		return nil, err
	}
	return compare(b.d.login.Database, want, &side{&got.State, got.plain}), nil
}

// post returns the hash of the state now, for comparison with m's hash. If another version of the server or of pg_dump wrote
// m's schema, the texts cannot be compared, and post compares only tables, columns and rows.
func (m *manifest) post(now *manifest) snap.Hash {
	s := now.State
	if m.Form == 0 {
		s.Schema = now.asWritten
	}
	if !m.comparable(now) {
		s.Schema, s.Props.Provider, s.Props.Locale = m.State.Schema, m.State.Props.Provider, m.State.Props.Locale
	}
	return s.hash()
}

func (m *manifest) comparable(now *manifest) bool {
	return m.State.Absent || now.State.Absent || m.Tool == now.Tool && m.Server == now.Server
}

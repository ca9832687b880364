package logical

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Plan computes the changes, finds the live database, and returns an error if the role lacks a privilege.
func (e engine) Plan(ctx context.Context, p, old *plan, target, base cas.Root) error {
	e.d.name(p)
	if len(beside("", p.ID, "new")) > 63 {
		return errs.New(errs.Invalid, "", "%q is not a restore id", p.ID)
	}
	end, err := e.d.loadEnds(target, base)
	if err != nil {
		return err
	}
	if p.Changes, err = e.d.changes(end); err != nil {
		return err
	}
	p.TargetHash = end.target.State.hash().String()
	p.Comment, p.BaseComment, p.Clean = end.target.State.Props.Comment, end.base.State.Props.Comment, end.base.Identity
	if old != nil {
		p.Roles = old.Roles
	}
	out, err := e.d.outside(ctx)
	if err != nil {
		return err
	}
	defer out.close()
	if p.BaseOID, err = out.oidOf(ctx, e.d.login.Database); err != nil {
		return err
	}
	return e.d.allowed(ctx, out, end)
}

// ends are the target and the base of a switch.
type ends struct{ target, base *manifest }

func (d *Driver) loadEnds(target, base cas.Root) (e ends, err error) {
	if e.target, err = load(d.cfg.Store, target.Hash); err != nil {
		return e, err
	}
	e.base, err = load(d.cfg.Store, base.Hash)
	return e, err
}

// Build builds the target as a second database on the server and compares it with the snapshot. If old has built the same
// content already, Build uses its database.
func (e engine) Build(ctx context.Context, p, old *plan, target, base cas.Root) error {
	end, err := e.d.loadEnds(target, base)
	if err != nil {
		return err
	}
	out, err := e.d.outside(ctx)
	if err != nil {
		return err
	}
	defer out.close()
	reuse, err := e.d.reusable(ctx, out, old, p)
	if err != nil {
		return err
	}
	if p.Known, err = e.d.uncaptured(ctx); err != nil {
		return err
	}
	if reuse && among(p.Known, old.Known) {
		p.NewOID, p.Proven = old.NewOID, old.Proven
		return nil
	}
	err = e.d.construct(ctx, out, p, end)
	if sqlState(err) == stateDiskFull {
		e.d.empty(p, end.target)
	}
	return err
}

// changes returns the changes from the target to the base, which the restore reverts.
func (d *Driver) changes(e ends) ([]snap.Change, error) {
	a, err := d.storedSide(e.target)
	if err != nil {
		return nil, err
	}
	b, err := d.storedSide(e.base)
	if err != nil {
		return nil, err
	}
	return compare(d.login.Database, a, b), nil
}

// reusable reports whether old's new database has the content that p needs and still exists.
func (d *Driver) reusable(ctx context.Context, out *conn, old, p *plan) (bool, error) {
	if old == nil || old.Phase != database.Prepared || old.TargetHash != p.TargetHash || old.NewOID == 0 {
		return false, nil
	}
	oid, err := out.oidOf(ctx, p.New)
	return oid == old.NewOID, err
}

// construct builds the target's database.
func (d *Driver) construct(ctx context.Context, out *conn, p *plan, e ends) error {
	if err := d.drop(ctx, out, p.New); err != nil {
		return err
	}
	if e.target.State.Absent {
		return nil
	}
	if err := d.makeRoles(ctx, out, p, e.target.Roles); err != nil {
		return err
	}
	idle, err := d.isBase(ctx, e.base)
	if err != nil {
		return err
	}
	proven, err := d.build(ctx, out, p.New, d.note(p), e.target, p.Known)
	if err != nil {
		return err
	}
	p.NewOID = proven.Database
	quiet, err := d.shut(ctx, out, p.New, proven)
	if err != nil {
		return err
	}
	if quiet {
		p.Proven = proven
	}
	if idle {
		// Building advanced the transaction counter. Comparing the live state with the base now avoids that while the app is
		// stopped.
		if now, err := d.readLive(ctx, nil, &e.base.State); err == nil && e.base.post(now) == e.base.State.hash() {
			p.Clean = now.Identity
		}
	}
	return nil
}

// shut closes the database to everybody. quiet reports whether the database is certainly in its proven state: nothing was
// written on the server until the database was closed and had no session.
func (d *Driver) shut(ctx context.Context, out *conn, db string, proven identity) (quiet bool, err error) {
	xid, err := out.transact(ctx, step{db, "ALTER DATABASE " + quote(db) + " ALLOW_CONNECTIONS false"})
	if err != nil || !proven.idleUntil(xid) {
		return false, err
	}
	if alone, err := out.alone(ctx, db); err != nil || !alone {
		return false, err
	}
	now, err := out.identifyRows(ctx)
	return now.idleUntil(xid + 1), err
}

// aloneWithin bounds the wait for a busy server to end sessions that the driver has closed.
const aloneWithin = 2 * time.Second

// alone waits until the database has no session, because the driver has just closed its own. It returns false if a session
// stays.
func (out *conn) alone(ctx context.Context, db string) (bool, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(aloneWithin); ; {
		var inside int
		err := out.QueryRow(ctx, `SELECT count(*) FROM pg_catalog.pg_stat_activity
			WHERE datname = $1 AND backend_type IS DISTINCT FROM 'autovacuum worker'`, db).Scan(&inside)
		if err != nil || inside == 0 {
			return err == nil, err
		}
		select {
		case <-tick.C:
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// isBase reports whether the live state is certainly the base.
func (d *Driver) isBase(ctx context.Context, base *manifest) (bool, error) {
	c, err := d.connect(ctx, d.login.Database)
	if isAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.close()
	now, err := c.identify(ctx)
	return now.surely(base.Identity), err
}

// empty drops the tables of p's new database after the disk has become full. To drop a database, the server makes a checkpoint,
// and it crashes if it cannot write that.
func (d *Driver) empty(p *plan, m *manifest) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*connectTimeout)
	defer cancel()
	c, err := d.connect(ctx, p.New)
	if err != nil {
		return // best effort
	}
	defer c.close()
	for _, t := range m.State.Tables {
		_ = c.exec(ctx, "DROP TABLE IF EXISTS "+quote(t.Schema)+"."+quote(t.Name)+" CASCADE") // best effort
	}
}

// drop drops a database of the driver and ends its sessions. If a crash interrupted DROP DATABASE, the database is invalid, and
// the server accepts only another DROP.
func (d *Driver) drop(ctx context.Context, out *conn, name string) error {
	templates, err := out.list(ctx, "SELECT 't' FROM pg_catalog.pg_database WHERE datname = $1 AND datistemplate AND datconnlimit <> -2", name)
	if err != nil {
		return err
	}
	if len(templates) > 0 {
		if err := out.exec(ctx, "ALTER DATABASE "+quote(name)+" IS_TEMPLATE false"); err != nil {
			return err
		}
	}
	sql := "DROP DATABASE IF EXISTS " + quote(name) + " WITH (FORCE)"
	err = out.exec(ctx, sql)
	if sqlState(err) != stateInUse {
		return err
	}
	if dropped, e := d.unsubscribe(ctx, out, name); e != nil || !dropped {
		return errs.Also(err, e)
	}
	return out.exec(ctx, sql)
}

// unsubscribe drops the subscriptions of a database of the driver, with which the server does not drop it, and reports whether there were
// any. Their slots on the publisher stay, because those of the live database have the same names. The subscriptions are disabled from
// outside before the database is opened: a worker of the server would otherwise connect to the slots, and take changes that the live
// database needs. Only a superuser may do that.
func (d *Driver) unsubscribe(ctx context.Context, out *conn, name string) (dropped bool, err error) {
	const its = " WHERE subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = $1)"
	names, err := out.list(ctx, "SELECT subname::text FROM pg_catalog.pg_subscription"+its, name)
	if err != nil || len(names) == 0 {
		return false, err
	}
	if _, err := out.Exec(ctx, "UPDATE pg_catalog.pg_subscription SET subenabled = false"+its, name); err != nil {
		return false, err
	}
	if err := out.exec(ctx, "ALTER DATABASE "+quote(name)+" ALLOW_CONNECTIONS true"); err != nil {
		return false, err
	}
	c, err := d.connect(ctx, name)
	if err != nil {
		return false, err
	}
	defer c.close()
	for _, s := range names {
		if err := c.exec(ctx, "ALTER SUBSCRIPTION "+quote(s)+" SET (slot_name = NONE)"); err != nil {
			return false, err
		}
		if err := c.exec(ctx, "DROP SUBSCRIPTION "+quote(s)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// allowed returns an error if the role lacks a privilege that the switch needs. It is called before anything is created.
func (d *Driver) allowed(ctx context.Context, out *conn, e ends) error {
	var super, create bool
	if err := out.QueryRow(ctx, "SELECT rolsuper, rolcreatedb FROM pg_catalog.pg_roles WHERE rolname = current_user").Scan(&super, &create); err != nil || super {
		return err
	}
	me := quote(d.login.User)
	if !create {
		return errs.New(errs.Denied, "", "%s may not create a database, which a restore needs: it builds a second one beside the live one", d.login.User).
			WithHint("ALTER ROLE %s CREATEDB", me)
	}
	owners := map[string]bool{}
	for _, m := range []*manifest{e.target, e.base} {
		if !m.State.Absent {
			owners[m.State.Props.Owner] = true
		}
	}
	for owner := range owners {
		var member bool
		err := out.QueryRow(ctx, "SELECT coalesce((SELECT pg_catalog.pg_has_role(oid, 'MEMBER') FROM pg_catalog.pg_roles WHERE rolname = $1), true)", owner).Scan(&member)
		if err != nil {
			return err
		}
		if !member {
			return errs.New(errs.Denied, "", "database %s belongs to %s, and only its owner may exchange it", d.login.Database, owner).
				WithHint("GRANT %s TO %s, or name the owner in the dsn", quote(owner), me)
		}
	}
	return nil
}

// makeRoles creates the roles that the target needs and the server lacks.
func (d *Driver) makeRoles(ctx context.Context, out *conn, p *plan, roles []role) error {
	have, err := out.list(ctx, "SELECT rolname::text FROM pg_catalog.pg_roles")
	if err != nil {
		return err
	}
	var missing []role
	for _, r := range roles {
		if !slices.Contains(have, r.Name) {
			missing = append(missing, r)
			if !slices.Contains(p.Roles, r.Name) {
				p.Roles = append(p.Roles, r.Name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := d.records.Save(p); err != nil {
		return err
	}
	for _, r := range missing {
		sql := "CREATE ROLE " + quote(r.Name) + " " + r.Attributes
		if err := out.exec(ctx, sql+r.password()); err != nil {
			return &errs.Error{Kind: errs.Denied, Message: fmt.Sprintf("role %s, which the snapshot needs, is missing and cannot be created", r.Name),
				Hint: "as a superuser: " + sql, Err: err}
		}
	}
	for _, r := range missing {
		for _, g := range r.MemberOf {
			if err := out.exec(ctx, "GRANT "+quote(g)+" TO "+quote(r.Name)); err != nil {
				return fmt.Errorf("membership of role %s: %w", r.Name, err)
			}
		}
	}
	return nil
}

func (r role) password() string {
	if r.Password == "" {
		return ""
	}
	return " PASSWORD " + literal(r.Password)
}

// dropRoles drops the roles that makeRoles created, except those that other objects depend on now.
func (d *Driver) dropRoles(ctx context.Context, out *conn, p *plan) error {
	if len(p.Roles) == 0 {
		return nil
	}
	made, err := out.list(ctx, "SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY ($1)", p.Roles)
	if err != nil {
		return err
	}
	for _, name := range made {
		err := out.exec(ctx, "DROP ROLE IF EXISTS "+quote(name))
		if err != nil && sqlState(err) != stateDependent {
			return err
		}
	}
	return nil
}

// Drop drops the databases of a switch except the live one. If the exchange was interrupted, Drop first exchanges back to the
// base.
func (e engine) Drop(ctx context.Context, p *plan) (left []string, err error) {
	e.d.name(p)
	out, err := e.d.outside(ctx)
	if err != nil {
		return nil, err
	}
	defer out.close()
	at, err := e.d.look(ctx, out, p)
	if err != nil {
		return nil, err
	}
	if p.Reached != database.Committed && p.away(at) && !p.there(at) {
		if _, err := e.d.exchange(ctx, out, e.d.backSteps(p, at), nil); err != nil {
			return nil, err
		}
		at = position{}
	}
	return e.d.clear(ctx, out, p, p.Reached == database.Committed || p.there(at))
}

// clear drops the databases of a switch except the live one, and returns those that the server does not let go. If done is false, the
// target is not live, and clear also drops the roles that were created for it.
func (d *Driver) clear(ctx context.Context, out *conn, p *plan, done bool) (left []string, err error) {
	if err := d.cfg.Failpoint.At("clear: databases"); err != nil {
		return nil, err
	}
	ours := map[string]uint32{p.New: p.NewOID}
	if done {
		ours[p.Old] = p.BaseOID
	}
	for name, oid := range ours {
		err := d.dropOurs(ctx, out, name, oid)
		if sqlState(err) == stateInUse {
			left = append(left, fmt.Sprintf("database %s cannot be dropped (%v): drop what uses it, or the database", name, err))
		} else if err != nil {
			return nil, err
		}
	}
	if !done {
		if err := d.dropRoles(ctx, out, p); err != nil {
			return nil, err
		}
	}
	return left, d.cfg.Failpoint.At("clear: plan")
}

// dropOurs drops the database called name if its OID is oid. An interrupted build recorded no OID (0); then the name suffices,
// because only the driver uses it.
func (d *Driver) dropOurs(ctx context.Context, out *conn, name string, oid uint32) error {
	found, err := out.oidOf(ctx, name)
	if err != nil || oid != 0 && found != oid {
		return err
	}
	return d.drop(ctx, out, name)
}

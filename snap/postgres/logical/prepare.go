package logical

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

// Prepare builds the target as a second database on the server, and proves it.
// Under an id that has one of the same content already, only the base is new.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare database restore"
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(beside("", req.ID, "new")) > 63 {
		return nil, errs.New(errs.Invalid, op, "%q is not a restore id", req.ID)
	}
	old, err := d.readPlan(op, req.ID)
	var head *records.Plan
	if err == nil {
		head = old.Head()
	}
	target, base, err := d.records.Ends(op, req, head)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := d.prepare(ctx, req, old, target, base)
	if err != nil {
		return nil, d.classify(op, err)
	}
	return &dbSwitch{d: d, id: req.ID, changes: p.Changes}, nil
}

// ends are the two states of a switch.
type ends struct{ target, base *manifest }

func (d *Driver) loadEnds(target, base cas.Root) (e ends, err error) {
	if e.target, err = load(d.cfg.Store, target.Hash); err != nil {
		return e, err
	}
	e.base, err = load(d.cfg.Store, base.Hash)
	return e, err
}

func (d *Driver) prepare(ctx context.Context, req snap.RestoreRequest, old *plan, target, base cas.Root) (p *plan, err error) {
	e, err := d.loadEnds(target, base)
	if err != nil {
		return nil, err
	}
	if err := d.cfg.Store.Check(ctx, base.Name, false); err != nil {
		return nil, err
	}
	changes, err := d.changes(e)
	if err != nil {
		return nil, err
	}
	p = &plan{
		Plan: records.NewPlan(req, records.Preparing, changes), TargetHash: e.target.State.hash().String(),
		New: beside(d.login.database, req.ID, "new"), Old: beside(d.login.database, req.ID, "old"),
		Comment: e.target.State.Props.Comment, BaseComment: e.base.State.Props.Comment, Clean: e.base.Identity,
	}
	out, err := d.outside(ctx)
	if err != nil {
		return nil, err
	}
	defer out.close()
	if p.BaseOID, err = out.oidOf(ctx, d.login.database); err != nil {
		return nil, err
	}
	reuse, err := d.reusable(ctx, out, old, p)
	if err != nil {
		return nil, err
	}
	if reuse {
		p.NewOID, p.Proven, p.Roles = old.NewOID, old.Proven, old.Roles
	} else if err := d.construct(ctx, out, old, p, e); err != nil {
		if sqlState(err) == stateDiskFull {
			d.empty(p, e.target)
		}
		return nil, errs.Also(err, d.abort(out, p, 6*connectTimeout))
	}
	if err := d.records.Hold(p.Head(), target, base); err != nil {
		return nil, errs.Also(err, d.abort(out, p, 6*connectTimeout))
	}
	if err := d.seam("prepare: install"); err != nil {
		return nil, err
	}
	if err := d.records.Advance(p, records.Prepared); err != nil {
		return nil, err
	}
	return p, d.records.Release(req.ID, req.Target, req.Base)
}

// changes says what happened from the target to the base: what the restore undoes.
func (d *Driver) changes(e ends) ([]snap.Change, error) {
	a, err := d.storedSide(e.target)
	if err != nil {
		return nil, err
	}
	b, err := d.storedSide(e.base)
	if err != nil {
		return nil, err
	}
	return compare(d.login.database, a, b), nil
}

// reusable reports whether what old built is what p wants, and is still there.
func (d *Driver) reusable(ctx context.Context, out *conn, old, p *plan) (bool, error) {
	if old == nil || old.Phase != records.Prepared || old.TargetHash != p.TargetHash || old.NewOID == 0 {
		return false, nil
	}
	oid, err := out.oidOf(ctx, p.New)
	return oid == old.NewOID, err
}

// construct builds the target's database.
func (d *Driver) construct(ctx context.Context, out *conn, old, p *plan, e ends) error {
	if old != nil {
		p.Roles = old.Roles
	}
	if err := d.allowed(ctx, out, e); err != nil {
		return err
	}
	if err := d.records.Advance(p, records.Preparing); err != nil {
		return err
	}
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
	proven, err := d.build(ctx, out, p.New, d.note(p), e.target)
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
		// Building moved the transaction counter on. A look at the live state
		// now saves one while the app is stopped.
		if now, err := d.readLive(ctx, nil, &e.base.State); err == nil && e.base.post(now) == e.base.State.hash() {
			p.Clean = now.Identity
		}
	}
	return nil
}

// shut closes the database to everybody. It reports whether it is surely still
// what was proven: nothing was written on the server from then until it was
// closed and nobody was in it any more.
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

// aloneWithin is how long a busy server may take to end sessions that were closed.
const aloneWithin = 2 * time.Second

// alone waits until nobody is in a database: our own sessions were closed there
// just now. It is false where somebody stays.
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

// isBase reports whether the live state is surely the base.
func (d *Driver) isBase(ctx context.Context, base *manifest) (bool, error) {
	c, err := d.connect(ctx, d.login.database)
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

// abort drops what a preparation that failed has made, with a context of its own.
func (d *Driver) abort(out *conn, p *plan, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if out.IsClosed() {
		again, err := d.outside(ctx)
		if err != nil {
			return nil // the server is gone: Sweep will do it, by the plan
		}
		defer again.close()
		out = again
	}
	err := d.drop(ctx, out, p.New)
	if err == nil {
		err = d.dropRoles(ctx, out, p)
	}
	if out.IsClosed() {
		return nil // likewise
	}
	return errs.Also(err, errors.Join(d.records.Release(p.ID), d.records.Drop(string(p.ID))))
}

// empty frees the space that tables took, on a disk that is full: to drop a
// database the server makes a checkpoint, and has to stop where it can't write one.
func (d *Driver) empty(p *plan, m *manifest) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*connectTimeout)
	defer cancel()
	c, err := d.connect(ctx, p.New)
	if err != nil {
		return // it is only to make things easier
	}
	defer c.close()
	for _, t := range m.State.Tables {
		_ = c.exec(ctx, "DROP TABLE IF EXISTS "+quote(t.Schema)+"."+quote(t.Name)+" CASCADE") // likewise
	}
}

// drop drops a database of ours, ending its sessions. A database whose DROP DATABASE
// a crash cut short is invalid: the server refuses everything about it but another DROP.
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
	return out.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
}

// allowed makes sure, before anything is made, that the role may do all that a
// switch needs.
func (d *Driver) allowed(ctx context.Context, out *conn, e ends) error {
	var super, create bool
	if err := out.QueryRow(ctx, "SELECT rolsuper, rolcreatedb FROM pg_catalog.pg_roles WHERE rolname = current_user").Scan(&super, &create); err != nil || super {
		return err
	}
	me := quote(d.login.user)
	if !create {
		return errs.New(errs.Denied, "", "%s may not create a database, and a restore is built beside the live one", d.login.user).
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
			return errs.New(errs.Denied, "", "database %s belongs to %s, and only its owner may exchange it", d.login.database, owner).
				WithHint("GRANT %s TO %s, or name the owner in the dsn", quote(owner), me)
		}
	}
	return nil
}

// makeRoles makes the roles that the target needs and the server lacks.
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
			return &errs.Error{Kind: errs.Denied, Message: fmt.Sprintf("role %s, which the snapshot needs, is gone and cannot be made again", r.Name),
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

// dropRoles takes away again the roles that were made. One that something else
// came to need stays.
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

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.loadPlan("resume database restore", id)
	if err != nil {
		return nil, err
	}
	return &dbSwitch{d: d, id: id, changes: p.Changes}, nil
}

// sweepSwitches drops the switches that are gone, and those without a plan or that were never prepared, with their databases.
// The live database stays what it is.
func (d *Driver) sweepSwitches(ctx context.Context, gone []snap.RestoreID) error {
	names, err := d.records.Switches()
	if err != nil {
		return err
	}
	for _, name := range names {
		if d.records.Whole(name) && !slices.Contains(gone, snap.RestoreID(name)) && !d.unprepared(snap.RestoreID(name)) {
			continue
		}
		if err := d.sweepSwitch(ctx, name); err != nil {
			return fmt.Errorf("restore %s: %w", strings.ToValidUTF8(name, "?"), err)
		}
	}
	return nil
}

// unprepared reports whether a preparation, or a rehearsal, was cut short: Resume finds no such switch.
func (d *Driver) unprepared(id snap.RestoreID) bool {
	p, err := d.readPlan("", id)
	return err == nil && !p.There()
}

func (d *Driver) sweepSwitch(ctx context.Context, name string) error {
	p, err := d.readPlan("", snap.RestoreID(name))
	if errs.KindOf(err) == errs.NotFound {
		return d.records.Drop(name) // half gone
	}
	if err != nil {
		return err
	}
	out, err := d.outside(ctx)
	if err != nil {
		return err
	}
	defer out.close()
	at, err := d.look(ctx, out, p)
	if err != nil {
		return err
	}
	if p.Phase != records.Committed && p.away(at) && !p.there(at) { // half: what was live is put back
		if _, err := d.exchange(ctx, out, d.backSteps(p, at), nil); err != nil {
			return err
		}
		at = position{}
	}
	return d.clear(ctx, out, p, p.Phase == records.Committed || p.there(at))
}

// clear drops the databases of a switch that are not the live one, and what is
// known of it. done tells whether the target is live for good.
func (d *Driver) clear(ctx context.Context, out *conn, p *plan, done bool) error {
	if err := d.seam("clear: databases"); err != nil {
		return err
	}
	if err := d.dropOurs(ctx, out, p.New, p.NewOID); err != nil {
		return err
	}
	if done {
		if err := d.dropOurs(ctx, out, p.Old, p.BaseOID); err != nil {
			return err
		}
	} else if err := d.dropRoles(ctx, out, p); err != nil {
		return err
	}
	if err := d.seam("clear: plan"); err != nil {
		return err
	}
	return errors.Join(d.records.Drop(string(p.ID)), d.records.Release(p.ID))
}

// dropOurs drops a database by its name, if it is the one with the OID. A
// building that was cut short has none written down; its name is ours alone.
func (d *Driver) dropOurs(ctx context.Context, out *conn, name string, oid uint32) error {
	found, err := out.oidOf(ctx, name)
	if err != nil || oid != 0 && found != oid {
		return err
	}
	return d.drop(ctx, out, name)
}

package logical

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// The names of the databases record the progress of an exchange.

// position has the OIDs of the databases that have the live and the old name now; 0 means none.
type position struct{ live, old uint32 }

func (d *Driver) look(ctx context.Context, out *conn, p *plan) (at position, err error) {
	if at.live, err = out.oidOf(ctx, d.login.Database); err != nil {
		return at, err
	}
	at.old, err = out.oidOf(ctx, p.Old)
	return at, err
}

// away reports whether the switch moved the base away from the live name.
func (p *plan) away(at position) bool {
	if p.BaseOID == 0 {
		return p.NewOID != 0 && at.live == p.NewOID
	}
	return at.old == p.BaseOID
}

// there reports whether the target is live.
func (p *plan) there(at position) bool {
	return p.away(at) && (p.NewOID == 0 || at.live == p.NewOID)
}

// Stale compares the live state with the base.
func (e engine) Stale(ctx context.Context, p *plan, base cas.Root) (bool, error) {
	from, err := load(e.d.cfg.Store, base.Hash)
	if err != nil {
		return false, err
	}
	return e.d.stale(ctx, p, from)
}

// Warm records the live database's identity as of now. Otherwise Stale could not tell earlier writes to
// the server's other databases from writes to this one, and would read it while the app is down.
func (e engine) Warm(ctx context.Context, p *plan, base cas.Root) error {
	_, err := e.Stale(ctx, p, base)
	return err
}

// stale compares the live state with the base, and looks for tables that the new database would lose: by its identity or, if that changed, by reading the
// database. It records an identity at which they are equal in the plan.
func (d *Driver) stale(ctx context.Context, p *plan, base *manifest) (bool, error) {
	same, err := d.isBase(ctx, &manifest{Identity: p.Clean})
	if err != nil || same {
		return false, err
	}
	now, err := d.readLive(ctx, nil, &base.State)
	if err != nil {
		return false, err
	}
	list, err := d.uncaptured(ctx)
	if err != nil {
		return false, err
	}
	if base.post(now) != base.State.hash() || !among(list, p.Known) {
		return true, nil
	}
	p.Clean = now.Identity
	return false, d.records.Save(p)
}

// Commit exchanges the databases' names and ends every session of the live database.
func (e engine) Commit(ctx context.Context, p *plan, _, base cas.Root) error {
	from, err := load(e.d.cfg.Store, base.Hash)
	if err != nil {
		return err
	}
	out, err := e.d.outside(ctx)
	if err != nil {
		return err
	}
	defer out.close()
	at, err := e.d.look(ctx, out, p)
	if err != nil || p.there(at) {
		return err
	}
	if p.away(at) { // an earlier process ended in the middle
		if _, err := e.d.exchange(ctx, out, e.d.backSteps(p, at), nil); err != nil {
			return err
		}
	}
	return e.d.forward(ctx, out, p, from)
}

// quickTries bounds how often an exchange starts again because something was written on the
// server, perhaps to another database.
const quickTries = 3

// forward makes the target live if the live state is still the base.
func (d *Driver) forward(ctx context.Context, out *conn, p *plan, base *manifest) error {
	for range quickTries {
		stale, err := d.stale(ctx, p, base)
		if err != nil {
			return err
		}
		if stale {
			return snap.Changed("", "database "+d.login.Database)
		}
		if err := d.records.Advance(p, database.Committing); err != nil {
			return err
		}
		p.Exchanged, err = d.exchange(ctx, out, d.forwardSteps(p), func(monitor *conn) error { return d.still(ctx, monitor, p) })
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	if p.NewOID == 0 {
		return errs.New(errs.Busy, "", "other databases of the server are being written to all the time").WithHint("try again when they are quiet")
	}
	return d.forwardAside(ctx, out, p, base)
}

// still returns errMoved if anything was committed on the server since the live state was last known
// to equal the base. monitor is a session outside of the live database.
func (d *Driver) still(ctx context.Context, monitor *conn, p *plan) error {
	if p.BaseOID == 0 {
		return nil
	}
	now, err := monitor.identifyRows(ctx)
	if err == nil && (now.Snapshot != p.Clean.Snapshot || now.System != p.Clean.System) {
		return errMoved
	}
	return err
}

// forwardAside does the same as forward for a server whose other databases are written to all the time: it renames the live
// database, so that no client finds it, and then compares it with the base.
func (d *Driver) forwardAside(ctx context.Context, out *conn, p *plan, base *manifest) error {
	steps := d.forwardSteps(p)
	if _, err := d.exchange(ctx, out, steps[:1], nil); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("aside: read"); err != nil {
		return err
	}
	now, err := d.read(ctx, p.Old, nil, &base.State)
	if err == nil {
		now.State.Props.Comment = p.BaseComment // the present comment may be that of mark
	}
	if err == nil && base.post(now) != base.State.hash() {
		err = snap.Changed("", "database "+d.login.Database)
	}
	if err == nil {
		p.Exchanged, err = d.exchange(ctx, out, append(slices.Clone(steps[aside:]), steps[1:aside]...), nil)
	}
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*exchangeTimeout)
		defer cancel()
		at, lookErr := d.look(back, out, p)
		if lookErr != nil || !p.away(at) {
			return errs.Also(err, lookErr)
		}
		_, backErr := d.exchange(back, out, d.backSteps(p, at), nil)
		return errs.Also(err, backErr)
	}
	return nil
}

// Undo exchanges the names back if a Commit exchanged them.
func (e engine) Undo(ctx context.Context, p *plan, _, _ cas.Root) error {
	out, err := e.d.outside(ctx)
	if err != nil {
		return err
	}
	defer out.close()
	at, err := e.d.look(ctx, out, p)
	if err != nil || !p.away(at) {
		return err
	}
	_, err = e.d.exchange(ctx, out, e.d.backSteps(p, at), nil)
	return err
}

// ReadBack reads the live state, unless nothing can have changed since Prepare read it. For a large database, reading would
// take most of the time that the app is down.
func (e engine) ReadBack(ctx context.Context, p *plan, root cas.Root) (hash snap.Hash, notes []string, err error) {
	want, err := load(e.d.cfg.Store, root.Hash)
	if err != nil {
		return hash, nil, err
	}
	if !p.Back() {
		if same, err := e.d.untouched(ctx, p); err != nil || same {
			return want.State.hash(), want.Notes, err
		}
	}
	now, err := e.d.readLive(ctx, nil, &want.State)
	if err != nil {
		return hash, nil, err
	}
	notes = append(want.rolesChanged(now), want.Notes...)
	if !want.comparable(now) {
		notes = append(notes, "Another version of PostgreSQL captured this: tables, columns and rows were compared, and not the text of the schema.")
	}
	return want.post(now), notes, nil
}

// untouched reports whether the live database is certainly the database that Prepare compared with the target: nothing was
// written on the server between that comparison and the closing of the database, no session could open it until the exchange,
// and since then no transaction wrote and no sequence advanced.
func (d *Driver) untouched(ctx context.Context, p *plan) (bool, error) {
	if p.Proven == (identity{}) || p.Exchanged == 0 {
		return false, nil
	}
	c, err := d.connect(ctx, d.login.Database)
	if err != nil {
		return false, err
	}
	defer c.close()
	now, err := c.identify(ctx)
	return now.idleUntil(p.Exchanged+1) && now.System == p.Proven.System && now.Database == p.Proven.Database &&
		now.Sequences == p.Proven.Sequences, err
}

// rolesChanged describes the roles whose attributes changed. Roles belong to the whole server, so a restore of one database
// does not change them.
func (m *manifest) rolesChanged(now *manifest) (notes []string) {
	for _, r := range m.Roles {
		for _, n := range now.Roles {
			if r.Name == n.Name && digest(r) != digest(n) && r.Password == n.Password {
				notes = append(notes, "The role "+r.Name+" has changed since the checkpoint. Roles belong to the whole server, so the restore leaves them as they are.")
			}
		}
	}
	return notes
}

// step is a statement that concerns database db.
type step struct{ db, sql string }

func rename(db, to string) step {
	return step{db, "ALTER DATABASE " + quote(db) + " RENAME TO " + quote(to)}
}

// mark closes a database of the driver to everybody, and sets a comment with the restore's id.
func (d *Driver) mark(p *plan, db string) step {
	return step{db, "ALTER DATABASE " + quote(db) + " ALLOW_CONNECTIONS false; COMMENT ON DATABASE " + quote(db) + " IS " + literal(d.note(p))}
}

// unmark opens a database and sets the comment that it has as a live database.
func unmark(db, comment string) step {
	value := "NULL"
	if comment != "" {
		value = literal(comment)
	}
	return step{db, "ALTER DATABASE " + quote(db) + " ALLOW_CONNECTIONS true; COMMENT ON DATABASE " + quote(db) + " IS " + value}
}

// aside is the number of forwardSteps that concern the live database.
const aside = 2

// forwardSteps rename the live database to the old name and the new one to the live name.
func (d *Driver) forwardSteps(p *plan) (list []step) {
	live := d.login.Database
	if p.BaseOID != 0 {
		list = append(list, rename(live, p.Old), d.mark(p, p.Old))
	}
	if p.NewOID != 0 {
		list = append(list, rename(p.New, live), unmark(live, p.Comment))
	}
	return list
}

// backSteps rename the old database to the live name, and the live one to the new name.
func (d *Driver) backSteps(p *plan, at position) (list []step) {
	live := d.login.Database
	if at.live != 0 {
		list = append(list, rename(live, p.New), d.mark(p, p.New))
	}
	if p.BaseOID != 0 {
		list = append(list, rename(p.Old, live), unmark(live, p.BaseComment))
	}
	return list
}

// exchangeTimeout bounds how long exchange keeps ending sessions.
const exchangeTimeout = 30 * time.Second

// leftTimeout is after how long the server ends the exchange of a process that says nothing more, in milliseconds. The server may not see that
// the process is gone: a connection through a container's command stays open if the container engine was killed as well. Until then nobody,
// also not the process that finishes the exchange, can connect to the database. Between two steps, exchange takes no time.
const leftTimeout = 30_000

// exchange runs the steps in one transaction and returns the transaction's id. The first step waits for the database's lock.
// New connections wait for the lock too; the monitor session terminates those that are already open. Once the database has no
// session, exchange calls sure, and rolls back if sure returns an error.
func (d *Driver) exchange(ctx context.Context, out *conn, steps []step, sure func(monitor *conn) error) (xid uint64, err error) {
	if len(steps) == 0 {
		return 0, nil
	}
	monitor, err := d.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer monitor.close()
	if err := d.cfg.Failpoint.At("exchange: begin"); err != nil {
		return 0, err
	}
	if err := d.takeAlone(ctx, out, monitor, steps[0]); err != nil {
		return 0, err
	}
	if sure != nil {
		err = sure(monitor)
	}
	if err == nil {
		xid, err = out.finish(ctx, steps[1:]...)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("exchange: commit")
	}
	if err != nil {
		return 0, errs.Also(err, out.exec(ctx, "ROLLBACK"))
	}
	if err := out.exec(ctx, "COMMIT"); err != nil {
		return 0, err
	}
	return xid, d.cfg.Failpoint.At("exchange: done")
}

// takeAlone begins the transaction with its first step, which the server accepts once the database
// has no other session.
func (d *Driver) takeAlone(ctx context.Context, out, monitor *conn, first step) error {
	limit := time.Now().Add(exchangeTimeout)
	for {
		if err := out.exec(ctx, fmt.Sprintf("BEGIN; SET LOCAL idle_in_transaction_session_timeout = %d", leftTimeout)); err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- out.exec(ctx, first.sql) }()
		ended, err := d.endSessions(ctx, monitor, first.db, done)
		if ended == nil && err == nil {
			return nil
		}
		rolled := out.exec(ctx, "ROLLBACK")
		switch state := sqlState(ended); {
		case err != nil:
			return err
		case rolled != nil:
			return errs.Also(ended, rolled)
		case state == stateDuplicateDB:
			return snap.Changed("", "database "+d.login.Database)
		case state != stateInUse && state != stateLocked || time.Now().After(limit):
			return ended
		}
	}
}

// endSessions terminates the sessions in db repeatedly, until done has the result of the statement that waits for them.
func (d *Driver) endSessions(ctx context.Context, monitor *conn, db string, done <-chan error) (ended, err error) {
	for {
		if e := monitor.exec(ctx, `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
			WHERE datname = `+literal(db)+` AND backend_type IS DISTINCT FROM 'autovacuum worker'`); e != nil && err == nil {
			err = e
			if sqlState(e) == stateDenied {
				err = errs.New(errs.Denied, "", "%s may not end the sessions of other roles in %s", d.login.User, db).
					WithHint("GRANT pg_signal_backend TO %s, or stop what is connected", quote(d.login.User))
			}
		}
		select {
		case ended = <-done:
			if ended == nil {
				err = nil // the sessions ended by themselves
			}
			return ended, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

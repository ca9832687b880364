package logical

import (
	"context"
	"errors"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// How far a switch got is in the databases' names.

// position is where the databases of a switch are: the OIDs that the live name
// and the old name stand for, 0 for none.
type position struct{ live, old uint32 }

func (d *Driver) look(ctx context.Context, out *conn, p *plan) (at position, err error) {
	if at.live, err = out.oidOf(ctx, d.login.database); err != nil {
		return at, err
	}
	at.old, err = out.oidOf(ctx, p.Old)
	return at, err
}

// away reports whether the base is no longer live, by the switch's doing.
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

// Warm notes how the database is by now: what else has happened on its server
// since Prepare need not be told from writes to it while the app is down.
func (e engine) Warm(ctx context.Context, p *plan, base cas.Root) error {
	_, err := e.Stale(ctx, p, base)
	return err
}

// stale compares the live state with the base, by its identity or, where that
// has moved on, by reading it. In the plan it notes an identity that is good.
func (d *Driver) stale(ctx context.Context, p *plan, base *manifest) (bool, error) {
	same, err := d.isBase(ctx, &manifest{Identity: p.Clean})
	if err != nil || same {
		return false, err
	}
	now, err := d.readLive(ctx, nil, &base.State)
	if err != nil {
		return false, err
	}
	if base.post(now) != base.State.hash() {
		return true, nil
	}
	p.Clean = now.Identity
	return false, d.records.Save(p)
}

// Commit exchanges the databases' names, ending every session of the live one.
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
	if p.away(at) { // half, and the process died
		if _, err := e.d.exchange(ctx, out, e.d.backSteps(p, at), nil); err != nil {
			return err
		}
	}
	return e.d.forward(ctx, out, p, from)
}

// quickTries is how often an exchange is begun again because somebody wrote to
// the server, if perhaps to another database.
const quickTries = 3

// forward makes the target live, if what is live is still the base then.
func (d *Driver) forward(ctx context.Context, out *conn, p *plan, base *manifest) error {
	for range quickTries {
		stale, err := d.stale(ctx, p, base)
		if err != nil {
			return err
		}
		if stale {
			return snap.Changed("", "database "+d.login.database)
		}
		if err := d.records.Advance(p, database.Committing); err != nil {
			return err
		}
		p.Exchanged, err = d.exchange(ctx, out, d.forwardSteps(p), func(eye *conn) error { return d.still(ctx, eye, p) })
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	if p.NewOID == 0 {
		return errs.New(errs.Busy, "", "other databases of the server are being written to all the time").WithHint("try again when they are quiet")
	}
	return d.forwardAside(ctx, out, p, base)
}

// still fails with errMoved when anything was committed on the server since the
// live state was last seen to be the base.
func (d *Driver) still(ctx context.Context, eye *conn, p *plan) error {
	if p.BaseOID == 0 {
		return nil
	}
	now, err := eye.identifyRows(ctx)
	if err == nil && (now.Snapshot != p.Clean.Snapshot || now.System != p.Clean.System) {
		return errMoved
	}
	return err
}

// forwardAside is forward for a server whose other databases are never quiet:
// it moves the live database aside, where no client finds it, and looks at it there.
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
		now.State.Props.Comment = p.BaseComment // or ours, after a mark
	}
	if err == nil && base.post(now) != base.State.hash() {
		err = snap.Changed("", "database "+d.login.database)
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

// Undo gives the names back, if a Commit exchanged them.
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

// ReadBack reads what is live, unless nothing can have changed since Prepare read it: on a
// large database that is most of the time that the app is down.
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

// untouched reports whether what is live is surely the new database as Prepare
// proved it: nothing wrote to the server between the proof and its closing,
// nobody could enter it until the exchange opened it, and nothing has written to
// the server since, nor moved a sequence, which leaves no transaction.
func (d *Driver) untouched(ctx context.Context, p *plan) (bool, error) {
	if p.Proven == (identity{}) || p.Exchanged == 0 {
		return false, nil
	}
	c, err := d.connect(ctx, d.login.database)
	if err != nil {
		return false, err
	}
	defer c.close()
	now, err := c.identify(ctx)
	return now.idleUntil(p.Exchanged+1) && now.System == p.Proven.System && now.Database == p.Proven.Database &&
		now.Sequences == p.Proven.Sequences, err
}

// rolesChanged says which roles are not what they were. They belong to the
// whole server, so a restore of one database leaves them.
func (m *manifest) rolesChanged(now *manifest) (notes []string) {
	for _, r := range m.Roles {
		for _, n := range now.Roles {
			if r.Name == n.Name && digest(r) != digest(n) && r.Password == n.Password {
				notes = append(notes, "The role "+r.Name+" has other attributes than then; roles belong to the whole server and stay as they are.")
			}
		}
	}
	return notes
}

// step is one statement about a database.
type step struct{ db, sql string }

func rename(db, to string) step {
	return step{db, "ALTER DATABASE " + quote(db) + " RENAME TO " + quote(to)}
}

// mark closes a database of ours to everybody and says whose it is.
func (d *Driver) mark(p *plan, db string) step {
	return step{db, "ALTER DATABASE " + quote(db) + " ALLOW_CONNECTIONS false; COMMENT ON DATABASE " + quote(db) + " IS " + literal(d.note(p))}
}

// unmark opens it, with its own comment.
func unmark(db, comment string) step {
	value := "NULL"
	if comment != "" {
		value = literal(comment)
	}
	return step{db, "ALTER DATABASE " + quote(db) + " ALLOW_CONNECTIONS true; COMMENT ON DATABASE " + quote(db) + " IS " + value}
}

// aside is how many of forwardSteps are about the live database.
const aside = 2

// forwardSteps make the live database the old one, and the new one live.
func (d *Driver) forwardSteps(p *plan) (list []step) {
	live := d.login.database
	if p.BaseOID != 0 {
		list = append(list, rename(live, p.Old), d.mark(p, p.Old))
	}
	if p.NewOID != 0 {
		list = append(list, rename(p.New, live), unmark(live, p.Comment))
	}
	return list
}

// backSteps make the old one live again, and what is live now the new one.
func (d *Driver) backSteps(p *plan, at position) (list []step) {
	live := d.login.database
	if at.live != 0 {
		list = append(list, rename(live, p.New), d.mark(p, p.New))
	}
	if p.BaseOID != 0 {
		list = append(list, rename(p.Old, live), unmark(live, p.BaseComment))
	}
	return list
}

// exchangeTimeout bounds how long sessions are ended again and again.
const exchangeTimeout = 30 * time.Second

// exchange runs the steps in one transaction. The first takes the database's
// lock: from then on whoever wants to connect waits, and who is in is ended by
// eye, a second session. sure is asked once nobody is in. It gives the
// transaction's id.
func (d *Driver) exchange(ctx context.Context, out *conn, steps []step, sure func(eye *conn) error) (xid uint64, err error) {
	if len(steps) == 0 {
		return 0, nil
	}
	eye, err := d.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer eye.close()
	if err := d.cfg.Failpoint.At("exchange: begin"); err != nil {
		return 0, err
	}
	if err := d.takeAlone(ctx, out, eye, steps[0]); err != nil {
		return 0, err
	}
	if sure != nil {
		err = sure(eye)
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

// takeAlone begins the transaction with its first step, which the server
// refuses for as long as anybody else is in the database.
func (d *Driver) takeAlone(ctx context.Context, out, eye *conn, first step) error {
	limit := time.Now().Add(exchangeTimeout)
	for {
		if err := out.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- out.exec(ctx, first.sql) }()
		ended, err := d.endSessions(ctx, eye, first.db, done)
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
			return snap.Changed("", "database "+d.login.database)
		case state != stateInUse && state != stateLocked || time.Now().After(limit):
			return ended
		}
	}
}

// endSessions ends the sessions in db, again and again, until done says how the
// statement that waits for it ended.
func (d *Driver) endSessions(ctx context.Context, eye *conn, db string, done <-chan error) (ended, err error) {
	for {
		if e := eye.exec(ctx, `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
			WHERE datname = `+literal(db)+` AND backend_type IS DISTINCT FROM 'autovacuum worker'`); e != nil && err == nil {
			err = e
			if sqlState(e) == stateDenied {
				err = errs.New(errs.Denied, "", "%s may not end the sessions of other roles in %s", d.login.user, db).
					WithHint("GRANT pg_signal_backend TO %s, or stop what is connected", quote(d.login.user))
			}
		}
		select {
		case ended = <-done:
			if ended == nil {
				err = nil // they left by themselves
			}
			return ended, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

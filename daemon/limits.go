package daemon

import (
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"mulligan/errs"
	"mulligan/ipc"
)

// Limits are what one owner may have, and how much one caller may ask for. 0 is
// no limit.
type Limits struct {
	Apps        int     // registered, and removed ones whose checkpoints are kept
	Checkpoints int     // of all its apps
	Bytes       int64   // that they occupy
	Rate        float64 // requests a second; ten times as many at once
	Concurrent  int     // requests under way, event streams among them
}

// limitsOf are a caller's. Who administers the daemon has none.
func (d *Daemon) limitsOf(who ipc.Caller) Limits {
	switch {
	case d.administers(who):
		return Limits{}
	case who.Guest != "":
		return d.opt.GuestLimits
	}
	return d.opt.UserLimits
}

// callers counts what each owner asks for.
type callers struct {
	mu  sync.Mutex
	all map[string]*usage
}

type usage struct {
	rate *rate.Limiter
	now  int // requests under way
}

// maxCallers is how many callers are remembered before those of whom nothing is
// under way are forgotten: a guest can make up ids without end.
const maxCallers = 4096

// admit counts a request in, or refuses it. Done, it is counted out.
func (c *callers) admit(who ipc.Caller, l Limits, now time.Time) (done func(), err error) {
	if l.Rate == 0 && l.Concurrent == 0 {
		return func() {}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strconv.Itoa(who.UID) // not by token: an owner makes those at will
	if who.Guest != "" {
		key = guestPrefix + who.Guest
	}
	u := c.of(key, l)
	if l.Rate > 0 && !u.rate.AllowN(now, 1) {
		return nil, errs.New(errs.Busy, "serve", "more than %g requests a second", l.Rate).WithHint("wait a second and try again")
	}
	if l.Concurrent > 0 && u.now >= l.Concurrent {
		return nil, errs.New(errs.Busy, "serve", "%d requests are under way already", u.now).WithHint("wait for one to end and try again")
	}
	u.now++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		u.now--
	}, nil
}

func (c *callers) of(key string, l Limits) *usage {
	if u := c.all[key]; u != nil {
		return u
	}
	if c.all == nil || len(c.all) >= maxCallers {
		kept := map[string]*usage{}
		for k, u := range c.all {
			if u.now > 0 {
				kept[k] = u
			}
		}
		c.all = kept
	}
	u := &usage{rate: rate.NewLimiter(rate.Limit(l.Rate), int(10*l.Rate)+1)}
	c.all[key] = u
	return u
}

// checkQuota refuses a new app, or a new checkpoint, of an owner who has as much
// as it may. Safety checkpoints and those of turns are not refused for it: the
// retention of an app bounds them.
func (d *Daemon) checkAppQuota(ctx context.Context, who ipc.Caller) error {
	l := d.limitsOf(who)
	if l.Apps == 0 {
		return nil
	}
	owner, err := d.callerName(who)
	if err != nil {
		return err
	}
	n, err := d.store.CountApps(ctx, owner, who.UID)
	if err != nil || n < l.Apps {
		return err
	}
	return errs.New(errs.Denied, "", "you have %d apps, counting removed ones whose checkpoints are kept, and may have no more", n).
		WithHint("remove one for good (mulligan app remove SLUG --purge), or ask an administrator to raise [quota] apps in mulligand.toml")
}

func (d *Daemon) checkQuota(ctx context.Context, who ipc.Caller) error {
	l := d.limitsOf(who)
	owner, err := d.callerName(who)
	if err != nil {
		return err
	}
	if l.Checkpoints > 0 {
		n, err := d.store.CountCheckpoints(ctx, owner, who.UID)
		if err != nil {
			return err
		}
		if n >= l.Checkpoints {
			return errs.New(errs.Denied, "", "you have %d checkpoints and may have no more", n).
				WithHint("delete some, or ask an administrator to raise [quota] checkpoints in mulligand.toml")
		}
	}
	if l.Bytes == 0 {
		return nil
	}
	n, err := d.occupied(ctx, owner, who.UID)
	if err != nil || n < l.Bytes {
		return err
	}
	return errs.New(errs.Denied, "", "your checkpoints occupy %d bytes, and may occupy %d", n, l.Bytes).
		WithHint("delete some, or ask an administrator to raise [quota] bytes in mulligand.toml")
}

// occupied is what the checkpoints of all of an owner's apps occupy, in bytes.
func (d *Daemon) occupied(ctx context.Context, owner string, uid int) (total int64, err error) {
	for _, a := range d.all() {
		if a.rec().Owner != owner || a.rec().OwnerUID != uid {
			continue
		}
		cps, err := d.store.Checkpoints(ctx, a.rec().ID)
		if err != nil {
			return 0, err
		}
		s, err := d.sized(ctx, a, cps)
		if err != nil {
			return 0, err
		}
		total += s.total
	}
	return total, nil
}

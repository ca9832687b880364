package accounts

import (
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"mulligan/daemon/settings"
	"mulligan/errs"
	"mulligan/ipc"
)

// LimitsOf returns the limits of a caller. An administrator of the daemon has none.
func (o *Owners) LimitsOf(who ipc.Caller) settings.Limits {
	switch {
	case o.Administers(who):
		return settings.Limits{}
	case who.Guest != "":
		return o.opt.GuestLimits
	}
	return o.opt.UserLimits
}

// Callers counts the requests of each caller.
type Callers struct {
	mu  sync.Mutex
	all map[string]*usage
}

type usage struct {
	rate *rate.Limiter
	now  int // number of requests under way
}

// maxCallers is how many callers are remembered. Beyond it, callers without a request under way
// are forgotten: a guest can invent any number of ids.
const maxCallers = 4096

// Admit counts a request, or refuses it with errs.Busy. The caller must call done when the request
// ends.
func (c *Callers) Admit(who ipc.Caller, l settings.Limits, now time.Time) (done func(), err error) {
	if l.Rate == 0 && l.Concurrent == 0 {
		return func() {}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strconv.Itoa(who.UID) // not by token, because an owner can make any number of tokens
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

func (c *Callers) of(key string, l settings.Limits) *usage {
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

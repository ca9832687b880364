package fork

import (
	"context"
	"slices"
	"sync"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/errs"
)

// ExpireForks drops forks that nobody touched for long, again and again until ctx ends.
func (s *Service) ExpireForks(ctx context.Context) {
	tick := time.NewTicker(s.opt.ExpireEvery)
	defer tick.Stop()
	begun := s.opt.Now()
	for {
		s.apps.Background(func() { s.Expire(ctx, begun) }) // the forks of one owner may take longer than the others may wait
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Expire drops the forks that nobody touched for as long as the settings say that each was made with. begun, the daemon's start, counts as a touch
// of all: before, nobody could touch them. Expire also drops the forks, and removes the pinned copies, that could
// not be dropped or removed before. The owners' forks are looked at side by side, and those that an earlier call is not done with are left out.
func (s *Service) Expire(ctx context.Context, begun time.Time) {
	forks := slices.DeleteFunc(s.apps.All(), func(a *app.App) bool { return a.Rec().Fork == nil })
	var all sync.WaitGroup
	for owner, theirs := range app.ByOwner(forks) {
		if _, busy := s.expiring.LoadOrStore(owner, true); busy {
			continue
		}
		all.Go(func() {
			defer s.expiring.Delete(owner)
			for _, a := range theirs {
				if ctx.Err() != nil {
					return
				}
				s.expire(ctx, a, begun)
			}
		})
	}
	all.Wait()
	if ctx.Err() == nil {
		s.registry.SweepPinned(ctx)
	}
}

// expire drops a fork if nobody touched it for long, or if it could not be dropped before.
func (s *Service) expire(ctx context.Context, a *app.App, begun time.Time) {
	rec := a.Rec()
	if rec.Fork.Making {
		if a.Undropped.Load() == nil {
			return
		}
		if err := s.drop(ctx, accounts.Self(), a); err != nil {
			s.opt.Log.Warn("a fork that is not whole could not be dropped", "app", rec.Slug, "err", err)
		}
		return
	}
	idle, err := s.expired(ctx, a, begun)
	if err == nil && idle {
		err = s.drop(ctx, accounts.Self(), a)
	}
	if idle && errs.KindOf(err) != errs.Busy {
		of := rec
		if parent, e := s.apps.Find(accounts.Self(), string(rec.Fork.Parent)); e == nil {
			of = parent.Rec()
		}
		s.events.WriteAudit(ctx, of, accounts.Self(), "drop", rec.Fork.Name, "nobody touched it for "+rec.Forking.ExpireAfter, err, nil)
	}
	if err != nil && errs.KindOf(err) != errs.Busy {
		s.opt.Log.Warn("a fork could not be expired", "app", rec.Slug, "err", err)
	}
}

// expired reports whether a fork's time is over.
func (s *Service) expired(ctx context.Context, a *app.App, begun time.Time) (bool, error) {
	rec := a.Rec()
	after, err := time.ParseDuration(rec.Forking.ExpireAfter)
	if err != nil || after <= 0 {
		return false, nil
	}
	if app.Occupied(a) { // when they leave, they touch it
		return false, nil
	}
	limit := s.opt.Now().Add(-after)
	for _, at := range []time.Time{begun, rec.CreatedAt, time.Unix(0, a.LastAsked.Load()), time.Unix(0, a.LastChanged.Load())} {
		if at.After(limit) {
			return false, nil
		}
	}
	list, err := s.store.Checkpoints(ctx, rec.ID)
	if err != nil {
		return false, err
	}
	for _, cp := range list {
		if cp.CreatedAt.After(limit) {
			return false, nil
		}
	}
	if s.registry.CheckDrop(ctx, a) != nil { // others are based on it, something is mounted in it, or it is not there
		return false, nil
	}
	changed, err := s.apps.ForkChangedSince(ctx, a, limit) // takes its time
	return err == nil && !changed && !time.Unix(0, a.LastAsked.Load()).After(limit), err
}

package registry

import (
	"context"

	"mulligan/errs"
	"mulligan/ipc"
)

// checkQuota refuses a new app, or a new checkpoint, of an owner who has as much
// as it may. Safety checkpoints and those of turns are not refused for it: the
// retention of an app bounds them.
func (svc *Service) checkAppQuota(ctx context.Context, who ipc.Caller) error {
	l := svc.owners.LimitsOf(who)
	if l.Apps == 0 {
		return nil
	}
	owner, err := svc.owners.CallerName(who)
	if err != nil {
		return err
	}
	n, err := svc.store.CountApps(ctx, owner, who.UID)
	if err != nil || n < l.Apps {
		return err
	}
	return errs.New(errs.Denied, "", "you have %d apps, counting removed ones whose checkpoints are kept, and may have no more", n).
		WithHint("remove one for good (mulligan app remove SLUG --purge), or ask an administrator to raise [quota] apps in mulligand.toml")
}

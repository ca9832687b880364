package registry

import (
	"context"

	"mulligan/errs"
	"mulligan/ipc"
)

// checkAppQuota refuses a new app, or a fork, if its owner has as many as the owner may have.
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
	return errs.New(errs.Denied, "", "you have %d apps, including removed ones whose checkpoints are kept, and that is your limit", n).
		WithHint("remove one for good (`mulligan app remove SLUG --purge`), or ask an administrator to raise [quota] apps in mulligand.toml")
}

package daemon

import (
	"context"

	"mulligan/errs"
	"mulligan/ipc"
)

// checkQuota refuses a new app, or a new checkpoint, of an owner who has as much
// as it may. Safety checkpoints and those of turns are not refused for it: the
// retention of an app bounds them.
func (d *Daemon) checkAppQuota(ctx context.Context, who ipc.Caller) error {
	l := d.LimitsOf(who)
	if l.Apps == 0 {
		return nil
	}
	owner, err := d.CallerName(who)
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
	l := d.LimitsOf(who)
	owner, err := d.CallerName(who)
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
	for _, a := range d.All() {
		if a.Rec().Owner != owner || a.Rec().OwnerUID != uid {
			continue
		}
		cps, err := d.store.Checkpoints(ctx, a.Rec().ID)
		if err != nil {
			return 0, err
		}
		s, err := d.sized(ctx, a, cps)
		if err != nil {
			return 0, err
		}
		total += s.Total
	}
	return total, nil
}

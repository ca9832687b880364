package daemon

import (
	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// cpService makes, lists, checks and drops the checkpoints of apps. Safe for concurrent use.
type cpService struct {
	owners *accounts.Owners
	events *events.Events
	apps   *app.Set
	opt    *settings.Options
	store  *records.Records
}

// newCheckpoints returns the service of a daemon's checkpoints.
func newCheckpoints(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set) *cpService {
	return &cpService{owners: apps.Owners, events: ev, apps: apps, opt: opt, store: store}
}

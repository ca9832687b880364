package daemon

import (
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// backService takes apps back: to a checkpoint, or to where some writes were not made. Safe for
// concurrent use.
type backService struct {
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turnService
	opt         *settings.Options
	store       *records.Records
}

// newBack returns the service of a daemon's rollbacks and reverts.
func newBack(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turnService) *backService {
	return &backService{events: ev, apps: apps, checkpoints: cps, turns: turns, opt: opt, store: store}
}

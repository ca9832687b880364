package daemon

import (
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// turnService knows the turns of agents and their calls, and makes the automatic checkpoints
// of apps that ask for them. Safe for concurrent use.
type turnService struct {
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	opt         *settings.Options
	store       *records.Records
}

// newTurns returns the service of a daemon's turns.
func newTurns(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service) *turnService {
	return &turnService{events: ev, apps: apps, checkpoints: cps, opt: opt, store: store}
}

// Package turns follows what agents do: their turns, the calls in them and their conversations. It makes
// the automatic checkpoint of a turn when the turn first writes, and can tell afterwards who wrote what.
package turns

import (
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// Service knows the turns of agents and their calls, and makes the automatic checkpoints
// of apps that ask for them. Safe for concurrent use.
type Service struct {
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	opt         *settings.Options
	store       *records.Records
}

// New returns the service of a daemon's turns.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service) *Service {
	return &Service{events: ev, apps: apps, checkpoints: cps, opt: opt, store: store}
}

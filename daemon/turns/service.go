// Package turns records what agents do: turns, their calls, conversations. It makes the automatic
// checkpoint of a turn at the turn's first write, and attributes writes to calls afterwards.
package turns

import (
	"sync"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// Service records the turns and calls of agents, and makes the automatic checkpoints of apps that
// ask for them. Safe for concurrent use.
type Service struct {
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	opt         *settings.Options
	store       *records.Records
	unnoted     sync.Map // the apps that gave their watches to others: unnoted, by their ids
	left        sync.Map // the open turns of apps whose trackers were stopped: map[ipc.TurnID]*openTurn, by the apps' ids
}

// New returns the service of a daemon's turns.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service) *Service {
	return &Service{events: ev, apps: apps, checkpoints: cps, opt: opt, store: store}
}

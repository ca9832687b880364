// Package rollback takes apps back: to a checkpoint, or, as a revert, to where some writes were not
// made. Its plan is in the records before anything is changed, so that a rollback that was cut short is
// finished or undone.
package rollback

import (
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/turns"
)

// Service takes apps back: to a checkpoint, or to where some writes were not made. Safe for
// concurrent use.
type Service struct {
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	opt         *settings.Options
	store       *records.Records
}

// New returns the service of a daemon's rollbacks and reverts.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turns.Service) *Service {
	return &Service{events: ev, apps: apps, checkpoints: cps, turns: turns, opt: opt, store: store}
}

// Package registry registers, changes and removes apps, on request and as app files describe them.
// It decides what a caller may name.
package registry

import (
	"context"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/turns"
	"mulligan/daemon/upkeep"
	"mulligan/ipc"
)

// Service registers, changes and removes apps. Safe for concurrent use.
type Service struct {
	owners      *accounts.Owners
	binder      *layer.Binder
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	upkeep      *upkeep.Service
	opt         *settings.Options
	store       *records.Records
	run         context.Context // ends when the daemon is closed
	files       appFiles
	pinned      pinned

	// Purged, if set, is called after the records of an app were deleted for good. It is set before the first app is registered.
	Purged func(ipc.AppID)
}

// New returns the registry of a daemon's apps. App files are watched until run ends.
func New(run context.Context, opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turns.Service, upkeep *upkeep.Service) *Service {
	return &Service{owners: apps.Owners, binder: apps.Binder, events: ev, apps: apps, checkpoints: cps, turns: turns, upkeep: upkeep,
		opt: opt, store: store, run: run}
}

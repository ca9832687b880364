package daemon

import (
	"context"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
)

// A recoverer finishes or undoes an operation that a crash cut short, and says which. The caller
// holds the app.
type recoverer func(ctx context.Context, a *app.App, op store.Operation) (words string, err error)

// upkeepService makes apps fit to be worked on, finishes what is unfinished, and does what is due in
// the background. Safe for concurrent use.
type upkeepService struct {
	owners      *accounts.Owners
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	opt         *settings.Options
	store       *records.Records
	run         context.Context      // ends when the daemon is closed
	recoverers  map[string]recoverer // by kind of operation
}

// newUpkeep returns the upkeep of a daemon's apps, until run ends. recoverers has one for each kind of
// operation.
func newUpkeep(run context.Context, opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turns.Service, recoverers map[string]recoverer) *upkeepService {
	d := &upkeepService{owners: apps.Owners, events: ev, apps: apps, checkpoints: cps, turns: turns, opt: opt, store: store, run: run, recoverers: recoverers}
	apps.Settle, apps.Pursue = d.makeReady, d.pursue
	return d
}

// Package upkeep makes apps fit to be worked on: it sweeps what dead processes left, has operations that
// were cut short finished or undone, and tries again until nothing is unfinished. It also does what is due in
// the background: rehearsals, what drivers do between operations, looking whether owners are who they were.
package upkeep

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
type Recoverer func(ctx context.Context, a *app.App, op store.Operation) (words string, err error)

// Service makes apps fit to be worked on, finishes what is unfinished, and does what is due in
// the background. Safe for concurrent use.
type Service struct {
	owners      *accounts.Owners
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	opt         *settings.Options
	store       *records.Records
	run         context.Context      // ends when the daemon is closed
	recoverers  map[string]Recoverer // by kind of operation
}

// New returns the upkeep of a daemon's apps, until run ends. recoverers has one for each kind of
// operation.
func New(run context.Context, opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turns.Service, recoverers map[string]Recoverer) *Service {
	d := &Service{owners: apps.Owners, events: ev, apps: apps, checkpoints: cps, turns: turns, opt: opt, store: store, run: run, recoverers: recoverers}
	apps.Recover, apps.RetryUnfinished = d.makeReady, d.retryUnfinished
	return d
}

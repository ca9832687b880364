// Package upkeep makes apps ready for operations: it sweeps what dead processes left, finishes or
// undoes interrupted operations, and retries until nothing is unfinished. In the background it
// also runs rehearsals and the drivers' Maintain, and checks that the accounts of the apps' owners
// have not changed.
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

// Recoverer finishes or undoes an interrupted operation, and returns in words which of the two.
// The caller must have acquired the app.
type Recoverer func(ctx context.Context, a *app.App, op store.Operation) (words string, err error)

// Service recovers apps, retries unfinished operations, and does background work. Safe for
// concurrent use.
type Service struct {
	owners      *accounts.Owners
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	opt         *settings.Options
	store       *records.Records
	run         context.Context      // cancelled when the daemon closes
	recoverers  map[string]Recoverer // by kind of operation
}

// New returns the upkeep of a daemon's apps. Background work ends with run. recoverers must have
// an entry for each kind of operation.
func New(run context.Context, opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set, cps *checkpoint.Service, turns *turns.Service, recoverers map[string]Recoverer) *Service {
	d := &Service{owners: apps.Owners, events: ev, apps: apps, checkpoints: cps, turns: turns, opt: opt, store: store, run: run, recoverers: recoverers}
	apps.Recover, apps.RetryUnfinished = d.makeReady, d.retryUnfinished
	return d
}

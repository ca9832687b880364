// Package checkpoint makes, lists, compares, verifies, prunes and deletes the checkpoints of apps,
// and computes where undo and redo lead.
package checkpoint

import (
	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
)

// Service makes, lists, verifies and deletes the checkpoints of apps. Safe for concurrent use.
type Service struct {
	owners *accounts.Owners
	events *events.Events
	apps   *app.Set
	opt    *settings.Options
	store  *records.Records

	// Recorded, if set, is called after a checkpoint was recorded. It is set before the first app is registered.
	Recorded func()
}

// New returns the service of a daemon's checkpoints.
func New(opt *settings.Options, store *records.Records, ev *events.Events, apps *app.Set) *Service {
	return &Service{owners: apps.Owners, events: ev, apps: apps, opt: opt, store: store}
}

// Package api serves the daemon's API: its routes, the OpenAPI document that is generated from them, tokens, event streams, and
// the metrics for Prometheus.
package api

import (
	"path/filepath"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/fork"
	"mulligan/daemon/gate"
	"mulligan/daemon/offsite"
	"mulligan/daemon/records"
	"mulligan/daemon/registry"
	"mulligan/daemon/rollback"
	"mulligan/daemon/settings"
	"mulligan/daemon/turns"
)

// Parts are the services that the API calls.
type Parts struct {
	Options     *settings.Options
	Store       *records.Records
	Events      *events.Events
	Apps        *app.Set
	Checkpoints *checkpoint.Service
	Turns       *turns.Service
	Rollbacks   *rollback.Service
	Registry    *registry.Service
	Forks       *fork.Service
	Remotes     *offsite.Service
}

// Service answers HTTP requests: on the socket, and behind its gate on TCP. Safe for concurrent use.
type Service struct {
	owners      *accounts.Owners
	events      *events.Events
	apps        *app.Set
	checkpoints *checkpoint.Service
	turns       *turns.Service
	rollbacks   *rollback.Service
	registry    *registry.Service
	forks       forkHandlers
	remotes     remoteHandlers
	opt         *settings.Options
	store       *records.Records
	started     time.Time
	gate        *gate.Gate
	callers     accounts.Callers
	apiText     apiText
}

// New returns the API of a daemon that has these parts.
func New(p Parts) *Service {
	d := &Service{owners: p.Apps.Owners, events: p.Events, apps: p.Apps, checkpoints: p.Checkpoints, turns: p.Turns,
		rollbacks: p.Rollbacks, registry: p.Registry, forks: forkHandlers{p.Forks}, remotes: remoteHandlers{p.Remotes}, opt: p.Options, store: p.Store, started: p.Options.Now()}
	d.events.Registry.MustRegister(present{d})
	d.gate = d.newGate()
	return d
}

func (svc *Service) newGate() *gate.Gate {
	cfg := gate.Config{Tokens: svc.bearer, Hosts: svc.opt.Hosts, File: filepath.Join(svc.opt.StateDir, "page.json"), Log: svc.opt.Log, Now: svc.opt.Now}
	if svc.opt.Guests != nil {
		cfg.Guests = svc.owners.Guest
	}
	return gate.New(cfg, svc.Handler())
}

// Gate returns the listener on TCP, which is closed until it is told to listen. The code that closes the daemon must close it.
func (svc *Service) Gate() *gate.Gate { return svc.gate }

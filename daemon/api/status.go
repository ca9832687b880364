package api

import (
	"context"
	"os"

	"mulligan/errs"
	"mulligan/ipc"
)

// Alive fails when the daemon cannot do its work: its records don't answer.
func (d *Service) Alive(ctx context.Context) error {
	if _, err := d.store.Operations(ctx); err != nil {
		return errs.Wrap(errs.Unavailable, "check health", err)
	}
	return nil
}

// Status tells how the daemon is: of apps, only what the caller may see.
func (d *Service) Status(who ipc.Caller) ipc.Status {
	mode := "host"
	if d.opt.User {
		mode = "user"
	}
	sees := d.apps.Sight(who)
	s := ipc.Status{
		Version: d.opt.Version, PID: os.Getpid(), Mode: mode, Socket: d.opt.Socket, StateDir: d.opt.StateDir,
		StartedAt: d.started.UTC(), StoreBytes: d.store.Contents.Visible(who), Recovered: []string{}, Problems: []string{},
	}
	if addr := d.gate.Addr(); addr != nil {
		s.HTTP = addr.String()
	}
	if d.owners.Administers(who) {
		s.Problems = append(s.Problems, d.registry.FileProblems()...)
		s.Problems = append(s.Problems, d.store.Problems()...)
		s.Recovered = append(s.Recovered, d.store.Repaired...)
	}
	for _, a := range d.apps.All() {
		if !sees(a) {
			continue
		}
		s.Apps++
		for _, p := range a.Problems() {
			s.Problems = append(s.Problems, a.Rec().Slug+": "+p)
		}
		for _, word := range a.Recoveries() {
			s.Recovered = append(s.Recovered, a.Rec().Slug+": "+word)
		}
	}
	return s
}

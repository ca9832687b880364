package api

import (
	"context"
	"os"

	"mulligan/errs"
	"mulligan/ipc"
)

// Alive returns an error if the daemon cannot work because its records do not answer.
func (svc *Service) Alive(ctx context.Context) error {
	if _, err := svc.store.Operations(ctx); err != nil {
		return errs.Wrap(errs.Unavailable, "check health", err)
	}
	return nil
}

// Status returns the state of the daemon. It includes only apps that the caller may see.
func (svc *Service) Status(who ipc.Caller) ipc.Status {
	mode := "host"
	if svc.opt.User {
		mode = "user"
	}
	sees := svc.apps.VisibleTo(who)
	s := ipc.Status{
		Version: svc.opt.Version, PID: os.Getpid(), Mode: mode, Socket: svc.opt.Socket, StateDir: svc.opt.StateDir,
		StartedAt: svc.started.UTC(), StoreBytes: svc.store.Contents.Visible(who), Recovered: []string{}, Problems: []string{},
	}
	if addr := svc.gate.Addr(); addr != nil {
		s.HTTP = addr.String()
	}
	if svc.owners.Administers(who) {
		s.Problems = append(s.Problems, svc.registry.FileProblems()...)
		s.Problems = append(s.Problems, svc.store.Problems()...)
		if p := svc.gate.Problem(); p != "" {
			s.Problems = append(s.Problems, p)
		}
		s.Recovered = append(s.Recovered, svc.store.Repaired...)
	}
	for _, a := range svc.apps.All() {
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

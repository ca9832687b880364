package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mulligan/durable"
	"mulligan/errs"
)

// note is what a stop found, by the names of containers. It is stored in a file for the next process.
type note struct {
	Ran      []string                           `json:"ran"`      // those to be started again
	Healthy  []string                           `json:"healthy"`  // those of them whose health check passed
	Policies map[string]container.RestartPolicy `json:"policies"` // the restart policies that a stop took away
	Down     bool                               `json:"down"`     // nothing was to be started after that stop

	damaged bool // the file is there and cannot be read: there was a stop
}

func (p *Project) noteFile() string { return filepath.Join(p.cfg.StateDir, "containers.json") }

// readNote returns what the last stop found. A damaged note does not keep the app from being stopped and started: its containers' restart
// policies of before the stop are lost with it.
func (p *Project) readNote() (n note, err error) {
	switch err := durable.ReadJSON(p.noteFile(), &n); {
	case errors.Is(err, os.ErrNotExist):
		return note{}, nil
	case durable.Damaged(err):
		return note{damaged: true}, nil
	default:
		return n, errs.Wrap(errs.Failed, "read which containers ran", err)
	}
}

func (p *Project) writeNote(n note) error {
	err := os.MkdirAll(p.cfg.StateDir, 0o700)
	if err == nil {
		err = p.cfg.Failpoint.At("note containers")
	}
	if err == nil {
		err = durable.WriteJSON(p.noteFile(), n)
	}
	return errs.Wrap(errs.Failed, "note which containers ran", err)
}

// grace is how long a container may take to stop, where it says nothing: as long as Docker gives it.
const grace = 10 * time.Second

// Stop stops the containers, those that depend on others first, and keeps the engine from starting them by their restart policy.
// A container that does not stop in its time is killed. If one is gone, Stop stops nothing, unless Expect said so.
func (p *Project) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := p.lost
	defer func() { p.ran, p.lost = nil, false }()
	list, err := p.look(ctx)
	if err == nil && lost {
		list = slices.DeleteFunc(list, func(f found) bool { return f.gone && f.called == "" })
	}
	if err == nil {
		err = p.whole(list)
	}
	if err == nil {
		err = p.thaw(ctx) // what a process left paused would not stop
	}
	if err != nil {
		return err
	}
	n, err := p.readNote()
	if err != nil {
		return err
	}
	stays := func(f found) bool { return f.Stays }
	list = slices.DeleteFunc(list, stays)
	if n.Down && slices.ContainsFunc(list, func(f found) bool { return f.condition() == running }) {
		n = note{} // somebody has started since what was to run
	}
	n.Down = false
	for i := range list {
		f := &list[i]
		if f.condition() != off || n.damaged || slices.Contains(p.ran, f.Name) {
			if !slices.Contains(n.Ran, f.Name) {
				n.Ran = append(n.Ran, f.Name)
				if h := f.now.State.Health; h != nil && h.Status == container.Healthy {
					n.Healthy = append(n.Healthy, f.Name)
				}
			}
		}
		if policy := f.now.HostConfig.RestartPolicy; policy.Name != "" && policy.Name != container.RestartPolicyDisabled {
			if n.Policies == nil {
				n.Policies = map[string]container.RestartPolicy{}
			}
			n.Policies[f.Name] = policy
		}
	}
	if err := p.writeNote(n); err != nil {
		return err
	}
	slices.Reverse(list)
	return byDepth(list, func(f *found) error {
		err := p.stopOne(ctx, f)
		if lost && errs.KindOf(err) == errs.NotFound { // it went meanwhile
			return nil
		}
		return err
	})
}

// byDepth calls do for all containers of one depth at once, and for one depth after the other.
func byDepth(list []found, do func(*found) error) error {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].depth == list[0].depth {
			n++
		}
		all := make([]error, n)
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() { all[i] = do(&list[i]) })
		}
		wait.Wait()
		if err := errors.Join(all...); err != nil {
			for _, err := range all { // one error is enough for the reader
				if err != nil {
					return err
				}
			}
		}
		list = list[n:]
	}
	return nil
}

func (p *Project) stopOne(ctx context.Context, f *found) error {
	if err := p.cfg.Failpoint.At("stop container"); err != nil {
		return err
	}
	if policy := f.now.HostConfig.RestartPolicy.Name; policy != "" && policy != container.RestartPolicyDisabled {
		if err := p.setPolicy(ctx, f.Name, container.RestartPolicy{Name: container.RestartPolicyDisabled}); err != nil {
			return err
		}
	}
	in, err := p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{})
	if err != nil {
		return p.e.failure("stop container "+f.Name, err)
	}
	if s := in.Container.State; s != nil && !s.Running && !s.Restarting && !s.Paused {
		return nil // Podman may wait long for one that has ended by itself
	}
	paused, err := p.pausedByOthers(ctx, f.Name, in.Container.State)
	if err == nil && paused { // it would not hear the signal
		err = p.resume(ctx, f.Name)
	}
	if err != nil {
		return err
	}
	seconds := int(grace / time.Second)
	if t := f.now.Config.StopTimeout; t != nil && *t > 0 { // Podman says 0 where nobody said anything, and would kill at once
		seconds = *t
	}
	if until, ok := ctx.Deadline(); ok { // the engine kills it while there is time to hear of it
		seconds = max(1, min(seconds, int(time.Until(until)*3/4/time.Second)))
	}
	if _, err := p.e.api.ContainerStop(ctx, f.Name, client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		return p.e.failure("stop container "+f.Name, err)
	}
	if in, err = p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{}); err != nil {
		return p.e.failure("stop container "+f.Name, err)
	}
	if s := in.Container.State; s != nil && (s.Running || s.Restarting) {
		return errs.New(errs.Failed, "stop container "+f.Name, "it is %s after its stop", s.Status).
			WithHint("somebody, or its restart policy, starts it again; see docker events")
	}
	return nil
}

// setPolicy sets a container's restart policy. Podman's engine of older versions cannot change it: there it stays, and the engine
// does not act on it either as long as it runs.
func (p *Project) setPolicy(ctx context.Context, name string, policy container.RestartPolicy) error {
	_, err := p.e.api.ContainerUpdate(ctx, name, client.ContainerUpdateOptions{RestartPolicy: &policy})
	if err == nil || errdefs.IsNotFound(err) || errdefs.IsNotImplemented(err) {
		return nil
	}
	return p.e.failure("change the restart policy of container "+name, err)
}

// Start starts what Stop found running. If it found nothing running, or there was no Stop, Start starts what has failed beside
// containers that run, and all of them if none runs.
func (p *Project) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.readNote()
	if err != nil {
		return err
	}
	list, err := p.look(ctx)
	if err != nil {
		return err
	}
	if err := p.whole(list); err != nil {
		return errs.Also(err, p.stayDown(ctx, n))
	}
	if len(n.Ran) == 0 {
		n.Ran = p.wanted(list)
	}
	for _, f := range list { // what stays up is needed, and may have failed by itself
		if f.Stays && f.condition() == failed {
			n.Ran = append(n.Ran, f.Name)
		}
	}
	return p.start(ctx, list, n)
}

// wanted returns which containers a start without a stop starts. A database's that stays up says nothing of the rest.
func (p *Project) wanted(list []found) (names []string) {
	up := slices.ContainsFunc(list, func(f found) bool { return !f.Stays && (f.condition() == running || f.condition() == again) })
	for _, f := range list {
		if !up || f.condition() != off {
			names = append(names, f.Name)
		}
	}
	return names
}

// StartAgain starts what Stop found running, and nothing if there was no Stop or what it stopped was started since. One that is gone
// and did not run then is not missed.
func (p *Project) StartAgain(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.readNote()
	if err != nil || len(n.Ran)+len(n.Policies) == 0 && !n.damaged {
		return err
	}
	list, err := p.look(ctx)
	if err != nil {
		return err
	}
	if n.damaged {
		n.Ran = p.wanted(list)
	}
	ran := slices.DeleteFunc(slices.Clone(list), func(f found) bool { return !slices.Contains(n.Ran, f.Name) })
	if err := p.whole(ran); err != nil {
		return errs.Also(err, p.stayDown(ctx, n))
	}
	return p.start(ctx, list, n)
}

// StayDown ends a Stop after which nothing is started: it gives the containers their restart policies back. What ran is remembered for Start.
func (p *Project) StayDown(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.readNote()
	if err != nil {
		return err
	}
	return p.stayDown(ctx, n)
}

func (p *Project) stayDown(ctx context.Context, n note) error {
	if len(n.Ran)+len(n.Policies) == 0 {
		return nil
	}
	for name, policy := range n.Policies {
		if err := p.cfg.Failpoint.At("give policy back"); err != nil {
			return err
		}
		if err := p.setPolicy(ctx, name, policy); err != nil {
			return err
		}
	}
	n.Policies, n.Down = nil, true
	return p.writeNote(n)
}

// start starts the containers in n in order, waits until they are up and healthy, and gives all of them their restart policies
// back.
func (p *Project) start(ctx context.Context, list []found, n note) error {
	ran := func(f found) bool { return slices.Contains(n.Ran, f.Name) }
	wanted := slices.DeleteFunc(slices.Clone(list), func(f found) bool { return !ran(f) })
	err := byDepth(wanted, func(f *found) error {
		if err := p.awaitNeeds(ctx, f, wanted, n); err != nil {
			return err
		}
		if f.condition() == running {
			return nil
		}
		if err := p.cfg.Failpoint.At("start container"); err != nil {
			return err
		}
		_, err := p.e.api.ContainerStart(ctx, f.Name, client.ContainerStartOptions{})
		return p.e.failure("start container "+f.Name, err)
	})
	if err == nil {
		err = byDepth(wanted, func(f *found) error { return p.awaitHealthy(ctx, f, n) })
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, f := range list {
		if err := p.cfg.Failpoint.At("give policy back"); err != nil {
			return err
		}
		if policy, ok := n.Policies[f.Name]; ok { // also after a failure, or when the time is up: then the engine may try on
			err = errs.Also(err, p.setPolicy(back, f.Name, policy))
		}
	}
	if err == nil {
		err = p.revive(ctx, wanted, n)
	}
	if err != nil {
		return err
	}
	if err := p.cfg.Failpoint.At("forget containers"); err != nil {
		return err
	}
	if err := os.Remove(p.noteFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.Wrap(errs.Failed, "forget which containers ran", err)
	}
	return nil
}

// revive starts the containers that ended after their start and before they had their restart policies back: the engine would have done so.
func (p *Project) revive(ctx context.Context, wanted []found, n note) error {
	for _, f := range wanted {
		if _, ok := n.Policies[f.Name]; !ok {
			continue
		}
		in, err := p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{})
		if err == nil && in.Container.State != nil && !in.Container.State.Running && !in.Container.State.Restarting && in.Container.State.ExitCode != 0 {
			_, err = p.e.api.ContainerStart(ctx, f.Name, client.ContainerStartOptions{})
		}
		if err != nil {
			return p.e.failure("start container "+f.Name, err)
		}
	}
	return nil
}

// awaitNeeds waits for the services that a container depends on, as far as they are started too.
func (p *Project) awaitNeeds(ctx context.Context, f *found, started []found, before note) error {
	for _, n := range needs(f) {
		for i := range started {
			if started[i].service() != n.service {
				continue
			}
			var err error
			switch {
			case n.done:
				err = p.awaitEnd(ctx, &started[i])
			case n.healthy:
				err = p.awaitHealthy(ctx, &started[i], before)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitEnd waits until a container has ended well.
func (p *Project) awaitEnd(ctx context.Context, f *found) error {
	return p.poll(ctx, f, time.Hour, func(s *container.State) (bool, error) {
		if s.Running || s.Restarting {
			return false, nil
		}
		if s.ExitCode != 0 {
			return false, p.ended(f, s)
		}
		return true, nil
	})
}

// awaitHealthy waits until a container runs, or has ended well, and its health check passes if it has one. The command of the
// check is run here: the engine would wait for its interval, and Podman runs no checks where there is no systemd. One that was not
// known to be healthy before is waited for only a little: its check may be wrong. The wait ends before ctx does: that the container
// takes too long does not mean that the engine is unavailable.
func (p *Project) awaitHealthy(ctx context.Context, f *found, before note) error {
	test, patience := healthCheck(f.now.Config)
	known := slices.Contains(before.Healthy, f.Name)
	if !known {
		patience = min(patience, little)
	}
	if until, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(until)*9/10)
	}
	short, cancel := context.WithTimeout(ctx, patience) // the command may hang
	defer cancel()
	err := p.poll(ctx, f, patience, func(s *container.State) (bool, error) {
		switch {
		case s.Restarting:
			return false, nil
		case !s.Running && s.ExitCode != 0:
			return false, p.ended(f, s)
		case !s.Running, len(test) == 0, s.Health != nil && s.Health.Status == container.Healthy:
			return true, nil
		}
		_, code, err := p.exec(short, f.Name, test)
		return err == nil && code == 0, nil
	})
	if errors.Is(err, errUnhealthy) && !known {
		return nil
	}
	return err
}

// little is how long a container is waited for that was not known to be healthy before.
const little = 10 * time.Second

// errUnhealthy is the cause of the error for a container that runs and does not become healthy.
var errUnhealthy = errors.New("its health check does not pass")

func (p *Project) ended(f *found, s *container.State) error {
	why := s.Error
	if why == "" {
		why = fmt.Sprintf("it ended with %d soon after its start", s.ExitCode)
	}
	return errs.New(errs.Failed, "start container "+f.Name, "%s", why).WithHint("docker logs %s shows what it said", f.Name)
}

// poll asks for a container's state until done says so. It gives up after the patience, or when ctx ends.
func (p *Project) poll(ctx context.Context, f *found, patience time.Duration, done func(*container.State) (bool, error)) error {
	over := time.NewTimer(patience)
	defer over.Stop()
	for wait := 20 * time.Millisecond; ; wait = min(wait*3/2, time.Second) {
		in, err := p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{})
		if err != nil {
			return p.e.failure("start container "+f.Name, err)
		}
		if in.Container.State == nil {
			return errs.New(errs.Failed, "start container "+f.Name, "the engine does not say how it is")
		}
		if ok, err := done(in.Container.State); ok || err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-over.C:
			return &errs.Error{Kind: errs.Failed, Op: "start container " + f.Name, Message: fmt.Sprintf("it is not healthy after %s", patience.Round(time.Second)), Err: errUnhealthy,
				Hint: fmt.Sprintf("docker logs %s and docker inspect %[1]s show why", f.Name)}
		case <-ctx.Done():
			return p.e.failure("start container "+f.Name, ctx.Err())
		}
	}
}

// healthCheck returns the command of a container's health check, and how long the engine would wait until it calls the container
// unhealthy.
func healthCheck(c *container.Config) (test []string, patience time.Duration) {
	const usual = 30 * time.Second
	h := c.Healthcheck
	if h == nil || len(h.Test) == 0 {
		return nil, usual
	}
	switch h.Test[0] {
	case "CMD":
		test = h.Test[1:]
	case "CMD-SHELL":
		test = []string{"/bin/sh", "-c", strings.Join(h.Test[1:], " ")}
	}
	interval, timeout, retries := h.Interval, h.Timeout, h.Retries
	if interval <= 0 {
		interval = usual
	}
	if timeout <= 0 {
		timeout = usual
	}
	if retries <= 0 {
		retries = 3
	}
	return test, max(usual, h.StartPeriod+time.Duration(retries)*(interval+timeout))
}

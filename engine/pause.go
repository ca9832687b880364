package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mulligan/durable"
	"mulligan/errs"
)

func (p *Project) frozenFile() string { return filepath.Join(p.cfg.StateDir, "paused.json") }

// Freeze pauses the project's containers that use a volume, and returns the function that lets them go on. One that does not run is not paused: started names those
// that have, or may have, started since. If a container runs and cannot be paused, the error is of kind errs.Conflict. If the process dies before thaw is called, Thaw
// lets them go on.
func (p *Project) Freeze(ctx context.Context, volume string) (thaw func() (started []string, err error), err error) {
	if err := p.awaitThaw(ctx); err != nil {
		return nil, err
	}
	idle, err := p.freeze(ctx, volume)
	if err != nil {
		<-p.freezing
		return nil, err
	}
	return func() (started []string, err error) {
		defer func() { <-p.freezing }()
		p.mu.Lock()
		defer p.mu.Unlock()
		ctx := context.WithoutCancel(ctx)
		err = p.thaw(ctx)
		return p.started(ctx, idle), err
	}, nil
}

// awaitThaw waits until no Freeze is under way. The caller takes its element out of freezing when it is done.
func (p *Project) awaitThaw(ctx context.Context) error {
	select {
	case p.freezing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return p.e.failure("wait until the containers of "+p.cfg.Unit+" go on", ctx.Err())
	}
}

// freeze returns the containers that it did not pause because they do not run.
func (p *Project) freeze(ctx context.Context, volume string) (idle []*found, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.thaw(ctx); err != nil { // what an earlier capture could not let go on
		return nil, err
	}
	users, err := p.Mounts(ctx, volume)
	if err != nil {
		return nil, err
	}
	list, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	var own []*found
	var names []string
	for i := range list {
		f := &list[i]
		if f.gone || !slices.Contains(users, f.Name) {
			continue
		}
		paused, err := p.pausedByOthers(ctx, f.Name, f.now.State)
		if err != nil {
			return nil, err
		}
		if paused { // and stays paused afterwards
			continue
		}
		own = append(own, f)
		if f.condition() == running {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return own, nil
	}
	err = os.MkdirAll(p.cfg.StateDir, 0o700)
	if err == nil {
		err = durable.WriteJSON(p.frozenFile(), names)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "note which containers are paused", err)
	}
	err = each(own, func(f *found) error { return p.pause(ctx, f) })
	if err != nil {
		return nil, errs.Also(err, p.thaw(context.WithoutCancel(ctx)))
	}
	return slices.DeleteFunc(own, func(f *found) bool { return f.now.State.Paused }), nil
}

// pause pauses a container if it runs. The engine refuses that for one that has ended since f was found; so one that crashes again and again, and is started each
// time, is tried until it is paused or found while it does not run. f says which of the two.
func (p *Project) pause(ctx context.Context, f *found) error {
	what := "pause container " + f.Name
	for until := time.Now().Add(late); f.condition() == running; {
		if err := p.cfg.Failpoint.At("pause container"); err != nil {
			return err
		}
		_, err := p.e.api.ContainerPause(ctx, f.Name, client.ContainerPauseOptions{})
		if err == nil {
			f.now.State.Paused = true
			return nil
		}
		in, cause := p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(cause):
			f.gone = true
			return nil
		case cause != nil:
			return p.e.failure(what, cause)
		case in.Container.State == nil, time.Now().After(until):
			return errs.Wrap(errs.Conflict, what, err)
		}
		f.now = in.Container
		if err := linger(ctx); err != nil {
			return p.e.failure(what, err)
		}
	}
	return nil
}

// started returns the names of those containers that were started since they were found, or of which the engine does not say whether they were. The time of the
// last start tells it also of one that has ended again.
func (p *Project) started(ctx context.Context, idle []*found) (names []string) {
	for _, f := range idle {
		in, err := p.e.api.ContainerInspect(ctx, f.Name, client.ContainerInspectOptions{})
		if s := in.Container.State; !errdefs.IsNotFound(err) && (err != nil || s == nil || s.StartedAt != f.now.State.StartedAt) {
			names = append(names, f.Name)
		}
	}
	return names
}

// late is for how long Docker may be wrong about whether a container is paused. It notes that when it pauses a container or lets it go on, and once more
// when containerd's event of it arrives: the event of a pause may come after the end of the pause, and the event of that after the next pause. On a busy machine
// that was seen to take 16 ms.
const late = 2 * time.Second

// linger waits a little before the engine is asked again.
func linger(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pausedByOthers tells whether a container in this state is paused, and not by mulligan.
func (p *Project) pausedByOthers(ctx context.Context, name string, s *container.State) (bool, error) {
	for until := p.resumed[name].Add(late); s != nil && s.Paused; {
		if time.Now().After(until) {
			return true, nil
		}
		in, err := p.e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err == nil {
			s, err = in.Container.State, linger(ctx)
		}
		if err != nil {
			return false, p.e.failure("look at container "+name, err)
		}
	}
	return false, nil
}

// resume lets a paused container go on. If the engine refuses, resume asks it for so long that its answer is not a late one, see [late]. Then the kernel is
// asked: an engine that ended while it paused a container takes it for running afterwards, and cannot let it go on; and one that ended while it let a container
// go on takes it for paused.
func (p *Project) resume(ctx context.Context, name string) error {
	for until := time.Now().Add(late); ; {
		_, err := p.e.api.ContainerUnpause(ctx, name, client.ContainerUnpauseOptions{})
		if err == nil {
			return nil
		}
		in, cause := p.e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		s := in.Container.State
		switch {
		case errdefs.IsNotFound(cause), cause == nil && (s == nil || !s.Running || s.Restarting):
			return nil // it has ended; Docker calls one that is to be started again running, too
		case cause != nil:
			return p.e.failure("unpause container "+name, cause)
		case !s.Paused:
			groups := p.e.groups(in.Container.ID)
			if len(groups) > 0 && !anyFrozen(groups) {
				return nil // somebody else has let it go on
			}
			if time.Now().After(until) {
				return errs.Wrap(errs.Failed, "let container "+name+" go on", thaw(groups))
			}
		case time.Now().After(until):
			groups := p.e.groups(in.Container.ID)
			if len(groups) == 0 || anyFrozen(groups) {
				return p.e.failure("unpause container "+name, err)
			}
			return p.unpauseThawed(ctx, name, groups)
		}
		if err := linger(ctx); err != nil {
			return p.e.failure("unpause container "+name, err)
		}
	}
}

// unpauseThawed has the engine let a container go on that it takes for paused, and the kernel has not frozen. No engine does that with one that is not frozen, so
// the kernel freezes the container for it.
func (p *Project) unpauseThawed(ctx context.Context, name string, groups []group) error {
	err := errs.Wrap(errs.Failed, "freeze container "+name, freeze(groups))
	if err == nil {
		_, err = p.e.api.ContainerUnpause(ctx, name, client.ContainerUnpauseOptions{})
		err = p.e.failure("unpause container "+name, err)
	}
	// Not every group with the container's id in its name is the engine's to thaw.
	return errs.Also(err, errs.Wrap(errs.Failed, "let container "+name+" go on", thaw(groups)))
}

// each does something for all at once, and returns the errors.
func each[T any](list []T, do func(T) error) (err error) {
	all := make([]error, len(list))
	var wait sync.WaitGroup
	for i, one := range list {
		wait.Go(func() { all[i] = do(one) })
	}
	wait.Wait()
	for _, e := range all {
		err = errs.Also(err, e)
	}
	return err
}

// Thaw lets the containers go on that an earlier Freeze left paused, also one of a process that has died since. It waits for the end of one that is under way.
func (p *Project) Thaw(ctx context.Context) error {
	if err := p.awaitThaw(ctx); err != nil {
		return err
	}
	defer func() { <-p.freezing }()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.thaw(ctx)
}

// paused lists the containers that are paused.
func (p *Project) paused(ctx context.Context) (names []string, err error) {
	list, err := p.look(ctx)
	for _, f := range list {
		if !f.gone && f.now.State.Paused {
			names = append(names, f.Name)
		}
	}
	return names, err
}

func (p *Project) thaw(ctx context.Context) error {
	var names []string
	err := durable.ReadJSON(p.frozenFile(), &names)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if durable.Damaged(err) {
		names, err = p.paused(ctx) // one that somebody else has paused goes on, too: else one that mulligan has paused would not
	}
	if err != nil {
		return errs.Wrap(errs.Failed, "read which containers are paused", err)
	}
	err = each(names, func(name string) error {
		if err := p.cfg.Failpoint.At("unpause container"); err != nil {
			return err
		}
		return p.resume(ctx, name)
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		if p.resumed == nil {
			p.resumed = map[string]time.Time{}
		}
		p.resumed[name] = time.Now()
	}
	if err := p.cfg.Failpoint.At("forget paused containers"); err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, "forget which containers were paused", os.Remove(p.frozenFile()))
}

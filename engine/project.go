package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/systemd"
)

// ProjectConfig describes a project.
type ProjectConfig struct {
	Unit     string   // its name as a unit: "compose:shop"
	Members  []Member // its containers
	StateDir string   // a folder of the daemon's own: what a stop found running is noted there

	Failpoint failpoint.Hook // for tests: called ahead of each step that lasts
}

// Project is the containers of one app. It implements [systemd.Unit].
type Project struct {
	e    *Engine
	cfg  ProjectConfig
	mu   sync.Mutex // held while containers are paused, unpaused, stopped or started
	ran  []string   // what the next Stop takes for running; guarded by mu
	lost bool       // the next Stop leaves out what is gone; guarded by mu

	resumed map[string]time.Time // when mulligan last let a container go on that it had paused, by name; guarded by mu

	freezing chan struct{} // holds one element from a Freeze until its end: a container is paused once at a time
}

var _ systemd.Unit = (*Project)(nil)

// Project returns the project with these containers.
func (e *Engine) Project(cfg ProjectConfig) *Project {
	return &Project{e: e, cfg: cfg, freezing: make(chan struct{}, 1)}
}

// Name returns the project's name as a unit.
func (p *Project) Name() string { return p.cfg.Unit }

// condition is what a container does.
type condition int

const (
	off     condition = iota // it was never started, or stopped, or has done its work
	running                  // also paused
	again                    // it is between two restarts
	failed                   // it ended with an error
	missing                  // it was removed
)

// condition tells what the member does. The engine does not say whether somebody stopped a container: one that ended well or by
// the signals of a stop is taken for stopped.
func (f *found) condition() condition {
	if f.gone {
		return missing
	}
	const killed, terminated = 128 + 9, 128 + 15
	switch s := f.now.State; {
	case s.Restarting:
		return again
	case s.Running:
		return running
	case s.Status == "created", s.ExitCode == 0, !s.OOMKilled && (s.ExitCode == killed || s.ExitCode == terminated):
		return off
	}
	return failed
}

// State returns the state of the containers as one unit: active if none of them is missing or has failed, and one runs.
func (p *Project) State(ctx context.Context) (systemd.Status, error) {
	list, err := p.look(ctx)
	if err != nil {
		return systemd.Status{}, err
	}
	s := systemd.Status{Active: "inactive", Sub: "stopped", Asked: true}
	var bad []string
	up := 0
	for _, f := range list {
		switch f.condition() {
		case running:
			if f.Stays { // it says nothing of whether the rest is up
				continue
			}
			up++
			s.MainPID = max(s.MainPID, f.now.State.Pid)
		case again:
			up++
			bad = append(bad, f.Name+" is being restarted")
		case failed:
			bad = append(bad, fmt.Sprintf("%s ended with %d", f.Name, f.now.State.ExitCode))
		case missing:
			bad = append(bad, f.lost())
		}
		if !f.gone {
			s.Restarts += f.now.RestartCount
			s.Since = latest(s.Since, f.now.State.StartedAt, f.now.State.FinishedAt)
		}
	}
	switch {
	case up == 0 && len(bad) == 0:
		return s, nil
	case len(bad) == 0:
		s.Active, s.Sub = "active", "running"
	case up > 0:
		s.Active, s.Sub = "activating", "degraded"
	default:
		s.Active, s.Sub = "failed", "failed"
	}
	s.Asked, s.Result = false, strings.Join(bad, ", ")
	return s, nil
}

// latest returns the latest of some times; texts that are no times are skipped.
func latest(t time.Time, texts ...string) time.Time {
	for _, text := range texts {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil && at.After(t) {
			t = at
		}
	}
	return t
}

// Ready returns an error if Stop would stop nothing: of kind NotFound if that is because containers are gone. The remarks say, in whole
// sentences, how the containers differ from those that the project was configured with. ran is what runs now.
func (p *Project) Ready(ctx context.Context) (ran, remarks []string, err error) {
	list, err := p.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list {
		if c := f.condition(); c == running || c == again {
			ran = append(ran, f.Name)
		}
	}
	if remarks, err = p.remarks(ctx, list); err != nil {
		return nil, nil, err
	}
	return ran, remarks, p.whole(list)
}

// Expect has the next Stop take these containers for running, as they were a while ago: one that was killed since is started again, too.
// If lost is true, that Stop leaves out containers that are gone, and stops the others.
func (p *Project) Expect(ran []string, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ran, p.lost = ran, lost
}

func (p *Project) remarks(ctx context.Context, list []found) ([]string, error) {
	var words []string
	for _, f := range list {
		if f.remade {
			words = append(words, fmt.Sprintf("container %s is another one than when %s was configured; it is used as it is", f.Name, p.cfg.Unit))
		}
	}
	project, _, err := ParseName(p.cfg.Unit)
	if err != nil || project == "" {
		return words, err
	}
	labelled, err := p.e.labelled(ctx, project)
	if err != nil {
		return nil, err
	}
	for _, m := range labelled {
		if !slices.ContainsFunc(p.cfg.Members, func(mine Member) bool { return mine.Name == m.Name }) {
			words = append(words, fmt.Sprintf("container %s says that it is of %s, and was not there when that was configured; it is left alone (`mulligan app set unit=%[2]s` takes it in)", m.Name, p.cfg.Unit))
		}
	}
	return words, nil
}

// makeAgain says how a container that is gone comes back.
func (p *Project) makeAgain() string {
	if project, _, err := ParseName(p.cfg.Unit); err == nil && project != "" {
		return fmt.Sprintf("docker compose -p %s up -d makes it anew, and `mulligan app set unit=%s` accepts what is there now", project, p.cfg.Unit)
	}
	return "make it anew, or name another unit: `mulligan app set unit=container:NAME`"
}

// lost says what became of a member that is gone.
func (f *found) lost() string {
	if f.called != "" {
		return f.Name + " is called " + f.called + " now"
	}
	return f.Name + " is gone"
}

// whole returns an error if a member is gone, or would be after a stop.
func (p *Project) whole(list []found) error {
	var gone []string
	for _, f := range list {
		switch {
		case f.called != "":
			return errs.New(errs.Conflict, "", "of %s, container %s", p.cfg.Unit, f.lost()).
				WithHint("docker rename %s %s, or accept the new name: `mulligan app set unit=%s`", f.called, f.Name, p.cfg.Unit)
		case f.gone:
			gone = append(gone, f.Name)
		case f.now.HostConfig.AutoRemove:
			return errs.New(errs.Unsupported, "", "container %s was made with --rm: the engine would remove it at its stop", f.Name).
				WithHint("make it without --rm, and then: `mulligan app set unit=%s`", p.cfg.Unit)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return errs.New(errs.NotFound, "", "%s has lost a container: %s", p.cfg.Unit, strings.Join(gone, ", ")).WithHint("%s", p.makeAgain())
}

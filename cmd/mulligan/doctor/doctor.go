// Package doctor looks at a host from the outside, as the user who runs it: is
// all that mulligan needs there, and what brings what is not. It changes nothing
// and asks the daemon only what every client may.
package doctor

import (
	"context"
	"time"

	"mulligan/agents"
	"mulligan/ipc"
)

// State is how a thing is.
type State string

// The states. Only a Problem is something that does not work.
const (
	OK      State = "ok"
	Advice  State = "advice"  // it is missing or could be better, and nothing here needs it yet
	Problem State = "problem" // something needs it, or it is broken
)

// Check is what was found of one thing.
type Check struct {
	About   string `json:"about"` // daemon, host, databases, state, agents, apps
	Name    string `json:"name"`
	State   State  `json:"state"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy,omitempty"` // what to do: a command, mostly
}

// Report is all that was found.
type Report struct {
	OK       bool    `json:"ok"` // there is no problem
	Checks   []Check `json:"checks"`
	Problems int     `json:"problems"`
	// NoDaemon says that the daemon did not answer: what it would know is missing.
	NoDaemon error `json:"-"`
}

// Daemon is what a doctor asks of the daemon; *ipc.Client has it.
type Daemon interface {
	Status(ctx context.Context) (ipc.Status, error)
	Apps(ctx context.Context) ([]ipc.App, error)
	AppWithGaps(ctx context.Context, app string) (ipc.App, error)
	Socket() string
}

// Options are what a doctor is told.
type Options struct {
	Daemon   Daemon
	Version  string // of this program
	StateDir string // of the user's own daemon, for when none answers
	// Root is put before the paths of the host that are looked at: "" but in tests.
	Root    string
	UID     int
	Places  []agents.Place // where agents' settings are, the user's first
	Backups agents.Backups
	HookLog string // what the hooks complained of
}

// exam is one examination.
type exam struct {
	Options
	report Report
	status ipc.Status // zero where no daemon answers
	apps   []ipc.App
}

// patience bounds each question to a program or server that may hang.
const patience = 5 * time.Second

// Examine looks at everything.
func Examine(ctx context.Context, o Options) Report {
	e := &exam{Options: o}
	e.daemon(ctx)
	e.host()
	e.libvirt(ctx)
	e.databases(ctx)
	e.state()
	e.agents()
	e.appList(ctx)
	e.report.OK = e.report.Problems == 0
	return e.report
}

func (e *exam) add(about, name string, s State, finding, remedy string) {
	if s == Problem {
		e.report.Problems++
	}
	e.report.Checks = append(e.report.Checks, Check{about, name, s, finding, remedy})
}

// needed is the state of what is missing: a problem where something needs it.
func needed(is bool) State {
	if is {
		return Problem
	}
	return Advice
}

// any tells whether an app is such.
func (e *exam) any(is func(ipc.App) bool) bool {
	for _, a := range e.apps {
		if is(a) {
			return true
		}
	}
	return false
}

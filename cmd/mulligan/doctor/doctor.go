// Package doctor examines a host with the rights of the user who runs it: it
// checks that everything that mulligan needs is there, and says how to get what
// is missing. It changes nothing and asks the daemon only what every client may.
package doctor

import (
	"context"
	"time"

	"mulligan/agents"
	"mulligan/ipc"
)

// State is the result of one check.
type State string

// The states of a check. Only Problem means that something does not work.
const (
	OK      State = "ok"
	Advice  State = "advice"  // something is missing or could be better, and nothing here needs it yet
	Problem State = "problem" // something that is needed is missing or broken
)

// Check is what doctor found about one thing.
type Check struct {
	About   string `json:"about"` // daemon, host, databases, state, agents, apps
	Name    string `json:"name"`
	State   State  `json:"state"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy,omitempty"` // what to do, usually a command
}

// Report is the result of an examination.
type Report struct {
	OK       bool    `json:"ok"` // no check has the state Problem
	Checks   []Check `json:"checks"`
	Problems int     `json:"problems"`
	// NoDaemon is the error if the daemon did not answer. The checks that need its answers are then missing.
	NoDaemon error `json:"-"`
}

// Daemon has the requests that doctor sends to the daemon. *ipc.Client implements it.
type Daemon interface {
	Status(ctx context.Context) (ipc.Status, error)
	Apps(ctx context.Context) ([]ipc.App, error)
	AppWithGaps(ctx context.Context, app string) (ipc.App, error)
	Socket() string
}

// Options say where doctor looks.
type Options struct {
	Dir      string // where agents are asked whether they run mulligan's hooks; "": they are not asked
	Daemon   Daemon
	Version  string // of this program
	StateDir string // of the user's own daemon; it counts if no daemon answers
	// Root is put before the paths of the host. It is "" except in tests.
	Root    string
	UID     int
	Places  []agents.Place // where agents' settings are; the user's come first
	Backups agents.Backups
	HookLog string // the file to which hooks write their errors
	Asleep  error  // why the user's own daemon does not start, if so
}

// exam is the state of one examination.
type exam struct {
	Options
	report Report
	status ipc.Status // the zero value if no daemon answers
	apps   []ipc.App
}

// askTimeout bounds each request to a program or server that may hang.
const askTimeout = 5 * time.Second

// Examine runs all checks.
func Examine(ctx context.Context, o Options) Report {
	e := &exam{Options: o}
	e.daemon(ctx)
	e.host()
	e.libvirt(ctx)
	e.databases(ctx)
	e.state()
	e.agents(ctx)
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

// needed returns the state for a missing thing: a problem if something needs it, else an advice.
func needed(is bool) State {
	if is {
		return Problem
	}
	return Advice
}

// any reports whether is holds for one of the apps.
func (e *exam) any(is func(ipc.App) bool) bool {
	for _, a := range e.apps {
		if is(a) {
			return true
		}
	}
	return false
}

// Package agents has what mulligan knows about coding agents: the input and output of their hooks, and the places of their
// settings.
//
// Each event of an agent starts a hook, which is a process. The hook reads the agent's JSON (Agent.Read), reports the event to
// the daemon ([Reporter]) and prints what the agent expects (Agent.Reply). Paths and commands in an agent's event are only
// hints: the daemon's watcher determines what changed.
//
// Each agent has a file here, with its events and fields. "Second-hand" in a comment means that the fact is not from the
// agent's own documentation.
//
// Settings are edited as text at positions that a parser finds, and not by hujson.Patch or a YAML encoder: added text follows
// the style of the file, and its removal leaves the same bytes as before.
package agents

import (
	"context"
	"slices"

	"mulligan/errs"
)

// Agent is one coding agent.
type Agent struct {
	Name  string // used on the command line and in turns
	Title string // for messages

	// read returns the event of a payload. name is the name of the event, for agents whose payloads do not have it.
	read func(name string, payload []byte) (Event, error)
	// reply returns what a hook of this event must print; nil if nothing.
	reply func(event string) string
	// notice returns what a hook of this event must print so that the agent shows a line to the person, and not to the model; nil
	// if the agent has no means for it.
	notice func(event, line string) string
	// looks are the agent's tools that change no files.
	looks []string

	// ask asks the agent itself what keeps it from running mulligan's hooks in a folder; nil if it cannot be asked. problem is "" if
	// nothing does.
	ask func(ctx context.Context, dir string) (problem, remedy string, err error)

	settings func(Place) []Change
	notes    func(Scope) []string
}

// all has every agent by name.
var all = []*Agent{claude, cline, codex, copilot, cursor, gemini, goose, opencode}

// Names returns the names of all agents.
func Names() []string {
	var names []string
	for _, a := range all {
		names = append(names, a.Name)
	}
	return names
}

// ByName returns an agent. The error is of kind errs.NotFound if there is none of this name.
func ByName(name string) (*Agent, error) {
	i := slices.IndexFunc(all, func(a *Agent) bool { return a.Name == name })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "find the agent", "mulligan does not know %q", name).
			WithHint("it knows %s", list(Names()))
	}
	return all[i], nil
}

// Notes returns what a user should know after the installation.
func (a *Agent) Notes(s Scope) []string {
	if a.notes == nil {
		return nil
	}
	return a.notes(s)
}

// Ask asks the agent itself what keeps it from running mulligan's hooks in a folder, and what to do about it. problem is "" if
// nothing does, or the agent cannot be asked. The error says why it did not answer.
func (a *Agent) Ask(ctx context.Context, dir string) (problem, remedy string, err error) {
	if a.ask == nil {
		return "", "", nil
	}
	return a.ask(ctx, dir)
}

// list returns the words as "a, b and c".
func list(words []string) string {
	s := ""
	for i, w := range words {
		switch i {
		case 0:
		case len(words) - 1:
			s += " and "
		default:
			s += ", "
		}
		s += w
	}
	return s
}

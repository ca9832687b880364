// Package agents is what mulligan knows of coding agents: what their hooks say
// and want to hear, and where their settings are.
//
// An agent's hook is a process of its own for every event. It reads the agent's
// JSON (Agent.Read), tells the daemon what that means ([Reporter]) and prints what
// the agent expects (Agent.Reply). What an agent says of paths and commands is a
// hint at most: what changed is what the daemon's watcher saw.
//
// Each agent has a file here, with its events and fields. Where a comment says
// "second-hand", the agent's own documentation did not say so.
//
// Settings are edited as text at the places that a parser finds, not by hujson.Patch or a YAML encoder:
// what is put in stands in the style of the file, and what is taken out leaves the bytes that were there before.
package agents

import (
	"slices"

	"mulligan/errs"
)

// Agent is one coding agent.
type Agent struct {
	Name  string // as on the command line and in turns
	Title string // for people

	// read makes an event of a payload. The name is that of the event, for
	// agents whose payloads do not have it.
	read func(name string, payload []byte) (Event, error)
	// reply is what a hook of this event must print; nil: nothing.
	reply func(event string) string
	// looks are the tools that change no file.
	looks []string

	settings func(Place) []Change
	notes    func(Scope) []string
}

// all is every agent, by name.
var all = []*Agent{claude, cline, codex, copilot, cursor, gemini, goose, opencode}

// Names lists the agents' names.
func Names() []string {
	var names []string
	for _, a := range all {
		names = append(names, a.Name)
	}
	return names
}

// ByName finds an agent; none is errs.NotFound.
func ByName(name string) (*Agent, error) {
	i := slices.IndexFunc(all, func(a *Agent) bool { return a.Name == name })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "find the agent", "mulligan does not know %q", name).
			WithHint("it knows %s", list(Names()))
	}
	return all[i], nil
}

// Notes are what a user should know once it is installed.
func (a *Agent) Notes(s Scope) []string {
	if a.notes == nil {
		return nil
	}
	return a.notes(s)
}

// list is "a, b and c".
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

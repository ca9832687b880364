package agents

import (
	"os"
	"path/filepath"

	"mulligan/errs"
)

// Scope is whose settings are meant.
type Scope string

// The scopes.
const (
	User    Scope = "user"    // everything that the user does with the agent
	Project Scope = "project" // a project, for everybody who works on it
)

// Place is where settings go, and what they are to run.
type Place struct {
	Scope   Scope
	Home    string // the user's home folder
	Project string // the project's folder, where that is the scope
	Program string // mulligan, as the agent is to start it

	getenv func(string) string
}

// NewPlace is the place of a scope; dir is the project's folder.
func NewPlace(scope Scope, dir, program string) (Place, error) {
	p := Place{Scope: scope, Program: program, getenv: os.Getenv}
	var err error
	if p.Home, err = os.UserHomeDir(); err != nil {
		return Place{}, errs.Wrap(errs.Failed, "find the settings", err)
	}
	if p.Project, err = filepath.EvalSymlinks(dir); err != nil {
		return Place{}, errs.Wrap(errs.Failed, "find the settings", err)
	}
	if scope == Project && p.Project == filepath.Clean(p.Home) {
		return Place{}, errs.New(errs.Invalid, "find the settings", "%s is your home folder, not a project's", dir).
			WithHint("go to the project, or use --scope user")
	}
	return p, nil
}

// base is where an agent's settings are: a root that nothing is touched outside
// of, and the folder below it. In a project that is project; for a user usual,
// in the home folder, unless a variable names another folder in its place.
func (p Place) base(variable, usual, project string) (root, below string) {
	if p.Scope == Project {
		return p.Project, project
	}
	if variable != "" {
		if dir := p.getenv(variable); filepath.IsAbs(dir) {
			return dir, ""
		}
	}
	return p.Home, usual
}

// mode is that of new files: a user's settings may hold secrets, a project's
// are for all who work on it.
func (p Place) mode() os.FileMode {
	if p.Scope == Project {
		return 0o644
	}
	return 0o600
}

// hook is the shell command of a hook. It never fails: some agents take a hook
// that fails, as one whose program is gone, for an objection.
func (p Place) hook(agent string, event ...string) string {
	line := quote(p.Program) + " hook " + agent
	for _, e := range event {
		line += " " + e
	}
	return line + " || true"
}

// Change is what one file of settings gets.
type Change struct {
	Root string // the folder that it must be in
	Path string // below Root
	Mode os.FileMode
	Edit Edit
}

// Edit puts mulligan's part into a file's text, and takes it out again. Text
// that was not there is "". Both are idempotent and keep all other bytes.
type Edit interface {
	Insert(text string) (string, error)
	Remove(text string) (string, error)
}

// quote is a word for a shell.
func quote(word string) string {
	plain := word != ""
	for _, r := range word {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '/' || r == '-' || r == '_' || r == '.' || r == '+'
		plain = plain && ok
	}
	if plain {
		return word
	}
	out := "'"
	for _, r := range word {
		if r == '\'' {
			out += `'\''`
		} else {
			out += string(r)
		}
	}
	return out + "'"
}

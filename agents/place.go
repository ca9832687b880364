package agents

import (
	"os"
	"path/filepath"

	"mulligan/errs"
)

// Scope says for whom settings are installed.
type Scope string

// The scopes.
const (
	User    Scope = "user"    // all projects of the user
	Project Scope = "project" // one project, for everybody who works on it
)

// Place says where settings are written, and which program they start.
type Place struct {
	Scope   Scope
	Home    string // the user's home folder
	Project string // the project's folder, for the scope Project
	Program string // the path of mulligan for the agent

	getenv func(string) string
}

// NewPlace returns the place of a scope. dir is the project's folder.
func NewPlace(scope Scope, dir, program string) (Place, error) {
	p := Place{Scope: scope, Program: program, getenv: os.Getenv}
	var err error
	if p.Home, err = os.UserHomeDir(); err != nil {
		return Place{}, errs.Wrap(errs.Failed, "find the settings", err)
	}
	if scope != Project { // dir does not matter, and may be gone
		return p, nil
	}
	if p.Project, err = filepath.EvalSymlinks(dir); err != nil {
		return Place{}, errs.Wrap(errs.Failed, "find the settings", err)
	}
	if p.Project == filepath.Clean(p.Home) {
		return Place{}, errs.New(errs.Invalid, "find the settings", "%s is your home folder, not a project's", dir).
			WithHint("go to the project, or use --scope user")
	}
	return p, nil
}

// base returns the folder of an agent's settings as a root, outside of which nothing is changed, and a folder below it. The
// folder is project in a project. For a user it is usual in the home folder, unless a variable names another folder.
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

// mode returns the mode of new files. A user's settings may contain secrets; a project's are for everybody who works on it.
func (p Place) mode() os.FileMode {
	if p.Scope == Project {
		return 0o644
	}
	return 0o600
}

// hook returns the shell command of a hook. The command always succeeds, because some agents block the tool if a hook fails,
// for example because its program was removed.
func (p Place) hook(agent string, event ...string) string {
	line := quote(p.Program) + " hook " + agent
	for _, e := range event {
		line += " " + e
	}
	return line + " || true"
}

// Change is the change of one settings file.
type Change struct {
	Root string // the folder in which the file must be
	Path string // below Root
	Mode os.FileMode
	Edit Edit
}

// Edit inserts mulligan's part into a file's text and removes it. The text of a missing file is "". Both are idempotent and
// keep all other bytes. What a user added to mulligan's MCP entry stays in it.
type Edit interface {
	Insert(text string) (string, error)
	Remove(text string) (string, error)
	// Before returns the text as it was before Insert, as far as that can be told: an MCP entry that differs from
	// Insert's in more than the program was written by a user, and stays.
	Before(text string) (string, error)
}

// quote returns s as one word of a shell command.
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

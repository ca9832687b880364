package agents

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Condition says whether mulligan is in an agent's settings.
type Condition int

// The conditions.
const (
	Without  Condition = iota // mulligan is not in them
	Partly                    // some entries are missing, or were written by another version or program
	Complete                  // all entries are as Install writes them
)

// traces show that an agent is installed: a program in PATH, or its settings folder in the home folder. Cline's are
// second-hand.
var traces = map[string]struct{ programs, folders []string }{
	"claude-code": {[]string{"claude"}, []string{".claude"}},
	"cline":       {[]string{"cline"}, []string{".cline", "Documents/Cline"}},
	"codex":       {[]string{"codex"}, []string{".codex"}},
	"copilot":     {[]string{"copilot"}, []string{".copilot"}},
	"cursor":      {[]string{"cursor", "cursor-agent"}, []string{".cursor"}},
	"gemini":      {[]string{"gemini"}, []string{".gemini"}},
	"goose":       {[]string{"goose"}, []string{".config/goose"}},
	"opencode":    {[]string{"opencode"}, []string{".config/opencode", ".opencode"}},
}

// All returns all agents in the order of their names.
func All() []*Agent { return append([]*Agent(nil), all...) }

// Found reports whether the agent is on this machine, by its traces.
func (a *Agent) Found(p Place) bool {
	t := traces[a.Name]
	for _, name := range t.programs {
		if _, err := exec.LookPath(name); err == nil {
			return true
		}
	}
	for _, name := range t.folders {
		if fi, err := os.Stat(filepath.Join(p.Home, name)); err == nil && fi.IsDir() {
			return true
		}
	}
	return false
}

// Condition returns the condition of the agent's settings in a place, and the files that Install would change. It writes
// nothing.
func (a *Agent) Condition(p Place, b Backups) (Condition, []string, error) {
	out, err := a.Uninstall(p, b)
	if err != nil {
		return Without, nil, err
	}
	there := false
	for _, e := range out {
		there = there || e.Action != "unchanged"
	}
	if !there {
		return Without, nil, nil
	}
	in, err := a.Install(p, b)
	if err != nil {
		return Partly, nil, err
	}
	var wrong []string
	for _, e := range in {
		if e.Action != "unchanged" {
			wrong = append(wrong, e.Path)
		}
	}
	if len(wrong) > 0 {
		return Partly, wrong, nil
	}
	return Complete, nil, nil
}

package agents

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Condition is how an agent's settings are.
type Condition int

// The conditions.
const (
	Without  Condition = iota // nothing of mulligan's is in them
	Partly                    // some of it is missing, or as another version or program wrote it
	Complete                  // as Install would write it
)

// traces are what shows that an agent is on a machine: a program in PATH, or a
// folder of its settings in the home folder. Where Cline's are is second-hand.
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

// All gives every agent, by name.
func All() []*Agent { return append([]*Agent(nil), all...) }

// Found tells whether the agent is on this machine, by its traces.
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

// Condition tells how the agent's settings in a place are, and which files are
// not as they should be. Nothing is written.
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

package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit/sysfault"
)

// TestSettingsAreSynced: after a power cut each file is the old one or the new one, whole, and what it was before is kept.
func TestSettingsAreSynced(t *testing.T) {
	calls := sysfault.Trace(t, func(dir string) {
		for _, sub := range []string{"state", ".claude", ".codex"} {
			if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}, func(dir string) error {
		p := Place{Scope: User, Home: dir, Project: dir, Program: "/usr/bin/mulligan", getenv: func(string) string { return "" }}
		b := Backups{filepath.Join(dir, "state")}
		for _, a := range all {
			list, err := a.Install(p, b)
			if err == nil {
				err = b.Apply(list)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if text := strings.Join(calls, " "); !strings.Contains(text, "rename .claude/settings.json") || !strings.Contains(text, "rename state/claude-code-") {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}

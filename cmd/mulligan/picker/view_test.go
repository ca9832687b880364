package picker

import (
	"context"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
)

// shown returns a model of a screen with one checkpoint.
func shown(width, height int, cp ipc.Checkpoint) *model {
	m := newModel(context.Background(), Options{
		App: ipc.App{Slug: "shop"}, Plain: true, Escape: func(s string) string { return s },
		Ago: func(time.Time) string { return "3 hours ago" }, Size: func(int64) string { return "1 KiB" },
	})
	cp.ID = "cp-0123456789ab"
	m.preview[cp.ID] = &preview{}
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(loadedMsg{rows: []row{{cp: cp, number: 1}}})
	return m
}

const long = "Add a page that lists the orders of a customer, newest first, with a search for words in them"

// However long a title is, a question says what is asked and which keys answer it.
func TestQuestion(t *testing.T) {
	turn := "t1"
	for _, width := range []int{40, 60, 80, 120} {
		m := shown(width, 24, ipc.Checkpoint{Trigger: ipc.TriggerAgent, TurnID: &turn, Title: long, Agent: "claude-code"})
		m.keyOfList("enter")
		got := ansi.Strip(m.bottom())
		if ansi.StringWidth(got) > width || !strings.HasPrefix(got, "Go back to 3 hours ago") || !strings.HasSuffix(got, "? [Y/n]") && !strings.HasSuffix(got, "is kept. [Y/n]") {
			t.Errorf("at %d columns: %s", width, got)
		}
		if width >= 80 && (!strings.Contains(got, "(before “Add a") || !strings.Contains(got, "…)? The present state is kept. [Y/n]")) {
			t.Errorf("at %d columns: %s", width, got)
		}
	}
}

// The help is wrapped where the screen is narrow.
func TestHelp(t *testing.T) {
	for _, width := range []int{60, 80} {
		m := shown(width, 30, ipc.Checkpoint{})
		m.keyOfList("?")
		got := ansi.Strip(m.screen())
		words := strings.Join(strings.Fields(got), " ")
		for _, want := range []string{"files, disks and databases together", "it can always be taken back.", "~ becomes as it was.", "and leave the app as it is", "any key: back to the list"} {
			if !strings.Contains(words, want) {
				t.Errorf("at %d columns %q is missing:\n%s", width, want, got)
			}
		}
		for line := range strings.Lines(got) {
			if ansi.StringWidth(strings.TrimSuffix(line, "\n")) > width {
				t.Errorf("%q is wider than %d columns", line, width)
			}
		}
	}
}

// A safety checkpoint is called after what its rollback went to.
func TestSafetyCheckpoint(t *testing.T) {
	notes := "safety checkpoint before rollback to cp-85e9aaaaaaaa"
	m := shown(120, 24, ipc.Checkpoint{Trigger: ipc.TriggerPreRollback, Notes: &notes, RollbackTo: "cp-85e9aaaaaaaa", RollbackTitle: "fix the login page"})
	if got := ansi.Strip(m.screen()); !strings.Contains(got, "before going back to “fix the login page”") || strings.Contains(got, "cp-85e9") {
		t.Errorf("it is shown as\n%s", got)
	}
}

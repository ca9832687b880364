package output

import (
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
)

// fits fails unless every line of a text is at most so many columns wide.
func fits(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := ansi.StringWidth(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns of %d: %s", n, width, line)
		}
	}
}

func TestTablesFit(t *testing.T) {
	title, notes := "make the orders table have a price, and show it on the page of the shop", "safety checkpoint before rollback"
	made := time.Now().Add(-25 * time.Minute)
	list := []ipc.Checkpoint{
		{ID: "cp-4fc0123456ab", CreatedAt: made, Trigger: ipc.TriggerAgent, TurnID: new(string), Title: title, Agent: "claude-code", SizeBytes: 123 << 20, Ref: &notes},
		{ID: "cp-5fc0123456ab", CreatedAt: made, Trigger: ipc.TriggerPreRollback, Notes: &notes, Pinned: true},
	}
	forks := ipc.ForkList{Forks: []ipc.App{{ID: "app-81e7efeaddbe", State: "running", Workspace: "/home/alice/projects/shop-forks/try-redis", CreatedAt: made,
		Fork: &ipc.Fork{Name: "try-redis", Origin: "cp-4fc0123456ab", Isolation: ipc.IsolationNamespace}}}}
	for _, width := range []int{60, 80, 100} {
		var b strings.Builder
		p := &Printer{Stdout: NewWriter(&b), Terminal: true, Width: width}
		p.PrintCheckpoints(list, true)
		if err := p.PrintForks(forks); err != nil {
			t.Fatal(err)
		}
		p.Prose([]string{"ABOUT", "STATE", "NAME", "FINDING"}, [][]string{{"HOST", "advice", "systemd", "→ sudo loginctl enable-linger $USER; apt-get install dbus-user-session; log in anew"}})
		p.Fields([][2]string{{"warnings", "a warning that is long enough for more than one line of a narrow terminal, whichever it is"}})
		fits(t, b.String(), width)
		want := []string{"cp-4fc0123456ab", "before “make the", "try-redis", "log in anew", "whichever it is"}
		if width >= 80 {
			want = append(want, forks.Forks[0].Workspace)
		}
		for _, whole := range want {
			if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), whole) {
				t.Errorf("in %d columns, without %q:\n%s", width, whole, b.String())
			}
		}
	}
}

// With room, nothing is left out.
func TestWideTable(t *testing.T) {
	var b strings.Builder
	p := &Printer{Stdout: NewWriter(&b), Terminal: true, Width: 40}
	p.Table([]string{"A", "B", "C"}, [][]string{{"1", "2", "3"}}, "A", "B")
	if got := b.String(); got != "A  B  C\n1  2  3\n" {
		t.Errorf("%q", got)
	}
}

func TestHelpFits(t *testing.T) {
	const help = "Take the app to a checkpoint, with a line that is as long as lines of prose should not be but are.\n\nFlags:\n" +
		"      --check-stored         first read every byte that is stored for the checkpoint\n  -h, --help   help\n"
	want := "Take the app to a checkpoint, with a line that is as long as\nlines of prose should not be but are.\n\nFlags:\n" +
		"      --check-stored         first read every byte that is\n                             stored for the checkpoint\n  -h, --help   help\n"
	p := &Printer{Terminal: true, Width: 60}
	if got := p.Wrapped(help); got != want {
		t.Errorf("%s", got)
	}
	p.Width = 0
	if p.Wrapped(help) != help {
		t.Error("wrapped without a width")
	}
}

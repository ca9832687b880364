package output

import (
	"os"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
)

// A stage has one line, however often it reports how far it is; its result overwrites that line.
func TestProgressWritesOver(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out)
	for _, st := range []ipc.Stage{
		{Stage: "one", Status: ipc.StageRunning},
		{Stage: "one", Status: ipc.StageRunning, Notes: "a long word about how far it is, longer than what ends it: 1 of 2"},
		{Stage: "one", Status: ipc.StageRunning, Notes: "2 of 2"},
		{Stage: "one", Status: ipc.StageOK, DurationMS: 5, Notes: "done"},
		{Stage: "two", Status: ipc.StageRunning},
	} {
		p.Stage(st)
	}
	p.End()
	var lines []string
	for line := range strings.Lines(out.String()) {
		shown := "" // what a terminal shows of it
		for part := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "\r") {
			shown = part + shown[min(len(part), len(shown)):]
		}
		lines = append(lines, strings.TrimSpace(shown))
	}
	if want := "one                          ok           5ms  done|two                          running"; strings.Join(lines, "|") != want {
		t.Errorf("a terminal shows %q, and should show %q", strings.Join(lines, "|"), want)
	}
}

// People see what each stage does, in the words of the page.
func TestMeanings(t *testing.T) {
	page, err := os.ReadFile("../../../daemon/page/static/rollback.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ipc.Stages {
		words := meanings[name]
		if words == "" || !strings.Contains(string(page), `"`+string(name)+`": "`+strings.ToUpper(words[:1])+words[1:]+`"`) {
			t.Errorf("%s is %q here, and not on the page", name, words)
		}
		var out strings.Builder
		NewProgress(&out).Stage(ipc.Stage{Stage: name, Status: ipc.StageOK})
		if !strings.HasPrefix(out.String(), "  "+words+" ") || strings.Contains(out.String(), string(name)) {
			t.Errorf("%s is shown as %q", name, out.String())
		}
	}
}

// What a running stage tells again and again stays on one line of the terminal, whichever its width is.
func TestProgressFits(t *testing.T) {
	var b strings.Builder
	p := NewProgress(&b)
	p.Width = 60
	for _, notes := range []string{"", "files put back: 8,001 of 10,101, 1,455 a second, 2s left", "files put back: 9,001 of 10,101, 1,455 a second, 1s left"} {
		p.Stage(ipc.Stage{Stage: ipc.StageVM, Status: ipc.StageRunning, Notes: notes})
	}
	for _, line := range strings.Split(b.String(), "\r") {
		if n := ansi.StringWidth(line); n >= 60 {
			t.Errorf("%d columns of 60: %q", n, line)
		}
	}
	if !strings.Contains(b.String(), "files put back: 9,…") {
		t.Errorf("%q", b.String())
	}
}

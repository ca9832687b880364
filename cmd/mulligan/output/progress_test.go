package output

import (
	"strings"
	"testing"

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
	if want := "one                ok           5ms  done|two                running"; strings.Join(lines, "|") != want {
		t.Errorf("a terminal shows %q, and should show %q", strings.Join(lines, "|"), want)
	}
}

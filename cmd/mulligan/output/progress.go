package output

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
)

// meanings say what each stage does, in the words of the page.
var meanings = map[ipc.StageName]string{
	ipc.StageSafety: "keep the state as it is now", ipc.StageStop: "stop the app", ipc.StageVM: "put files and disks back",
	ipc.StageDB: "put databases back", ipc.StageStart: "start the app", ipc.StageHealthy: "ask the app how it is",
}

// meaning returns what a stage does, in a column of the progress.
func meaning(name ipc.StageName) string {
	return fmt.Sprintf("%-28s", cmp.Or(meanings[name], Escape(string(name))))
}

// Progress shows the stages of a rollback on a terminal as they start and end.
// When a stage ends, its result overwrites the line that showed it running.
type Progress struct {
	Width int // columns of the terminal, to which the line of a running stage is cut: a longer one could not be overwritten; 0: no limit

	w    io.Writer
	open ipc.StageName // the stage whose line the cursor is on; "" if none
	wide int           // the number of characters on that line
}

// NewProgress returns a Progress that writes to the terminal w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w} }

// Stage shows st, which has just started, gone on or ended.
func (p *Progress) Stage(st ipc.Stage) {
	switch p.open {
	case "":
	case st.Stage:
		fmt.Fprint(p.w, "\r")
	default:
		p.wide = 0
		fmt.Fprintln(p.w)
	}
	if st.Status == ipc.StageRunning {
		p.open = st.Stage
		line := fmt.Sprintf("  %s %s", meaning(st.Stage), st.Status)
		if st.Notes != "" {
			line += "  " + Escape(st.Notes)
		}
		if p.Width > 1 {
			line = ansi.Truncate(line, p.Width-1, "…")
		}
		p.write(line)
		return
	}
	p.open = ""
	took := seconds(st.DurationMS)
	if st.Status == ipc.StageSkipped {
		took = "-"
	}
	p.write(fmt.Sprintf("  %s %-8s %7s  %s", meaning(st.Stage), Escape(string(st.Status)), took, Escape(st.Notes)))
	p.wide = 0
	fmt.Fprintln(p.w)
}

// write overwrites the line that the cursor is on.
func (p *Progress) write(line string) {
	n := utf8.RuneCountInString(line)
	fmt.Fprint(p.w, line, strings.Repeat(" ", max(0, p.wide-n)))
	p.wide = n
}

// End moves the cursor to the beginning of a line. p may be nil.
func (p *Progress) End() {
	if p != nil && p.open != "" {
		fmt.Fprintln(p.w)
		p.open = ""
	}
}

// seconds returns a duration for people: "12ms", "3.4s", "1m10s".
func seconds(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return d.String()
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

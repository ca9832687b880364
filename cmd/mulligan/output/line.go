package output

import (
	"fmt"
	"io"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// Line is a line of a terminal that is shown while something lasts, and goes away before anything else is printed. Its methods may be called
// by several goroutines.
type Line struct {
	w     io.Writer
	width func() int // columns of the terminal now; 0: no limit

	mu    sync.Mutex
	shown bool
}

// NewLine returns a Line on the terminal w.
func NewLine(w io.Writer, width func() int) *Line { return &Line{w: w, width: width} }

// Show replaces what the line shows.
func (l *Line) Show(words string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.show(words)
}

// Refresh replaces what the line shows, unless it went away.
func (l *Line) Refresh(words string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		l.show(words)
	}
}

func (l *Line) show(words string) {
	words = "  " + Escape(words)
	if n := l.width(); n > 1 {
		words = ansi.Truncate(words, n-1, "…") // the cursor stays on the line
	}
	fmt.Fprint(l.w, "\r\x1b[K"+words)
	l.shown = true
}

// Clear takes the line away.
func (l *Line) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.shown = false
	}
}

package output

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"mulligan/ipc"
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

// Follow returns a context whose requests show on the line how far they are, until done is called. The line goes away before something is
// written to out.
func (l *Line) Follow(ctx context.Context, out *Writer) (_ context.Context, done func()) {
	out.Before = l.Clear
	told, ended := make(chan ipc.Progress), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		l.follow(ctx, told)
	}()
	report := func(p ipc.Progress) {
		select {
		case told <- p:
		case <-ctx.Done():
		}
	}
	return ipc.WithProgress(ctx, report), func() {
		cancel()
		<-ended
		l.Clear()
	}
}

// follow shows what it is told, and every second how long it lasts already, until ctx ends.
func (l *Line) follow(ctx context.Context, told <-chan ipc.Progress) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var latest ipc.Progress
	var at time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case latest = <-told:
			at = time.Now()
			l.Show(latest.Words())
		case <-tick.C:
			now := latest
			now.ElapsedMS += time.Since(at).Milliseconds()
			l.Refresh(now.Words())
		}
	}
}

package events

import (
	"sync"
	"time"

	"mulligan/ipc"
	"mulligan/snap"
)

// quietFor is how long an operation, or a stage of one, tells nothing of its progress: most end before.
const quietFor = 300 * time.Millisecond

// Teller tells the progress of an operation, or of a stage of one, if it lasts longer than a moment. Its methods may be called by several
// goroutines.
type Teller struct {
	tell func(ipc.Progress)

	mu     sync.Mutex
	timer  *time.Timer
	loud   bool       // the moment is over
	latest *snap.Work // what was not told yet
	ended  bool
}

// NewTeller returns a Teller that calls tell, by one goroutine at a time. The caller must end it.
func NewTeller(tell func(ipc.Progress)) *Teller {
	t := &Teller{tell: tell}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(quietFor, t.speak)
	return t
}

// Tell tells w, or keeps it until the moment is over.
func (t *Teller) Tell(w snap.Work) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
	case !t.loud:
		t.latest = &w
	default:
		t.tell(progress(w))
	}
}

func (t *Teller) speak() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loud = true
	if t.latest != nil && !t.ended {
		t.tell(progress(*t.latest))
	}
}

// End makes sure that nothing is told any more.
func (t *Teller) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.timer.Stop()
}

func progress(w snap.Work) ipc.Progress {
	return ipc.Progress{What: w.What, Unit: w.Unit, Done: w.Done, Total: w.Total, ElapsedMS: w.Elapsed.Milliseconds()}
}

package snap

import (
	"context"
	"sync/atomic"
	"time"
)

// Work is how far a long piece of work is.
type Work struct {
	What    string        // what is done, as "files read"
	Unit    string        // what Done and Total count: UnitFiles, UnitBytes, or "" if nothing is counted
	Done    int64         // since the work began
	Total   int64         // 0 if it is not known
	Elapsed time.Duration // since the work began
}

// The units of Work.
const (
	UnitFiles = "files"
	UnitBytes = "bytes"
)

// meterStep is the least time between two reports of a Meter.
const meterStep = 100 * time.Millisecond

type progressKey struct{}

// WithProgress returns a context with the function report, which is told the progress of long-running methods of drivers. It may be called
// in any goroutine, also by several at a time. What an outer context of ctx reports to is told as well.
func WithProgress(ctx context.Context, report func(Work)) context.Context {
	if outer := reporter(ctx); outer != nil {
		inner := report
		report = func(w Work) { inner(w); outer(w) }
	}
	return context.WithValue(ctx, progressKey{}, report)
}

// Tell reports the progress of work that somebody else does, and of which a method of ctx waits for the end.
func Tell(ctx context.Context, w Work) {
	if report := reporter(ctx); report != nil {
		report(w)
	}
}

func reporter(ctx context.Context) func(Work) {
	report, _ := ctx.Value(progressKey{}).(func(Work))
	return report
}

// Meter reports the progress of one piece of work. A nil Meter reports nothing. Its methods may be called by several goroutines.
type Meter struct {
	report     func(Work)
	what, unit string
	began      time.Time
	total      atomic.Int64
	done, told atomic.Int64 // told: when the last report was, in nanoseconds since began
}

// NewMeter begins a piece of work, and reports that. total is 0 if it is not known. It returns nil if nobody listens.
func NewMeter(ctx context.Context, what, unit string, total int64) *Meter {
	report := reporter(ctx)
	if report == nil {
		return nil
	}
	m := &Meter{report: report, what: what, unit: unit, began: time.Now()}
	m.total.Store(total)
	m.tell(0)
	return m
}

// Begin reports that a piece of work has begun of which nothing is counted.
func Begin(ctx context.Context, what string) { NewMeter(ctx, what, "", 0) }

// Add adds n to what is done, and reports it if the last report is a while ago, or if all is done.
func (m *Meter) Add(n int64) {
	if m == nil {
		return
	}
	done := m.done.Add(n)
	now, told := int64(time.Since(m.began)), m.told.Load()
	if done == m.total.Load() || now-told >= int64(meterStep) && m.told.CompareAndSwap(told, now) {
		m.tell(done)
	}
}

// Expect adds n to the total.
func (m *Meter) Expect(n int64) {
	if m != nil {
		m.total.Add(n)
	}
}

func (m *Meter) tell(done int64) {
	m.report(Work{What: m.what, Unit: m.unit, Done: done, Total: m.total.Load(), Elapsed: time.Since(m.began)})
}

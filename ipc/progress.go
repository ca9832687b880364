package ipc

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/dustin/go-humanize"
)

// EventProgress is the name of an event that tells how far a long operation is: a Progress. The answer follows as EventAnswer, or as EventError.
const (
	EventProgress = "progress"
	EventAnswer   = "answer" // the body of the answer
)

// Progress is how far a long piece of work is.
type Progress struct {
	What      string `json:"what"`            // what is done, as "files read"
	Unit      string `json:"unit,omitempty"`  // what is counted: files, bytes; "" if nothing is
	Done      int64  `json:"done,omitempty"`  // since the work began
	Total     int64  `json:"total,omitempty"` // 0 if it is not known
	ElapsedMS int64  `json:"elapsed_ms"`      // since the work began
}

// settled is how long a piece of work must have taken until its rate says something of the rest, in milliseconds.
const settled = 1000

// Words returns the progress for people: what is done, how much of it, how long the rest takes at this rate, and the rate.
func (p Progress) Words() string {
	words := p.What
	if p.Unit == "" || p.Done == 0 && p.Total == 0 {
		if p.ElapsedMS >= settled {
			words += fmt.Sprintf(", %s", (time.Duration(p.ElapsedMS) * time.Millisecond).Truncate(time.Second))
		}
		return words
	}
	amount := func(n int64) string { return humanize.Comma(n) }
	if p.Unit == "bytes" {
		amount = func(n int64) string { return humanize.IBytes(uint64(n)) }
	}
	words += ": " + amount(p.Done)
	if p.Total >= p.Done && p.Total > 0 {
		words += " of " + amount(p.Total)
	}
	if p.ElapsedMS < settled || p.Done == 0 {
		return words
	}
	rate := float64(p.Done) * 1000 / float64(p.ElapsedMS)
	if left := p.Total - p.Done; left > 0 { // before the rate, which a narrow terminal may cut off
		words += fmt.Sprintf(", %s left", max(time.Second, time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second)))
	}
	return words + ", " + amount(int64(rate)) + " a second"
}

type onProgressKey struct{}

// WithProgress returns a context whose requests ask for the progress of long operations, and call report with it. Short ones tell none.
func WithProgress(ctx context.Context, report func(Progress)) context.Context {
	return context.WithValue(ctx, onProgressKey{}, report)
}

// accepted returns what a request of ctx accepts as its answer.
func accepted(ctx context.Context) string {
	if _, ok := ctx.Value(onProgressKey{}).(func(Progress)); ok {
		return "application/json, text/event-stream"
	}
	return "application/json"
}

// followProgress reads the events of a long operation, and decodes its answer into out, which may be nil.
func (c *Client) followProgress(ctx context.Context, resp *http.Response, out any) error {
	report, _ := ctx.Value(onProgressKey{}).(func(Progress))
	for events := answerEvents(resp.Body); ; {
		ev, err := events.Next()
		if err != nil {
			return c.lost(ctx, err)
		}
		switch ev.Name {
		case EventProgress:
			var p Progress
			if err := unmarshalEvent(ev, &p); err != nil {
				return err
			}
			if report != nil {
				report(p)
			}
		case EventAnswer:
			if out == nil {
				return nil
			}
			return unmarshalEvent(ev, out)
		case EventError:
			var body ErrorBody
			if err := unmarshalEvent(ev, &body); err != nil {
				return err
			}
			return body.known()
		}
	}
}

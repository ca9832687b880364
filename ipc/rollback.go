package ipc

import (
	"context"
	"encoding/json"
	"net/http"

	"mulligan/errs"
)

// The names of the events in a rollback's stream.
const (
	EventStage  = "stage"  // a Stage, when it starts and when it ends
	EventResult = "result" // the RollbackResult; the last event
	EventError  = "error"  // an ErrorBody, if nothing was begun; the last event
)

// Rollback takes the app to a checkpoint. It calls onStage, unless nil, for each stage when it starts and when it ends. For a
// rollback that began and failed, it returns both the receipt and the error.
func (c *Client) Rollback(ctx context.Context, app string, id CheckpointID, req RollbackRequest, onStage func(Stage)) (RollbackResult, error) {
	p, err := appPath(app, nil, "checkpoints", string(id), "rollback")
	if err != nil {
		return RollbackResult{}, err
	}
	accept := "application/json"
	if onStage != nil {
		accept = "text/event-stream"
	}
	resp, err := c.send(ctx, http.MethodPost, p, accept, req)
	if err != nil {
		return RollbackResult{}, err
	}
	defer resp.Body.Close()
	if isEvents(resp) && onStage != nil {
		return c.follow(ctx, resp, onStage)
	}
	return readReceipt[RollbackResult](ctx, c, resp)
}

// receipt is the result of an operation that also comes if the operation began and failed. It then has the error, in the form of all other errors.
type receipt interface{ failure() *ErrorBody }

func (r RollbackResult) failure() *ErrorBody { return r.Error }
func (r CloneResult) failure() *ErrorBody    { return r.Error }

// readReceipt reads a result, which may come after events that tell the progress.
func readReceipt[T receipt](ctx context.Context, c *Client, resp *http.Response) (res T, err error) {
	switch {
	case isEvents(resp):
		err = c.followProgress(ctx, resp, &res)
	case isJSON(resp):
		err = c.decode(ctx, resp.Body, &res)
	default:
		err = refused(resp, nil)
	}
	if err != nil {
		return *new(T), err
	}
	if res.failure() != nil || resp.StatusCode >= 300 {
		return res, refused(resp, res.failure())
	}
	return res, nil
}

// follow reads the event stream of a rollback to its end.
func (c *Client) follow(ctx context.Context, resp *http.Response, onStage func(Stage)) (RollbackResult, error) {
	var res RollbackResult
	for events := answerEvents(resp.Body); ; {
		ev, err := events.Next()
		if err != nil {
			return res, c.lost(ctx, err)
		}
		switch ev.Name {
		case EventStage:
			var st Stage
			if err := unmarshalEvent(ev, &st); err != nil {
				return res, err
			}
			onStage(st)
		case EventResult:
			if err := unmarshalEvent(ev, &res); err != nil {
				return RollbackResult{}, err
			}
			if res.Error != nil {
				return res, res.Error.known()
			}
			return res, nil
		case EventError:
			var body ErrorBody
			if err := unmarshalEvent(ev, &body); err != nil {
				return res, err
			}
			return res, body.known()
		}
	}
}

func unmarshalEvent(ev Event, into any) error {
	if err := json.Unmarshal(ev.Data, into); err != nil {
		e := errs.New(errs.Internal, opAsk, "the daemon's %s event cannot be understood", ev.Name)
		e.Err = err
		return e
	}
	return nil
}

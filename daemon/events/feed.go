package events

import (
	"encoding/json"
	"sync"

	"mulligan/ipc"
)

// feed sends events of apps to subscribers. A slow subscriber loses events and does not delay an operation.
type feed struct {
	mu     sync.Mutex
	subs   map[chan ipc.Event]ipc.AppID
	closed bool
}

// Subscribe returns a channel of the app's events, closed when the daemon
// stops, and a function to end the subscription.
func (f *feed) Subscribe(app ipc.AppID) (<-chan ipc.Event, func()) {
	ch := make(chan ipc.Event, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		close(ch)
		return ch, func() {}
	}
	if f.subs == nil {
		f.subs = map[chan ipc.Event]ipc.AppID{}
	}
	f.subs[ch] = app
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, ch)
	}
}

func (f *feed) Publish(app ipc.AppID, name string, data any) {
	body, err := json.Marshal(data)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch, id := range f.subs {
		if id != app {
			continue
		}
		select {
		case ch <- ipc.Event{Name: name, Data: body}:
		default:
		}
	}
}

// CloseFeed ends all subscriptions.
func (f *feed) CloseFeed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for ch := range f.subs {
		close(ch)
		delete(f.subs, ch)
	}
}

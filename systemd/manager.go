package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"mulligan/errs"
)

// reconnectFor bounds how long a call tries to reconnect. A bus that is restarted answers well within it.
const reconnectFor = 5 * time.Second

// Options say which manager to connect to.
type Options struct {
	// User selects the calling user's own manager instead of the system's.
	User bool
	// Address is a D-Bus address ("unix:path=…") to use instead of the
	// usual one: a bus, or a manager's private socket.
	Address string
	// Root is where this process sees the manager's root folder: "" where both have the same.
	Root string
}

// Manager is a connection to one systemd. After the connection is lost, the next call makes a new one, and so do calls that
// were waiting.
type Manager struct {
	opts Options

	mu     sync.Mutex
	bus    *bus // nil before the first use and after Close
	closed bool
	held   map[string][]string // by unit: its triggers, which Stop has stopped
}

// Connect connects to a manager. If none answers, the error is of kind errs.Unavailable.
func Connect(ctx context.Context, opts Options) (*Manager, error) {
	m := &Manager{opts: opts, held: map[string][]string{}}
	if _, err := m.connection(ctx); err != nil {
		return nil, m.failure("connect to systemd", "", err)
	}
	return m, nil
}

// Close closes the connection. Jobs that were begun continue. Close may be called again.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.bus == nil {
		return nil
	}
	err := m.bus.conn.Close()
	m.bus = nil
	return err
}

// Unit returns the unit with this name, which must be valid (see ParseName). It does not ask the manager.
func (m *Manager) Unit(name string) *Service { return &Service{m: m, name: name} }

// HasOwnRoot reports whether the manager and its units see another root folder than this process.
func (m *Manager) HasOwnRoot() bool { return m.opts.Root != "" }

// Exists reports whether the manager has a file for the unit, or generated it. A masked unit exists.
func (m *Manager) Exists(ctx context.Context, name string) (bool, error) {
	var load string
	err := m.do(ctx, func(b *bus) error {
		path, err := b.load(ctx, name)
		if err != nil {
			return err
		}
		return b.get(ctx, path, unitIf, "LoadState", &load)
	})
	if err != nil {
		err = m.failure("look for unit", name, err)
		if errs.KindOf(err) == errs.NotFound {
			return false, nil
		}
		return false, err
	}
	return load != "not-found", nil
}

// Reload has the manager read its unit files again.
func (m *Manager) Reload(ctx context.Context) error {
	err := m.do(ctx, func(b *bus) error { return b.manager(ctx, "Reload").Err })
	if err != nil {
		return m.failure("reload systemd", "", err)
	}
	return nil
}

// do calls f with a connection. If the connection is lost meanwhile, do calls f again with a new one, so f must be repeatable.
func (m *Manager) do(ctx context.Context, f func(*bus) error) error {
	deadline := time.Now().Add(reconnectFor)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		b, err := m.connection(ctx)
		if err == nil {
			began := time.Now()
			err = f(b)
			if err == nil || !errors.Is(err, errLost) && !b.lost(err) {
				return err
			}
			m.forget(b)
			if time.Since(began) > reconnectFor { // the connection worked for a long time, so this is another loss
				deadline = time.Now().Add(reconnectFor)
			}
		}
		if errors.Is(err, errClosed) || time.Now().Add(wait).After(deadline) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

var errClosed = errors.New("the connection was closed")

// connection returns the open connection, or makes one.
func (m *Manager) connection(ctx context.Context) (*bus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errClosed
	}
	if m.bus != nil && m.bus.conn.Connected() {
		return m.bus, nil
	}
	var failed error
	for _, address := range m.opts.addresses() {
		b, err := dial(ctx, address)
		if err == nil {
			m.bus = b
			return b, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, failed
}

// forget closes a connection that failed.
func (m *Manager) forget(b *bus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bus == b {
		m.bus = nil
	}
	b.conn.Close()
}

// addresses lists the addresses to try, the usual one first. The manager's private socket answers also while the bus is down,
// but only to the manager's owner.
func (o Options) addresses() []string {
	if o.Address != "" {
		return []string{o.Address}
	}
	if !o.User {
		a := []string{"unix:path=/run/dbus/system_bus_socket"}
		if env := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"); env != "" {
			a[0] = env
		}
		if os.Geteuid() == 0 {
			a = append(a, "unix:path=/run/systemd/private")
		}
		return a
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = fmt.Sprintf("/run/user/%d", os.Geteuid())
	}
	a := []string{"unix:path=" + dir + "/bus"}
	if env := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); env != "" && env != a[0] {
		a = append(a, env)
	}
	return append(a, "unix:path="+dir+"/systemd/private")
}

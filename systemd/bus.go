package systemd

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names of systemd's D-Bus interface; see org.freedesktop.systemd1(5).
const (
	dest        = "org.freedesktop.systemd1"
	managerPath = "/org/freedesktop/systemd1"
	managerIf   = "org.freedesktop.systemd1.Manager."
	unitIf      = "org.freedesktop.systemd1.Unit"
	serviceIf   = "org.freedesktop.systemd1.Service"
	jobRemoved  = managerIf + "JobRemoved"
)

// bus is one connection to a manager. A lost connection is never reestablished: dial makes a new bus.
type bus struct {
	conn    *dbus.Conn
	private bool   // the manager itself is at the other end, not a bus
	owner   string // the manager's unique name, as dispatch last learned it

	mu    sync.Mutex
	waits map[*jobWait]struct{}
	kept  map[string]bool // units that the manager was asked to remember
}

// dialTimeout bounds a handshake with something that listens and says nothing.
const dialTimeout = 10 * time.Second

// dial connects to the manager that is reached through the bus at address, or
// that listens there itself. The connection outlives ctx.
func dial(ctx context.Context, address string) (*bus, error) {
	ctx, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	connCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	b, err := handshake(connCtx, address)
	if !stop() && err == nil {
		b.conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return b, nil
}

func handshake(ctx context.Context, address string) (*bus, error) {
	conn, err := dbus.Dial(address, dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		return nil, err
	}
	b := &bus{conn: conn, private: strings.HasSuffix(address, "/systemd/private"), waits: map[*jobWait]struct{}{}, kept: map[string]bool{}}
	if err := b.greet(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return b, nil
}

// greet authenticates, checks that a manager answers, and subscribes to its signals. On the manager's private socket there is
// no bus, and so no Hello call.
func (b *bus) greet(ctx context.Context) error {
	if err := b.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 16)
	b.conn.Signal(signals)
	go b.dispatch(signals)
	if !b.private {
		if err := b.conn.Hello(); err != nil {
			return err
		}
		err := b.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(dest),
			dbus.WithMatchInterface(strings.TrimSuffix(managerIf, ".")), dbus.WithMatchMember("JobRemoved"))
		if err != nil {
			return err
		}
	}
	return b.subscribe(ctx)
}

// nudge is the interval between pings to a manager that has not answered the first message.
const nudge = 20 * time.Millisecond

// subscribe asks for the manager's signals. On its private socket, systemd (seen with 252) leaves
// a message unread that arrives together with the end of the authentication, until another message
// comes. So subscribe sends pings until the call is answered.
func (b *bus) subscribe(ctx context.Context) error {
	manager := b.conn.Object(dest, managerPath)
	call := manager.GoWithContext(ctx, managerIf+"Subscribe", 0, make(chan *dbus.Call, 1))
	tick := time.NewTicker(nudge)
	defer tick.Stop()
	for {
		select {
		case <-call.Done:
			return call.Err
		case <-tick.C:
			if b.private {
				manager.GoWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", dbus.FlagNoReplyExpected, nil)
			}
		}
	}
}

// manager calls a method of the manager.
func (b *bus) manager(ctx context.Context, method string, args ...any) *dbus.Call {
	return b.conn.Object(dest, managerPath).CallWithContext(ctx, managerIf+method, 0, args...)
}

// load gives the object of a unit, and has the manager read its file if it hasn't yet.
func (b *bus) load(ctx context.Context, unit string) (dbus.ObjectPath, error) {
	var path dbus.ObjectPath
	err := b.manager(ctx, "LoadUnit", unit).Store(&path)
	return path, err
}

// keep asks the manager, once per connection, to keep the unit loaded. The manager otherwise unloads a unit that is down and
// that nothing refers to, and forgets how it went down. If the manager refuses, its answers tell less, which is not an error.
func (b *bus) keep(ctx context.Context, unit string) {
	b.mu.Lock()
	known := b.kept[unit]
	b.kept[unit] = true
	b.mu.Unlock()
	if !known {
		_ = b.manager(ctx, "RefUnit", unit).Err
	}
}

// release allows the manager to unload the unit again.
func (b *bus) release(ctx context.Context, unit string) {
	b.mu.Lock()
	known := b.kept[unit]
	delete(b.kept, unit)
	b.mu.Unlock()
	if known {
		_ = b.manager(ctx, "UnrefUnit", unit).Err // if the manager refuses, it refused RefUnit too
	}
}

// get reads one property into value, a pointer.
func (b *bus) get(ctx context.Context, path dbus.ObjectPath, iface, property string, value any) error {
	var v dbus.Variant
	call := b.conn.Object(dest, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, property)
	if err := call.Store(&v); err != nil {
		return err
	}
	return v.Store(value)
}

// lost reports whether err means that the connection is closed, so that a new connection may succeed.
func (b *bus) lost(err error) bool {
	if err == nil {
		return false
	}
	var de dbus.Error
	if errors.As(err, &de) {
		switch de.Name {
		case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Disconnected",
			"org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
			return true
		}
	}
	return !b.conn.Connected()
}

// dispatch passes each JobRemoved signal of the manager to all jobWaits.
func (b *bus) dispatch(signals <-chan *dbus.Signal) {
	for s := range signals {
		var (
			id           uint32
			job          dbus.ObjectPath
			unit, result string
		)
		if s.Name != jobRemoved || dbus.Store(s.Body, &id, &job, &unit, &result) != nil || !b.genuine(s.Sender) {
			continue
		}
		b.mu.Lock()
		for w := range b.waits {
			w.removed(job, result)
		}
		b.mu.Unlock()
	}
}

// genuine reports whether a signal's sender is the manager. On a bus, any process can send a signal to this one. The manager's
// unique name changes when the manager re-executes itself.
func (b *bus) genuine(sender string) bool {
	if b.private || sender == b.owner {
		return true
	}
	ctx, cancel := context.WithTimeout(b.conn.Context(), lookTimeout)
	defer cancel()
	call := b.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, dest)
	return call.Store(&b.owner) == nil && sender == b.owner
}

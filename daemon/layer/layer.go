// Package layer binds drivers to an app's layers (its files, the disks of its guest, its
// databases), and the unit that runs the app. A held-up layer does not affect the app's other
// layers.
package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/postgres"
	"mulligan/systemd"
)

// Setup is what an app consists of. It is immutable: an app that changes gets a new Setup.
type Setup struct {
	Rec    store.App
	Unit   systemd.Unit // nil: the app has none
	Layers []Layer

	servers []runningServer // a fork's own database servers
}

// Kind is the kind of a layer.
type Kind int

// The kinds of layers.
const (
	Files    Kind = iota // the workspace
	Disk                 // the disks of a guest
	Database             // one database
	Volume               // one volume of containers
)

// Layer is one layer of an app with the driver that is bound to it.
type Layer struct {
	Name   snap.Layer
	Kind   Kind
	Family string // "files", "sqlite", …
	About  string // the family and what else a person should know of it
	Driver snap.Driver
}

// Prefix returns the prefix of the layer's snapshot ids.
func (l Layer) Prefix() string { return [...]string{"fs-", "vm-", "db-", "vol-"}[l.Kind] }

// IsDB reports whether the layer is restored in the db-restore stage.
func (l Layer) IsDB() bool { return l.Kind == Database }

// ReplaysLog reports whether a comparison of the layer's states replays a log, which is slow.
func (l Layer) ReplaysLog() bool {
	d, ok := l.Driver.(*postgres.Driver)
	return ok && d.Mode() == postgres.Physical
}

// Layer returns the layer with this name.
func (s *Setup) Layer(name snap.Layer) (Layer, bool) {
	i := slices.IndexFunc(s.Layers, func(l Layer) bool { return l.Name == name })
	if i < 0 {
		return Layer{}, false
	}
	return s.Layers[i], true
}

// HostPart returns the unit that a capture stops unless it is asked to stop everything, or nil. A
// guest is not part of it: its filesystems are frozen for a moment instead.
func (s *Setup) HostPart() systemd.Unit {
	if m, ok := s.Unit.(*Machine); ok {
		return m.Host
	}
	return s.Unit
}

// OfGuest returns err, the error of reading the unit's state, as an error of the disk layer if the
// domain is what cannot be read.
func (s *Setup) OfGuest(ctx context.Context, err error) error {
	m, ok := s.Unit.(*Machine)
	l, disks := s.Layer(snap.Disk)
	if !ok || !disks {
		return err
	}
	if _, e := m.Vm.State(ctx); e == nil {
		return err
	}
	return &Error{l, err}
}

// With returns the setup with other drivers, in the order of the layers.
func (s *Setup) With(drivers []snap.Driver) *Setup {
	next := *s
	next.Layers = slices.Clone(s.Layers)
	for i, driver := range drivers {
		next.Layers[i].Driver = driver
	}
	return &next
}

// HeldWords returns which layers are held up and why, one phrase each.
func (s *Setup) HeldWords() (list []string) {
	for _, l := range s.Layers {
		if h, ok := l.Driver.(*Held); ok {
			list = append(list, fmt.Sprintf("%s cannot be used yet: %s", l.Name, errs.Words(h.Why)))
		}
	}
	return list
}

// Adopt takes over the drivers of the old setup that work in the background, for databases that
// did not change: two such drivers of one database would disturb each other.
func (s *Setup) Adopt(old *Setup) {
	for i, l := range s.Layers {
		if _, ok := l.Driver.(snap.Maintainer); !ok {
			continue
		}
		same := func(dbs []ipc.Database) int {
			return slices.IndexFunc(dbs, func(db ipc.Database) bool { return DbLayer(db) == l.Name })
		}
		was, is := same(old.Rec.Databases), same(s.Rec.Databases)
		at := slices.IndexFunc(old.Layers, func(o Layer) bool { return o.Name == l.Name })
		if at >= 0 && was >= 0 && is >= 0 && old.Rec.Databases[was] == s.Rec.Databases[is] && sameServer(old.Rec, s.Rec, s.Rec.Databases[is]) {
			s.Layers[i].Driver = old.Layers[at].Driver
		}
	}
}

// Close closes the app's drivers.
func (s *Setup) Close() error {
	var all []error
	for _, l := range s.Layers {
		if c, ok := l.Driver.(io.Closer); ok {
			all = append(all, c.Close())
		}
	}
	if c, ok := s.Unit.(*Containers); ok {
		all = append(all, c.Close())
	}
	for _, p := range s.servers {
		all = append(all, p.Close())
	}
	return errors.Join(all...)
}

// Error is the error of one layer that cannot be captured, compared or switched.
type Error struct {
	Layer Layer
	Err   error
}

func (e *Error) Error() string { return string(e.Layer.Name) + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Unreadable reports whether err means that a live state is damaged and cannot be read. Other
// errors are: the state changes, another process locks it, access is denied, the caller cancelled,
// or the disk is full.
func Unreadable(err error) bool {
	for _, passing := range []error{snap.ErrChanged, context.Canceled, context.DeadlineExceeded, unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, passing) {
			return false
		}
	}
	switch errs.KindOf(err) {
	case errs.Invalid, errs.NotFound, errs.Conflict, errs.Corrupt, errs.Unsupported, errs.Unavailable, errs.Failed:
		return true
	}
	return false
}

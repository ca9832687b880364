package daemon

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

// setup is what an app consists of. It never changes: a changed app gets another.
type setup struct {
	rec    store.App
	unit   systemd.Unit // nil: it has none
	layers []layer
}

// kind is which sort of thing a layer is.
type kind int

// The kinds of layers.
const (
	kindFiles    kind = iota // the workspace
	kindDisk                 // the disks of a guest
	kindDatabase             // one database
)

// layer is one layer of an app with the driver that is bound to it.
type layer struct {
	name   snap.Layer
	kind   kind
	family string // "files", "sqlite", …
	about  string // the family and what else a person should know of it
	driver snap.Driver
}

// prefix begins the ids of the layer's snapshots.
func (l layer) prefix() string { return [...]string{"fs-", "vm-", "db-"}[l.kind] }

// isDB reports whether the layer is restored in the db-restore stage.
func (l layer) isDB() bool { return l.kind == kindDatabase }

// replaysLog reports whether the layer is a cluster whose states are compared by replaying its log,
// which takes long.
func (l layer) replaysLog() bool {
	d, ok := l.driver.(*postgres.Driver)
	return ok && d.Mode() == postgres.Physical
}

// layer finds a layer by its name.
func (s *setup) layer(name snap.Layer) (layer, bool) {
	i := slices.IndexFunc(s.layers, func(l layer) bool { return l.name == name })
	if i < 0 {
		return layer{}, false
	}
	return s.layers[i], true
}

// hostPart is what of the app a capture stops when it is not asked to stop
// everything: a guest's filesystems are frozen for a moment instead. nil: nothing.
func (s *setup) hostPart() systemd.Unit {
	if m, ok := s.unit.(*machine); ok {
		return m.host
	}
	return s.unit
}

// ofGuest returns err, with which the app's unit was looked at, as an error of the layer of its
// domain where it is the domain that cannot be looked at.
func (s *setup) ofGuest(ctx context.Context, err error) error {
	m, ok := s.unit.(*machine)
	l, disks := s.layer(snap.Disk)
	if !ok || !disks {
		return err
	}
	if _, e := m.vm.State(ctx); e == nil {
		return err
	}
	return &captureError{l, err}
}

// with returns the setup with other drivers, in the order of the layers.
func (s *setup) with(drivers []snap.Driver) *setup {
	next := *s
	next.layers = slices.Clone(s.layers)
	for i, driver := range drivers {
		next.layers[i].driver = driver
	}
	return &next
}

// heldWords says which layers are held up, and why.
func (s *setup) heldWords() (list []string) {
	for _, l := range s.layers {
		if h, ok := l.driver.(*heldUp); ok {
			list = append(list, fmt.Sprintf("%s cannot be used yet: %s", l.name, errs.Words(h.why)))
		}
	}
	return list
}

// adopt takes over the drivers of an earlier setup that work in the background
// for databases that are still the same: two at one thing would disturb each other.
func (s *setup) adopt(old *setup) {
	for i, l := range s.layers {
		if _, ok := l.driver.(snap.Maintainer); !ok {
			continue
		}
		same := func(dbs []ipc.Database) int {
			return slices.IndexFunc(dbs, func(db ipc.Database) bool { return dbLayer(db) == l.name })
		}
		was, is := same(old.rec.Databases), same(s.rec.Databases)
		at := slices.IndexFunc(old.layers, func(o layer) bool { return o.name == l.name })
		if at >= 0 && was >= 0 && is >= 0 && old.rec.Databases[was] == s.rec.Databases[is] {
			s.layers[i].driver = old.layers[at].driver
		}
	}
}

// close lets go of what an app's drivers hold open.
func (s *setup) close() error {
	var all []error
	for _, l := range s.layers {
		if c, ok := l.driver.(io.Closer); ok {
			all = append(all, c.Close())
		}
	}
	return errors.Join(all...)
}

// captureError is the failed capture of one layer.
type captureError struct {
	layer layer
	err   error
}

func (e *captureError) Error() string { return string(e.layer.name) + ": " + e.err.Error() }

func (e *captureError) Unwrap() error { return e.err }

// unreadable reports whether err says that a live state cannot be read as it lies there:
// not that it moved, that somebody has it, that nobody may or wants to read it any more,
// or that there is no room for it.
func unreadable(err error) bool {
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

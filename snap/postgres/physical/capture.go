package physical

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
)

// Capture writes a marker into the log. The snapshot has everything that was committed before the call, and nothing that is
// committed after the return.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture cluster"
	if !database.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	var m marker
	var warnings []string
	first := false
	err := d.Do(ctx, op, func() (err error) {
		m, warnings, err = d.capture(ctx, req)
		first = errors.As(err, new(noBase))
		if first {
			return nil
		}
		return err
	})
	if err == nil && first {
		m, warnings, err = d.captureFirst(ctx, op, req)
	}
	if err != nil {
		return snap.Snapshot{}, err
	}
	return snap.Snapshot{
		ID: m.ID, Driver: driverName, Position: fmt.Sprintf("%d:%s", m.TLI, m.LSN),
		Quiesced: m.Quiesced, Created: m.Created, Warnings: warnings,
	}, nil
}

// captureFirst captures a cluster that has no base backup from which the marker can be replayed: at the first capture, after
// all base backups were deleted, and after the server removed log that was not copied. Like Sweep, it acquires the lock of
// bases before the lock of Do.
func (d *Driver) captureFirst(ctx context.Context, op string, req snap.CaptureRequest) (m marker, warnings []string, err error) {
	d.bases.taking.Lock()
	defer d.bases.taking.Unlock()
	err = d.Do(ctx, op, func() (err error) {
		if m, warnings, err = d.capture(ctx, req); !errors.As(err, new(noBase)) {
			return err // another call took a base backup meanwhile
		}
		if _, err = d.present(ctx); err == nil { // replaces a slot that the server gave up
			err = d.bases.takeLocked(ctx)
		}
		if err == nil {
			m, warnings, err = d.capture(ctx, req)
		}
		return err
	})
	return m, warnings, err
}

// noBase is the error of a capture whose marker cannot be replayed from any base backup.
type noBase struct{ error }

func (e noBase) Unwrap() error { return e.error }

// capture writes the marker into the log and records it. It returns noBase if the marker cannot be replayed from any base
// backup.
func (d *Driver) capture(ctx context.Context, req snap.CaptureRequest) (marker, []string, error) {
	if err := d.cfg.Failpoint.At("capture: mark"); err != nil {
		return marker{}, nil, err
	}
	m, warnings, err := d.marks.mark(ctx)
	if errs.KindOf(err) == errs.Unavailable {
		if err = d.server.revive(ctx, req.Revive, err, d.records.clusters()); err == nil {
			m, warnings, err = d.marks.mark(ctx)
			warnings = append(warnings, "The server was down, and was started.")
		}
	}
	if err != nil {
		return marker{}, nil, err
	}
	m.Conf, err = d.marks.survey(ctx, m)
	if errs.KindOf(err) == errs.Corrupt {
		return marker{}, nil, noBase{err}
	}
	if err != nil {
		return marker{}, nil, err
	}
	m.ID, m.Quiesced, m.Created = req.ID, req.Quiesced, time.Now().UTC()
	if err := errors.Join(ctx.Err(), d.cfg.Failpoint.At("capture: record")); err != nil {
		return marker{}, nil, err
	}
	return m, warnings, d.records.put("markers", string(m.ID), m)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

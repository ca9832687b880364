package physical

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// Capture puts a marker into the log. What was committed before the call is in
// the snapshot; what is committed after the return is not.
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

// captureFirst captures a cluster without a base that the marker can be reached from: the first capture, and one after all
// bases were deleted. Like Sweep, it takes the lock of bases before the lock that Do holds.
func (d *Driver) captureFirst(ctx context.Context, op string, req snap.CaptureRequest) (m marker, warnings []string, err error) {
	d.bases.taking.Lock()
	defer d.bases.taking.Unlock()
	err = d.Do(ctx, op, func() (err error) {
		if m, warnings, err = d.capture(ctx, req); !errors.As(err, new(noBase)) {
			return err // another call took a base meanwhile
		}
		if err = d.bases.takeLocked(ctx); err == nil {
			m, warnings, err = d.capture(ctx, req)
		}
		return err
	})
	return m, warnings, err
}

// noBase is the error of a capture whose marker no base reaches.
type noBase struct{ error }

func (e noBase) Unwrap() error { return e.error }

// capture puts the marker into the log and records it. It returns noBase if no base reaches the marker.
func (d *Driver) capture(ctx context.Context, req snap.CaptureRequest) (marker, []string, error) {
	if err := d.cfg.Failpoint.At("capture: mark"); err != nil {
		return marker{}, nil, err
	}
	m, warnings, err := d.mark(ctx)
	if errs.KindOf(err) == errs.Unavailable {
		if err = d.server.revive(ctx, req.Revive, err); err == nil {
			m, warnings, err = d.mark(ctx)
			warnings = append(warnings, "The server was down, and was started.")
		}
	}
	if err != nil {
		return marker{}, nil, err
	}
	m.Conf, err = d.survey(ctx, m)
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

// markSQL puts a named restore point into the log, and commits a transaction
// with a number of its own: that flushes the log up to it, also on a cluster
// with synchronous_commit = off. Columns are evaluated from left to right.
const markSQL = `SELECT pg_current_wal_insert_lsn()::text, (txid_current() & 4294967295)::bigint, pg_create_restore_point('%s')::text,
	pg_walfile_name(pg_current_wal_insert_lsn()), current_setting('archive_mode') <> 'off', current_setting('fsync')::bool,
	pg_size_bytes(current_setting('wal_segment_size')), (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM pg_tablespace WHERE oid NOT IN (1663, 1664)),
	(SELECT last_failed_wal FROM pg_stat_archiver WHERE last_failed_time > coalesce(last_archived_time, '-infinity')),
	(SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = '` + slot + `'), (SELECT system_identifier::text FROM pg_control_system())`

// mark makes a marker. Its part of the log is on the disk when this returns, and
// the server keeps it there until it is in the archive; the warnings say where
// it is not so.
func (d *Driver) mark(ctx context.Context) (m marker, warnings []string, err error) {
	if d.idle.Conn != nil {
		if m, warnings, err = d.markOn(ctx, d.idle); err == nil || !d.idle.IsClosed() {
			return m, warnings, err
		}
	}
	if d.idle, err = d.server.connect(ctx); err != nil { // the first time, or the server was restarted
		return m, nil, err
	}
	return d.markOn(ctx, d.idle)
}

func (d *Driver) markOn(ctx context.Context, c conn) (m marker, warnings []string, err error) {
	m.Point = "mulligan-" + randomHex(12)
	var (
		name             string
		archiving, fsync bool
		prepared, spaces int
		failing, kept    *string
		xid              int64
	)
	err = c.row(ctx, fmt.Sprintf(markSQL, m.Point), &m.Start, &xid, &m.LSN, &name, &archiving, &fsync,
		&m.segments, &prepared, &spaces, &failing, &kept, &m.system)
	if err != nil {
		return m, nil, err
	}
	m.XID = uint32(xid)
	if m.TLI, err = wal.ParseTimeline(name); err != nil {
		return m, nil, err
	}
	switch {
	case spaces > 0:
		return m, nil, errs.New(errs.Unsupported, "", "the cluster has a tablespace outside its data folder, which all copies would share").
			WithHint("drop the tablespace, or use mode = logical")
	case !archiving && kept == nil:
		return m, nil, errs.New(errs.Conflict, "", "nothing keeps the log of the cluster").WithHint("enable physical mode for it again")
	case kept != nil && *kept == "lost":
		return m, nil, errs.New(errs.Corrupt, "", "the server dropped log that was not copied yet, as max_slot_wal_keep_size has it").
			WithHint("set it to -1, and let a new base be taken")
	}
	if failing != nil {
		warnings = append(warnings, fmt.Sprintf("The server fails to archive its log (%s): until that is mended, the snapshot rests on the data folder alone.", *failing))
	}
	if !fsync {
		warnings = append(warnings, "The server runs with fsync = off, so a power cut may cost the snapshot.")
	}
	if prepared > 0 {
		warnings = append(warnings, fmt.Sprintf("%d prepared transactions are part of the snapshot and come back with it.", prepared))
	}
	var notes []string
	if err := d.records.get(".", "notes", &notes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, nil, err
	}
	return m, append(warnings, notes...), nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// survey looks at the base that m rests on, and keeps the configuration that is in
// the data folder, once for equal ones. It gives the name that this has.
func (d *Driver) survey(ctx context.Context, m marker) (conf string, err error) {
	known := d.conf
	if _, err := os.Lstat(filepath.Join(d.cfg.StateDir, "conf", known+".json")); err != nil {
		known = "" // it was swept
	}
	_, found, err := d.bases.find(ctx, m, m.segments, &known)
	if err != nil || found.Same {
		return known, err
	}
	files := map[string][]byte{}
	for _, name := range asowner.Configured {
		if data, ok := found.Conf[name]; ok {
			files[name] = data
		}
	}
	d.conf = asowner.ConfDigest(files)
	if err := d.records.get("conf", d.conf, &files); !errors.Is(err, fs.ErrNotExist) {
		return d.conf, err
	}
	return d.conf, d.records.put("conf", d.conf, files)
}

// age is for logs.
func age(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }

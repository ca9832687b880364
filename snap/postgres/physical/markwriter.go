package physical

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// markWriter writes markers into the log of the running server. It keeps its connection, because connecting would take most of
// a capture's time. It also finds the base backup of a marker. It is not safe for concurrent use: callers hold the lock of Do.
type markWriter struct {
	server  *server
	records *records
	bases   *bases

	idle session.Conn // the connection; it may be broken
	conf string       // name of the configuration that was recorded last, or ""
}

// markSQL writes a named restore point into the log, and commits a transaction with a transaction id. The commit flushes the
// log up to the restore point even on a cluster with synchronous_commit = off. Columns are evaluated from left to right.
const markSQL = `SELECT pg_current_wal_insert_lsn()::text, (txid_current() & 4294967295)::bigint, pg_create_restore_point('%s')::text,
	pg_walfile_name(pg_current_wal_insert_lsn()), current_setting('archive_mode') <> 'off', current_setting('fsync')::bool,
	pg_size_bytes(current_setting('wal_segment_size')), (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM pg_tablespace WHERE oid NOT IN (1663, 1664)),
	(SELECT last_failed_wal FROM pg_stat_archiver WHERE last_failed_time > coalesce(last_archived_time, '-infinity')),
	(SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = '` + slot + `'), (SELECT system_identifier::text FROM pg_control_system())`

// mark writes a marker. When it returns, the marker's part of the log is on the disk, and the server keeps it until it is in
// the archive. If the server may lose it, the warnings say so.
func (w *markWriter) mark(ctx context.Context) (m marker, warnings []string, err error) {
	if w.idle.Conn != nil {
		if m, warnings, err = w.markOn(ctx, w.idle); err == nil || !w.idle.IsClosed() {
			return m, warnings, err
		}
	}
	if w.idle, err = w.server.connect(ctx); err != nil { // the first time, or the server was restarted
		return m, nil, err
	}
	return w.markOn(ctx, w.idle)
}

// markOn writes a marker over the connection c.
func (w *markWriter) markOn(ctx context.Context, c session.Conn) (m marker, warnings []string, err error) {
	m.Point = "mulligan-" + randomHex(12)
	var (
		name             string
		archiving, fsync bool
		prepared, spaces int
		failing, kept    *string
		xid              int64
	)
	err = c.Row(ctx, fmt.Sprintf(markSQL, m.Point), &m.Start, &xid, &m.LSN, &name, &archiving, &fsync,
		&m.segments, &prepared, &spaces, &failing, &kept, &m.system)
	if err != nil {
		return m, nil, err
	}
	if err := w.records.clusters().Check(m.system); err != nil {
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
		return m, nil, errs.New(errs.Conflict, "", "neither a replication slot nor archive_command keeps the log of the cluster").WithHint("enable physical mode for it again")
	case kept != nil && *kept == "lost":
		return m, nil, noBase{errs.New(errs.Corrupt, "", "the server removed log that was not copied yet, because of max_slot_wal_keep_size").
			WithHint("raise it, or set it to -1, and try again")}
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
	if err := w.records.get(".", "notes", &notes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, nil, err
	}
	return m, append(warnings, notes...), nil
}

// survey finds the base backup of m, and records the configuration in the data folder, unless an equal one is recorded. It
// returns the name of the recorded configuration.
func (w *markWriter) survey(ctx context.Context, m marker) (conf string, err error) {
	known := w.conf
	if _, err := os.Lstat(filepath.Join(w.records.dir, "conf", known+".json")); err != nil {
		known = "" // sweepConf removed it
	}
	_, found, err := w.bases.find(ctx, m, m.segments, &known)
	if err != nil || found.Same {
		return known, err
	}
	w.conf, err = w.records.keepConf(found.Conf)
	return w.conf, err
}

// hangUp ends the connection that captures use.
func (w *markWriter) hangUp() {
	if w.idle.Conn != nil {
		w.idle.Close()
		w.idle = session.Conn{}
	}
}

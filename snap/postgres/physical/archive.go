package physical

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/session"
	"mulligan/snap/postgres/physical/wal"
)

// archive keeps the cluster's log in the store: finished files, which the server archives or the driver copies, and the written
// part of unfinished files. It also reads the log, both in the store and in the server's folder.
type archive struct {
	cluster  string // name of the cluster
	store    *store
	programs pgserver.Programs
	log      *slog.Logger
}

// command returns the archive_command, which the server runs for each finished log file. It does not need the daemon, may be
// interrupted and repeated at any point, and replaces no file. It succeeds only when the same bytes are on the disk. The zeros
// at the end of a file that was ended early take no space.
func (a *archive) command() string {
	return fmt.Sprintf(`d='%s'; { test -e "$d/%%f" || { cp --sparse=always %%p "$d/.new.%%f" && sync "$d/.new.%%f" && mv -n "$d/.new.%%f" "$d/%%f"; }; } && `+
		`cmp %%p "$d/%%f" && rm -f "$d/.new.%%f" && sync "$d"`, a.store.Archive())
}

// restoreCommand returns the restore_command of a fork. It looks for finished log files first, then for files that only the
// live server has, and then for the saved part of unfinished files. Histories are read only from the archive, which has all of
// them.
func (a *archive) restoreCommand() string {
	return fmt.Sprintf("cp '%[1]s/%%f' %%p 2>/dev/null || case %%f in *.history) false;; *) cp '%[1]s/%%f%[3]s' %%p 2>/dev/null || cp '%[2]s/pg_wal/%%f' %%p 2>/dev/null || cp '%[1]s/%%f.partial' %%p 2>/dev/null;; esac",
		a.store.Archive(), a.store.Data, asowner.Linked)
}

// historyCommand returns the restore_command of a fork that replays only the log in its own folder. The histories keep it from taking a
// timeline that exists.
func (a *archive) historyCommand() string {
	return fmt.Sprintf("case %%f in *.history) cp '%s/%%f' %%p 2>/dev/null;; *) false;; esac", a.store.Archive())
}

// filledBy reports whether the server itself archives its log into the store.
func (a *archive) filledBy(f facts) bool {
	return f.ArchiveMode != "off" && f.ArchiveLibrary == "" && f.ArchiveCommand == a.command()
}

// slot is the name of the replication slot. If the server does not fill the archive, the slot keeps the server from removing
// log files that the driver has not copied.
const slot = "mulligan"

const (
	makeSlot    = "SELECT pg_create_physical_replication_slot('" + slot + "', true) WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '" + slot + "')"
	dropSlot    = "SELECT pg_drop_replication_slot('" + slot + "')"
	slotLost    = "EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '" + slot + "' AND wal_status = 'lost')"
	advanceSlot = "SELECT pg_replication_slot_advance('" + slot + "', '%[1]s') FROM pg_replication_slots WHERE slot_name = '" + slot + "' AND restart_lsn < '%[1]s'"
)

// collect copies the log files of the live server that the archive lacks. If the server does not fill the archive, collect then
// advances the replication slot, or makes another one in the place of one that the server gave up.
func (a *archive) collect(ctx context.Context, c session.Conn, f facts) error {
	var current string
	var flushed wal.LSN
	var lost bool
	if err := c.Row(ctx, "SELECT pg_walfile_name(pg_current_wal_flush_lsn()), pg_current_wal_flush_lsn()::text, "+slotLost, &current, &flushed, &lost); err != nil {
		return err
	}
	if !wal.IsSegment(current) {
		return fmt.Errorf("the server's log file is called %.40q", current)
	}
	if err := a.save(ctx, asowner.LogToSave{Wal: a.store.WAL(), End: current}); err != nil {
		return fmt.Errorf("copy the log: %w", err)
	}
	start := wal.LSN(f.Segments.Number(flushed) * uint64(f.Segments))
	switch filled := a.filledBy(f); {
	case f.Slot && filled:
		return c.Run(ctx, dropSlot)
	case lost:
		return c.Run(ctx, dropSlot+"; "+makeSlot)
	case f.Slot:
		return c.Run(ctx, fmt.Sprintf(advanceSlot, start))
	case !filled:
		return c.Run(ctx, makeSlot)
	}
	return nil
}

// save copies log into the archive.
func (a *archive) save(ctx context.Context, s asowner.LogToSave) error {
	s.Archive = a.store.Archive()
	_, err := asowner.SaveLog.Call(ctx, a.store.owner, s)
	return err
}

// saveEnd saves all of the log of a stopped server, so that its folder may be removed.
func (a *archive) saveEnd(ctx context.Context, dir string, c pgserver.Control) error {
	end := c.Segments.Name(c.TLI, c.Segments.Number(c.Checkpoint))
	s := asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), End: end, Until: end}
	if c.State != pgserver.ShutDown { // the server crashed, so files after its last checkpoint may be finished or not
		s.Until = end[:8] + strings.Repeat("F", len(end)-8)
	}
	return a.save(ctx, s)
}

// history returns the legs of the history of timeline t.
func (a *archive) history(ctx context.Context, t wal.Timeline) ([]wal.Leg, error) {
	data, err := asowner.History.Call(ctx, a.store.owner, asowner.HistoryQuery{Home: a.store.Home, TLI: t})
	if err != nil {
		return nil, err
	}
	return wal.LegsOf(t, data)
}

// saveAll copies all log that was written until now, because the remaining snapshots need it.
func (a *archive) saveAll(ctx context.Context, c session.Conn, f facts) error {
	if _, err := os.Lstat(a.store.Archive()); errors.Is(err, fs.ErrNotExist) {
		return nil // physical mode was never enabled
	}
	if err := c.Run(ctx, "SELECT pg_switch_wal()"); err != nil {
		return err
	}
	if _, err := c.Barrier(ctx); err != nil { // writes a record into the next file, so that the present file counts as finished
		return err
	}
	return a.collect(ctx, c, f)
}

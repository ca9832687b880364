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

// archive keeps the cluster's log in the store: finished files that the server archives there or that the driver copies,
// and what was written of unfinished ones. It also reads log, wherever that is: in the store, or with the server yet.
type archive struct {
	cluster  string // its name
	store    *store
	programs pgserver.Programs
	log      *slog.Logger
}

// command is what the server runs for each finished log file. It needs
// nothing of the daemon, may be cut and repeated anywhere, replaces nothing, and
// succeeds only when the file is on the disk, the same byte for byte. The zeros
// that fill a file which was ended early take no space.
func (a *archive) command() string {
	return fmt.Sprintf(`d='%s'; { test -e "$d/%%f" || { cp --sparse=always %%p "$d/.new.%%f" && sync "$d/.new.%%f" && mv -n "$d/.new.%%f" "$d/%%f"; }; } && `+
		`cmp %%p "$d/%%f" && rm -f "$d/.new.%%f" && sync "$d"`, a.store.Archive())
}

// restoreCommand serves a fork: finished log files, then those that only the
// live server has yet, then what was saved of unfinished ones. Histories come
// from the archive alone, which has them all.
func (a *archive) restoreCommand() string {
	return fmt.Sprintf("cp '%[1]s/%%f' %%p 2>/dev/null || case %%f in *.history) false;; *) cp '%[1]s/%%f%[3]s' %%p 2>/dev/null || cp '%[2]s/pg_wal/%%f' %%p 2>/dev/null || cp '%[1]s/%%f.partial' %%p 2>/dev/null;; esac",
		a.store.Archive(), a.store.Data, asowner.Linked)
}

// filledBy reports whether the server itself fills the archive.
func (a *archive) filledBy(f facts) bool {
	return f.ArchiveMode != "off" && f.ArchiveLibrary == "" && f.ArchiveCommand == a.command()
}

// slot is the name of the replication slot that keeps the server from dropping
// log files that we have not copied, where it does not fill the archive itself.
const slot = "mulligan"

const (
	makeSlot    = "SELECT pg_create_physical_replication_slot('" + slot + "', true)"
	dropSlot    = "SELECT pg_drop_replication_slot('" + slot + "')"
	advanceSlot = "SELECT pg_replication_slot_advance('" + slot + "', '%[1]s') FROM pg_replication_slots WHERE slot_name = '" + slot + "' AND restart_lsn < '%[1]s'"
)

// collect copies what the archive lacks of the live server's log, and lets the
// slot go on behind it.
func (a *archive) collect(ctx context.Context, c session.Conn, f facts) error {
	var current string
	var flushed wal.LSN
	if err := c.Row(ctx, "SELECT pg_walfile_name(pg_current_wal_flush_lsn()), pg_current_wal_flush_lsn()::text", &current, &flushed); err != nil {
		return err
	}
	if !wal.IsSegment(current) {
		return fmt.Errorf("the server's log file is called %.40q", current)
	}
	if err := a.save(ctx, asowner.LogToSave{Wal: a.store.WAL(), End: current}); err != nil {
		return fmt.Errorf("copy the log: %w", err)
	}
	switch start := wal.LSN(f.Segments.Number(flushed) * uint64(f.Segments)); {
	case f.Slot && a.filledBy(f):
		return c.Run(ctx, dropSlot)
	case f.Slot:
		return c.Run(ctx, fmt.Sprintf(advanceSlot, start))
	case !a.filledBy(f):
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

// saveEnd saves all of the log of a stopped server, so that its folder may go.
func (a *archive) saveEnd(ctx context.Context, dir string, c pgserver.Control) error {
	end := c.Segments.Name(c.TLI, c.Segments.Number(c.Checkpoint))
	s := asowner.LogToSave{Wal: filepath.Join(dir, "pg_wal"), End: end, Until: end}
	if c.State != pgserver.ShutDown { // it died: what lies behind its last checkpoint may be finished or not
		s.Until = end[:8] + strings.Repeat("F", len(end)-8)
	}
	return a.save(ctx, s)
}

// history reads how timeline t came about.
func (a *archive) history(ctx context.Context, t wal.Timeline) ([]wal.Leg, error) {
	data, err := asowner.History.Call(ctx, a.store.owner, asowner.HistoryQuery{Home: a.store.Home, TLI: t})
	if err != nil {
		return nil, err
	}
	return wal.LegsOf(t, data)
}

// saveAll copies all log that was written until now: the snapshots that stay need it.
func (a *archive) saveAll(ctx context.Context, c session.Conn, f facts) error {
	if _, err := os.Lstat(a.store.Archive()); errors.Is(err, fs.ErrNotExist) {
		return nil // it never was enabled
	}
	if err := c.Run(ctx, "SELECT pg_switch_wal()"); err != nil {
		return err
	}
	if _, err := c.Barrier(ctx); err != nil { // something in the next file, so that this one counts as finished
		return err
	}
	return a.collect(ctx, c, f)
}

package physical

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

// archiveCommand is what the server runs for each finished log file. It needs
// nothing of the daemon, may be cut and repeated anywhere, replaces nothing, and
// succeeds only when the file is on the disk, the same byte for byte. The zeros
// that fill a file which was ended early take no space.
func (d *Driver) archiveCommand() string {
	return fmt.Sprintf(`d='%s'; { test -e "$d/%%f" || { cp --sparse=always %%p "$d/.new.%%f" && sync "$d/.new.%%f" && mv -n "$d/.new.%%f" "$d/%%f"; }; } && `+
		`cmp %%p "$d/%%f" && rm -f "$d/.new.%%f" && sync "$d"`, d.archive())
}

// restoreCommand serves a fork: finished log files, then those that only the
// live server has yet, then what was saved of unfinished ones. Histories come
// from the archive alone, which has them all.
func (d *Driver) restoreCommand() string {
	return fmt.Sprintf("cp '%[1]s/%%f' %%p 2>/dev/null || case %%f in *.history) false;; *) cp '%[1]s/%%f%[3]s' %%p 2>/dev/null || cp '%[2]s/pg_wal/%%f' %%p 2>/dev/null || cp '%[1]s/%%f.partial' %%p 2>/dev/null;; esac",
		d.archive(), d.cfg.DataDir, linked)
}

// archives reports whether the server itself fills our archive.
func (d *Driver) archives(f facts) bool {
	return f.ArchiveMode != "off" && f.ArchiveLibrary == "" && f.ArchiveCommand == d.archiveCommand()
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
func (d *Driver) collect(ctx context.Context, c conn, f facts) error {
	var current string
	var flushed lsn
	if err := c.row(ctx, "SELECT pg_walfile_name(pg_current_wal_flush_lsn()), pg_current_wal_flush_lsn()::text", &current, lsnText{&flushed}); err != nil {
		return err
	}
	if !isSegment(current) {
		return fmt.Errorf("the server's log file is called %.40q", current)
	}
	if err := d.saveLog(ctx, logToSave{Wal: d.home().wal(), End: current}); err != nil {
		return fmt.Errorf("copy the log: %w", err)
	}
	switch start := lsn(f.Segments.number(flushed) * uint64(f.Segments)); {
	case f.Slot && d.archives(f):
		return c.exec(ctx, dropSlot)
	case f.Slot:
		return c.exec(ctx, fmt.Sprintf(advanceSlot, start))
	case !d.archives(f):
		return c.exec(ctx, makeSlot)
	}
	return nil
}

// lsnText scans a place in the log.
type lsnText struct{ to *lsn }

// Scan implements sql.Scanner.
func (l lsnText) Scan(v any) (err error) {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("%v is not a place in the log", v)
	}
	*l.to, err = parseLSN(s)
	return err
}

// logToSave says what of a pg_wal folder the archive is to have.
type logToSave struct {
	Wal, Archive string
	History      string // a history that must be there, and is copied before all else
	// End is a log file: those before it on its timeline are finished, and copied.
	End string
	// Those from End to Until, which may be "", are saved as far as they were written.
	Until string
}

func (d *Driver) saveLog(ctx context.Context, s logToSave) error {
	s.Archive = d.archive()
	_, err := saveLogAsOwner.Call(ctx, d.owner, s)
	return err
}

// save copies what the archive lacks: histories, and log files.
func (s logToSave) save(ctx context.Context) error {
	if s.History != "" {
		if err := copyDurably(filepath.Join(s.Wal, s.History), filepath.Join(s.Archive, s.History), false); err != nil {
			return err
		}
	}
	list, err := names(s.Wal)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(s.Archive, name)); err == nil {
			continue
		}
		here := isSegment(name) && name[:8] == s.End[:8]
		switch {
		case isHistory(name) || here && name < s.End:
			err = copyDurably(filepath.Join(s.Wal, name), filepath.Join(s.Archive, name), false)
		case here && name <= s.Until:
			err = copyDurably(filepath.Join(s.Wal, name), filepath.Join(s.Archive, name+".partial"), true)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the server may have dropped or renamed it
			return err
		}
	}
	return nil
}

// copyDurably makes a copy that is there wholly or not at all. Without replace,
// one that is there already stays.
func copyDurably(src, dst string, replace bool) (err error) {
	tmp := filepath.Join(filepath.Dir(dst), ".copy."+filepath.Base(dst))
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := copyFile(src, tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dst, flags)
	}
	if errors.Is(err, unix.EEXIST) { // the server was quicker
		return os.Remove(tmp)
	}
	if err != nil {
		return errs.Also(err, os.RemoveAll(tmp))
	}
	return durable.Sync(filepath.Dir(dst))
}

// saveEnd saves all of the log of a stopped server, so that its folder may go.
func (d *Driver) saveEnd(ctx context.Context, dir string, c control) error {
	end := c.segments.name(c.TLI, c.segments.number(c.Checkpoint))
	s := logToSave{Wal: filepath.Join(dir, "pg_wal"), End: end, Until: end}
	if c.State != shutDown { // it died: what lies behind its last checkpoint may be finished or not
		s.Until = end[:8] + strings.Repeat("F", len(end)-8)
	}
	return d.saveLog(ctx, s)
}

// history reads how timeline t came about.
func (d *Driver) history(ctx context.Context, t timeline) ([]leg, error) {
	data, err := historyAsOwner.Call(ctx, d.owner, historyQuery{d.home(), t})
	if err != nil {
		return nil, err
	}
	return legsOf(t, data)
}

// legsOf reads the history of timeline t, which is nil without one. Timeline 1 has none.
func legsOf(t timeline, history []byte) ([]leg, error) {
	switch {
	case history != nil:
		return parseHistory(t, history)
	case t != 1:
		return nil, errs.New(errs.Corrupt, "", "the history of timeline %d is missing", t).WithHint("use another checkpoint")
	}
	return []leg{{1, endless}}, nil
}

// choose finds the newest base on the way to m, on the timelines that m itself
// descends from, which are legs.
func choose(bases []baseCopy, legs []leg, m marker) (best baseCopy, err error) {
	for _, b := range bases {
		if len(path(legs, b.TLI, b.Stop, m.LSN)) > 0 && (best.ID == "" || b.Stop > best.Stop) {
			best = b
		}
	}
	if best.ID == "" {
		return best, errs.New(errs.Corrupt, "", "no base copy of the cluster lies before %s on timeline %d", m.LSN, m.TLI).
			WithHint("use another checkpoint")
	}
	return best, nil
}

// names lists the files that hold these stretches of log. One that ends where a
// file would begin does not need that file, and the server may not have made it yet.
func (s segments) names(spans []span) (names []string) {
	for _, p := range spans {
		for n := s.number(p.Start); n <= s.number(p.End-1); n++ {
			names = append(names, s.name(p.TLI, n))
		}
	}
	return names
}

// linked ends the names of log files in the archive that are the live server's own
// files under a second name, so that they outlive its folder. The server takes a file
// for something else only when the archive has a copy, which goes before the link.
const linked = ".live"

// link gives those of the log files that only the live server has a second name in
// the archive. Where the file system has no links, there is only the first.
func (h home) link(names []string) error {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(h.archive(), name)); err == nil {
			continue
		}
		from, to := filepath.Join(h.wal(), name), filepath.Join(h.archive(), name+linked)
		err := os.Link(from, to)
		if !errors.Is(err, fs.ErrExist) {
			continue
		}
		if same, err := sameFile(from, to); err != nil || same {
			continue // or the live server has it no more
		}
		if err := os.Remove(to); err != nil {
			return err
		}
		if err := os.Link(from, to); err != nil {
			return err
		}
	}
	return nil
}

// locate finds a log file: finished, with the live server, or saved unfinished.
func (h home) locate(name string) string {
	for _, path := range []string{
		filepath.Join(h.archive(), name), filepath.Join(h.archive(), name+linked), filepath.Join(h.wal(), name), filepath.Join(h.archive(), name+".partial"),
	} {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
}

// present checks that all log files are there. The child of a fork holds a copy
// of its parent's last file, so either will do for a file that ends a leg. It
// runs as the owner.
func (h home) present(names []string) error {
	for i, name := range names {
		if h.locate(name) != "" {
			continue
		}
		if i+1 < len(names) && strings.HasSuffix(names[i+1], name[8:]) && h.locate(names[i+1]) != "" {
			continue
		}
		return errs.New(errs.Corrupt, "", "log file %s is gone", name).WithHint("use another checkpoint")
	}
	return nil
}

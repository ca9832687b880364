package physical

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// firstChange reads the log of the live folder after p, up to the record at or
// behind end (0: as far as it goes), and gives the place of the first commit that
// changed anything. The server's own housekeeping (vacuum, statistics,
// checkpoints) and our markers are no changes. What cannot be told apart, or read
// any more, counts as a change.
func (d *Driver) firstChange(ctx context.Context, p place, size wal.Segments, end wal.LSN) (at wal.LSN, changed bool, err error) {
	if end != 0 && end <= p.Start {
		return 0, false, nil
	}
	dir, err := d.gather(ctx, asowner.LogLinks{First: size.Name(p.TLI, size.Number(p.Start)), Size: size})
	if err != nil {
		return 0, false, err
	}
	defer d.store.remove(ctx, dir) // else the next Sweep does it
	wrote := map[uint32]bool{}     // transactions that wrote something that counts
	reached := end == 0
	why, err := d.readLog(ctx, dir, p.TLI, p.Start, func(rec wal.Record) bool {
		switch {
		case end != 0 && rec.At >= end:
			reached = true
		case rec.Commits() && (rec.OwnXID() || int32(rec.XID-p.XID) < 0 || wrote[rec.XID]):
			at, changed = rec.At, true
		case len(wrote) > maxOpen:
			at, changed = rec.At, true
		case rec.XID != 0 && rec.Counts():
			wrote[rec.XID] = true
		}
		return !changed && (end == 0 || !reached)
	})
	if err == nil && !changed && !reached { // some of it was dropped as nobody needed it: too much has happened since
		d.cfg.Log.Info("the log since a marker cannot be read, so its state counts as changed",
			"cluster", d.cfg.Name, "timeline", p.TLI, "lsn", p.Start.String(), "why", why)
		return 0, true, nil
	}
	return at, changed, err
}

// readLog has pg_waldump read the log files in dir, and calls each with its
// records until that returns false or there are no more; why says what it found there.
func (d *Driver) readLog(ctx context.Context, dir string, t wal.Timeline, from wal.LSN, each func(wal.Record) bool) (why string, err error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := d.server.Command(inner, "pg_waldump", "-p", dir, "-t", strconv.Itoa(int(t)), "-s", from.String())
	var problem pgserver.Printed
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := d.owner.Start(cmd, pgserver.Confined); err != nil {
		return "", err
	}
	lines := bufio.NewReaderSize(out, 1<<16)
	for more := true; more && err == nil; {
		var line string
		if line, err = wal.ReadLine(lines); errors.Is(err, wal.ErrLongLine) {
			break
		} else if err != nil {
			err = nil // the end; how it came about is of no interest when all was read that should be
			break
		}
		rec, ok := wal.ParseRecord(line)
		if strings.HasPrefix(line, "first record is after") || strings.TrimSpace(line) == "" {
			continue
		} else if !ok {
			err = fmt.Errorf("pg_waldump prints %.200q", line)
			break
		}
		more = each(rec)
	}
	cancel()
	_ = cmd.Wait() // it fails at the log's end, and when it is stopped before
	return problem.LastLine(), errors.Join(err, ctx.Err())
}

// maxOpen is how many transactions that have not committed are followed. With
// more of them, the state counts as changed.
const maxOpen = 1 << 20

// gather makes a folder of links to log files, wherever they are.
func (d *Driver) gather(ctx context.Context, l asowner.LogLinks) (dir string, err error) {
	l.Home, l.Dir = d.store.Home, d.store.path("log-"+randomHex(8))
	_, err = asowner.LinkLog.Call(ctx, d.owner, l)
	if err != nil {
		return "", errs.Also(err, d.store.remove(ctx, l.Dir))
	}
	return l.Dir, nil
}

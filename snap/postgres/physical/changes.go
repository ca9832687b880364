package physical

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// firstChange reads the log of the live folder after p, up to the record at or
// behind end (0: as far as it goes), and gives the place of the first commit that
// changed anything. The server's own housekeeping (vacuum, statistics,
// checkpoints) and our markers are no changes. What cannot be told apart, or read
// any more, counts as a change.
func (d *Driver) firstChange(ctx context.Context, p place, size segments, end lsn) (at lsn, changed bool, err error) {
	if end != 0 && end <= p.Start {
		return 0, false, nil
	}
	dir, err := d.gather(ctx, logLinks{First: size.name(p.TLI, size.number(p.Start)), Size: size})
	if err != nil {
		return 0, false, err
	}
	defer d.remove(ctx, dir)   // else the next Sweep does it
	wrote := map[uint32]bool{} // transactions that wrote something that counts
	reached := end == 0
	why, err := d.readLog(ctx, dir, p.TLI, p.Start, func(rec record) bool {
		switch {
		case end != 0 && rec.at >= end:
			reached = true
		case rec.commits() && (rec.ownXID() || int32(rec.xid-p.XID) < 0 || wrote[rec.xid]):
			at, changed = rec.at, true
		case len(wrote) > maxOpen:
			at, changed = rec.at, true
		case rec.xid != 0 && rec.counts():
			wrote[rec.xid] = true
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
func (d *Driver) readLog(ctx context.Context, dir string, t timeline, from lsn, each func(record) bool) (why string, err error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := d.command(inner, "pg_waldump", "-p", dir, "-t", strconv.Itoa(int(t)), "-s", from.String())
	var problem printed
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := d.owner.Start(cmd, confined); err != nil {
		return "", err
	}
	lines := bufio.NewReaderSize(out, 1<<16)
	for more := true; more && err == nil; {
		var line string
		if line, err = readLine(lines); errors.Is(err, errLongLine) {
			break
		} else if err != nil {
			err = nil // the end; how it came about is of no interest when all was read that should be
			break
		}
		rec, ok := parseRecord(line)
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
	return problem.lastLine(), errors.Join(err, ctx.Err())
}

// maxLine is how many bytes a line of pg_waldump may have. The commit of many
// subtransactions has a long one.
const maxLine = 64 << 20

var errLongLine = fmt.Errorf("pg_waldump prints a line of more than %d MiB", maxLine>>20)

// readLine reads a line with its end.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(line), err
		}
		if len(line) > maxLine {
			return "", errLongLine
		}
	}
}

// maxOpen is how many transactions that have not committed are followed. With
// more of them, the state counts as changed.
const maxOpen = 1 << 20

// gather makes a folder of links to log files, wherever they are.
func (d *Driver) gather(ctx context.Context, l logLinks) (dir string, err error) {
	l.Home, l.Dir = d.home(), d.stored("log-"+randomHex(8))
	_, err = linkLogAsOwner.Call(ctx, d.owner, l)
	if err != nil {
		return "", errs.Also(err, d.remove(ctx, l.Dir))
	}
	return l.Dir, nil
}

// linkFrom links the log files of a timeline from l.First on. A file of the live
// server may be there for later use, empty or with what it held under another
// name; pg_waldump stumbles over those.
func (l logLinks) linkFrom() error {
	for _, from := range []string{l.Home.archive(), l.Home.wal()} {
		list, err := names(from)
		if err != nil {
			return err
		}
		for _, name := range list {
			if !isSegment(name) || name[:8] != l.First[:8] || name < l.First {
				continue
			}
			path := filepath.Join(from, name)
			if ok, err := l.Size.begins(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			} else if err != nil || !ok {
				continue
			}
			if err := os.Symlink(path, filepath.Join(l.Dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// linkNamed links the log files in l.Names.
func (l logLinks) linkNamed() error {
	for i, name := range l.Names {
		from := l.Home.locate(name)
		if from == "" && i+1 < len(l.Names) { // the child's first file begins as the parent's last
			from = l.Home.locate(l.Names[i+1])
		}
		if err := os.Symlink(from, filepath.Join(l.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// begins reports whether the log file holds the stretch of log that its name
// says, by its first header (xlog_internal.h, XLogLongPageHeaderData).
func (s segments) begins(path string) (bool, error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return false, err
	}
	defer f.Close() // only read
	var head [firstHead]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return false, nil // it was not even begun
	}
	at := lsn(binary.NativeEndian.Uint64(head[8:]))
	return binary.NativeEndian.Uint32(head[32:]) == uint32(s) && s.name(1, s.number(at))[8:] == filepath.Base(path)[8:], nil
}

// record is a line of pg_waldump.
type record struct {
	manager string
	xid     uint32
	at      lsn
	length  uint64 // in bytes, without the headers of pages that it runs over
	desc    string
}

const (
	logPage   = 8192
	pageHead  = 24 // bytes at the beginning of each page of the log,
	firstHead = 40 // and of each file (xlog_internal.h, SizeOfXLogShortPHD and SizeOfXLogLongPHD)
)

// end is the place behind the record.
func (r record) end(size segments) lsn {
	at, left := uint64(r.at), (r.length+7)&^7
	for {
		n := min(left, logPage-at%logPage)
		at, left = at+n, left-n
		switch {
		case left == 0:
			return lsn(at)
		case at%uint64(size) == 0:
			at += firstHead
		default:
			at += pageHead
		}
	}
}

func parseRecord(line string) (r record, ok bool) {
	rest, found := strings.CutPrefix(line, "rmgr: ")
	head, desc, also := strings.Cut(rest, ", desc: ")
	_, numbers, three := strings.Cut(head, ", tx:")
	xid, place, four := strings.Cut(numbers, ", lsn: ")
	if !found || !also || !three || !four {
		return r, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(xid), 10, 32)
	if err != nil {
		return r, false
	}
	place, _, _ = strings.Cut(place, ",")
	if r.at, err = parseLSN(place); err != nil {
		return r, false
	}
	if _, total, found := strings.Cut(head, "/"); found {
		total, _, _ = strings.Cut(total, ",")
		r.length, err = strconv.ParseUint(strings.TrimSpace(total[strings.LastIndexByte(total, '/')+1:]), 10, 32)
	}
	if err != nil || r.length == 0 {
		return r, false
	}
	r.manager, _, _ = strings.Cut(rest, " ")
	r.xid, r.desc = uint32(n), strings.TrimSpace(desc)
	return r, true
}

func (r record) commits() bool {
	return r.manager == "Transaction" && (strings.HasPrefix(r.desc, "COMMIT") || strings.HasPrefix(r.desc, "PREPARE"))
}

// ownXID reports whether the commit is of more than the record's own
// transaction: of one that was prepared, or of subtransactions.
func (r record) ownXID() bool {
	return !strings.HasPrefix(r.desc, "COMMIT ") || strings.Contains(r.desc, "subxacts:")
}

// statistics are the files of what ANALYZE writes: pg_statistic,
// pg_statistic_ext_data, their indexes and toast tables, as long as nobody
// rewrote them (their numbers are fixed in the server's catalog headers).
var statistics = []string{"2619", "2696", "2840", "2841", "3429", "3430", "3431", "3433"}

// counts reports whether the record may have changed what a client can see.
func (r record) counts() bool {
	switch r.manager {
	case "XLOG", "Standby", "Transaction", "CLOG", "MultiXact", "CommitTs", "LogicalMessage", "RelMap":
		return r.manager == "RelMap"
	case "Heap", "Heap2":
		verb, _, _ := strings.Cut(r.desc, " ")
		if slices.Contains([]string{"INPLACE", "PRUNE", "VACUUM", "FREEZE_PAGE", "VISIBLE", "LOCK", "LOCK_UPDATED"}, verb) {
			return false
		}
	case "Storage":
		return !strings.HasPrefix(r.desc, "TRUNCATE") // vacuum; the command makes a new file
	}
	found := false
	for _, part := range strings.Split(r.desc, "rel ")[1:] {
		name, _, _ := strings.Cut(part, " ")
		if found = true; !slices.Contains(statistics, filepath.Base(strings.TrimRight(name, ","))) {
			return true
		}
	}
	return !found
}

package wal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxLine is the largest length in bytes of a line of pg_waldump. The commit of many subtransactions has a long line.
const maxLine = 64 << 20

// ErrUnclear means that what pg_waldump printed cannot be interpreted.
var ErrUnclear = errors.New("pg_waldump prints what cannot be interpreted")

// ErrLongLine means that pg_waldump printed a line of more than maxLine bytes.
var ErrLongLine = fmt.Errorf("%w: a line of more than %d MiB", ErrUnclear, maxLine>>20)

// ReadLine returns the next line, with its newline.
func ReadLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(line), err
		}
		if len(line) > maxLine {
			return "", ErrLongLine
		}
	}
}

// Begins reports whether the log file holds the log that its name says, according to its first header (xlog_internal.h,
// XLogLongPageHeaderData).
func (s Segments) Begins(name string, file io.Reader) bool {
	var head [FirstHead]byte
	if _, err := io.ReadFull(file, head[:]); err != nil {
		return false // the file is shorter than its header
	}
	at := LSN(binary.NativeEndian.Uint64(head[8:]))
	return binary.NativeEndian.Uint32(head[32:]) == uint32(s) && s.Name(1, s.Number(at))[8:] == name[8:]
}

// Record is a record of the log, as pg_waldump prints it.
type Record struct {
	Manager string
	XID     uint32
	At      LSN
	Length  uint64 // in bytes, without the headers of pages within the record
	Desc    string
}

const (
	logPage   = 8192
	PageHead  = 24 // bytes at the beginning of each page of the log
	FirstHead = 40 // and of each file (xlog_internal.h, SizeOfXLogShortPHD and SizeOfXLogLongPHD)
)

// End returns the position after the record.
func (r Record) End(size Segments) LSN {
	at, left := uint64(r.At), (r.Length+7)&^7
	for {
		n := min(left, logPage-at%logPage)
		at, left = at+n, left-n
		switch {
		case left == 0:
			return LSN(at)
		case at%uint64(size) == 0:
			at += FirstHead
		default:
			at += PageHead
		}
	}
}

// ReadRecord reads what pg_waldump prints of the next record. ok is false if it is not a record; line is then what was printed. A client chooses
// the text of a message, which is printed with its line breaks and may look like the lines of other records: it is passed over.
func ReadRecord(r *bufio.Reader) (rec Record, line string, ok bool, err error) {
	const message, prefix = "rmgr: LogicalMessage ", `, prefix "` // servers before 14 print neither the prefix nor the payload
	head, _ := r.Peek(512)                                        // an error comes back below
	end := bytes.Index(head, []byte(prefix))
	if !bytes.HasPrefix(head, []byte(message)) || end < 0 || bytes.IndexByte(head[:end], '\n') >= 0 {
		line, err = ReadLine(r)
		rec, ok = ParseRecord(line)
		return rec, line, ok && err == nil, err
	}
	line = string(head[:end])
	_, _ = r.Discard(end + len(prefix)) // was peeked
	if rec, ok = ParseRecord(line); ok {
		err = passMessage(r, rec.Length)
	}
	return rec, line, ok && err == nil, err
}

// A message's record has this many bytes besides the prefix and the payload: the record's header, that of its data (2 or 5 bytes), the message's own
// header, the byte after the prefix, and in some records the origin (3 bytes) and the topmost transaction (5 bytes); xlogrecord.h, message.h.
const leastMessage, mostMessage = 24 + 2 + 24 + 1, 24 + 5 + 24 + 1 + 3 + 5

// passMessage reads a message's text from the prefix to the end of its line. The prefix may hold what looks like the end of the text. But printed,
// a payload takes three times its length: only where the text really ends do the two lengths make that of the record.
func passMessage(r *bufio.Reader, length uint64) error {
	for read := uint64(0); read <= 4*length+1024; { // no text is that long
		part, err := r.ReadSlice('"')
		read += uint64(len(part))
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		} else if err != nil {
			return err
		}
		rest, _ := r.Peek(32) // an error comes back at the next reading
		number, found := bytes.CutPrefix(rest, []byte("; payload ("))
		number, _, closed := bytes.Cut(number, []byte(" bytes): "))
		payload, err := strconv.ParseUint(string(number), 10, 32)
		if others := length - (read - 1) - payload; !found || !closed || err != nil || others < leastMessage || others > mostMessage {
			continue
		}
		n, _ := r.Discard(len("; payload (") + len(number) + len(" bytes): ")) // was peeked
		read += uint64(n)
		for at, end := uint64(0), max(3*payload, 1); ; { // of the payload in hex, and the line break
			part, err := r.Peek(int(min(end-at, uint64(r.Size()))))
			n := 0
			for n < len(part) && printedPayload(part[n], at+uint64(n), end) {
				n++
			}
			_, _ = r.Discard(n) // was peeked
			at, read = at+uint64(n), read+uint64(n)
			if at == end {
				return nil
			} else if n < len(part) {
				break // this was part of the prefix
			} else if err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: the text of a message of at most %d bytes without an end", ErrUnclear, length)
}

// printedPayload reports whether c can be at this place of a payload's print, whose line break ends it.
func printedPayload(c byte, at, end uint64) bool {
	switch {
	case at == end-1:
		return c == '\n'
	case at%3 == 2:
		return c == ' '
	}
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'F'
}

// ParseRecord parses a line of pg_waldump. ok is false if the line is not a record.
func ParseRecord(line string) (r Record, ok bool) {
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
	if r.At, err = ParseLSN(place); err != nil {
		return r, false
	}
	if _, total, found := strings.Cut(head, "/"); found {
		total, _, _ = strings.Cut(total, ",")
		r.Length, err = strconv.ParseUint(strings.TrimSpace(total[strings.LastIndexByte(total, '/')+1:]), 10, 32)
	}
	if err != nil || r.Length == 0 {
		return r, false
	}
	r.Manager, _, _ = strings.Cut(rest, " ")
	r.XID, r.Desc = uint32(n), strings.TrimSpace(desc)
	return r, true
}

// Commits reports whether the record commits or prepares a transaction.
func (r Record) Commits() bool {
	return r.Manager == "Transaction" && (strings.HasPrefix(r.Desc, "COMMIT") || strings.HasPrefix(r.Desc, "PREPARE"))
}

// OwnXID reports whether the record commits other transactions than its own: a prepared one, or subtransactions.
func (r Record) OwnXID() bool {
	return !strings.HasPrefix(r.Desc, "COMMIT ") || strings.Contains(r.Desc, "subxacts:")
}

// statistics are the file numbers of the tables that ANALYZE writes: pg_statistic and pg_statistic_ext_data, with their indexes
// and toast tables. The numbers are those in the server's catalog headers, and are valid until somebody rewrites the tables.
var statistics = []string{"2619", "2696", "2840", "2841", "3429", "3430", "3431", "3433"}

// Counts reports whether the record may have changed something that a client can see.
func (r Record) Counts() bool {
	switch r.Manager {
	case "XLOG", "Standby", "Transaction", "CLOG", "MultiXact", "CommitTs", "LogicalMessage", "RelMap":
		return r.Manager == "RelMap"
	case "Heap", "Heap2":
		verb, _, _ := strings.Cut(r.Desc, " ")
		if slices.Contains([]string{"INPLACE", "PRUNE", "VACUUM", "FREEZE_PAGE", "VISIBLE", "LOCK", "LOCK_UPDATED"}, verb) {
			return false
		}
	case "Storage":
		return !strings.HasPrefix(r.Desc, "TRUNCATE") // vacuum truncates a file; the TRUNCATE command makes a new one
	}
	found := false
	for _, part := range strings.Split(r.Desc, "rel ")[1:] {
		name, _, _ := strings.Cut(part, " ")
		if found = true; !slices.Contains(statistics, filepath.Base(strings.TrimRight(name, ","))) {
			return true
		}
	}
	return !found
}

package pgserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"path/filepath"
	"strconv"
	"strings"

	"mulligan/snap/postgres/physical/wal"
)

// Control is the content of a data folder's control file.
type Control struct {
	System     string       `json:"system"` // the cluster's system identifier
	State      string       `json:"state"`  // ShutDown after a clean stop
	TLI        wal.Timeline `json:"tli"`
	Checkpoint wal.LSN      `json:"checkpoint"`
	NextXID    uint32       `json:"next_xid"`
	Segments   wal.Segments `json:"-"`
}

// ShutDown is the State of a cluster whose server was stopped cleanly.
const ShutDown = "shut down"

// states are the words of pg_controldata for the states of a cluster, by their numbers.
var states = []string{"starting up", ShutDown, "shut down in recovery", "shutting down", "in crash recovery", "in archive recovery", "in production"}

// ReadControl reads the control file of a data folder. Only one of a version that is not known here is given to pg_controldata, which takes long in a
// container, as is one that is damaged.
func (p Programs) ReadControl(ctx context.Context, dir string) (c Control, err error) {
	if text, err := p.Owner.ReadFile(ctx, filepath.Join(dir, "global", "pg_control")); err == nil {
		if c, ok := parseControl(text); ok {
			return c, nil
		}
	}
	return p.readControl(ctx, dir) // which also says more of what is wrong
}

// Where the fields are in a control file, in bytes, from version 1300 (PostgreSQL 13) to 1800 (catalog/pg_control.h, ControlFileData).
const (
	atVersion    = 8
	atState      = 16
	atCheckpoint = 32
	atTimeline   = 48
	atNextXID    = 64
	atFloat      = 208
	atSegments   = 228
	endOfKnown   = 232 // further fields follow, and then the sum of all before it
	furthestSum  = 400
)

// markedFloat is a number in the file by which its format is known.
const markedFloat = 1234567.0

// parseControl reads the fields of a control file. ok is false if its format is not known or its sum is wrong.
func parseControl(text []byte) (c Control, ok bool) {
	if len(text) < furthestSum {
		return c, false
	}
	at := func(n int) uint32 { return binary.NativeEndian.Uint32(text[n:]) }
	long := func(n int) uint64 { return binary.NativeEndian.Uint64(text[n:]) }
	version, state, size := at(atVersion), at(atState), at(atSegments)
	if version < 1300 || version > 1800 || math.Float64frombits(long(atFloat)) != markedFloat || int(state) >= len(states) ||
		bits.OnesCount32(size) != 1 || size < 1<<20 || size > 1<<30 {
		return c, false
	}
	table, whole := crc32.MakeTable(crc32.Castagnoli), false
	for end := endOfKnown; end < furthestSum && !whole; end += 4 {
		whole = crc32.Checksum(text[:end], table) == at(end)
	}
	return Control{
		System: strconv.FormatUint(long(0), 10), State: states[state], TLI: wal.Timeline(at(atTimeline)), Checkpoint: wal.LSN(long(atCheckpoint)),
		NextXID: uint32(long(atNextXID)), Segments: wal.Segments(size), // the upper half of the id is the epoch
	}, whole
}

func (p Programs) readControl(ctx context.Context, dir string) (c Control, err error) {
	out, err := p.Output(ctx, "pg_controldata", "-D", dir)
	if err != nil {
		return c, err // pg_controldata prints a warning for a wrong checksum, which is an error here
	}
	field := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, found := strings.Cut(line, ":"); found {
			field[key] = strings.TrimSpace(value)
		}
	}
	c.System, c.State = field["Database system identifier"], field["Database cluster state"]
	tli, err1 := strconv.ParseUint(field["Latest checkpoint's TimeLineID"], 10, 32)
	_, next, _ := strings.Cut(field["Latest checkpoint's NextXID"], ":")
	xid, err2 := strconv.ParseUint(next, 10, 32)
	size, err3 := strconv.ParseUint(field["Bytes per WAL segment"], 10, 32)
	var err4 error
	c.Checkpoint, err4 = wal.ParseLSN(field["Latest checkpoint location"])
	c.TLI, c.NextXID, c.Segments = wal.Timeline(tli), uint32(xid), wal.Segments(size)
	if err := errors.Join(err1, err2, err3, err4); err != nil || c.System == "" || size == 0 {
		return c, fmt.Errorf("pg_controldata of %s: %w", dir, errors.Join(err, errors.New("it prints something else than expected")))
	}
	return c, nil
}

// Same reports whether no server was started in the data folder between c and other.
func (c Control) Same(other Control) bool {
	return c.System == other.System && c.TLI == other.TLI && c.Checkpoint == other.Checkpoint && c.State == other.State
}

package physical

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// place is where in the history something is, and what is needed to tell later
// whether anything was committed since.
type place struct {
	TLI   wal.Timeline `json:"tli"`
	Start wal.LSN      `json:"start"` // reading the log from here meets all of XID's records
	XID   uint32       `json:"xid"`   // transactions from this one on began at Start or later
}

// marker is a snapshot: a named restore point in the log.
type marker struct {
	ID    snap.SnapshotID `json:"id"`
	Point string          `json:"point"` // the restore point's name
	place
	LSN      wal.LSN   `json:"lsn"`  // the end of its record
	Conf     string    `json:"conf"` // names the configuration as it was, in conf/
	Quiesced bool      `json:"quiesced"`
	Created  time.Time `json:"created"`

	segments wal.Segments // of the cluster's log, when it was just made
	system   string       // the cluster's identifier, then
}

// kept is a data folder that was swapped out: the state of a marker, ready to run.
type kept struct {
	Marker snap.SnapshotID  `json:"marker"`
	Dir    string           `json:"dir"` // its name in forks/
	Inode  uint64           `json:"inode"`
	End    pgserver.Control `json:"end"` // what its control file said
}

// raw is a snapshot of what lay where the data folder should be, byte by byte.
type raw struct {
	ID       snap.SnapshotID `json:"id"`
	Dir      string          `json:"dir"`   // its name in raws/; "" where nothing lay there
	Hash     snap.Hash       `json:"hash"`  // of names, modes and contents
	Stamp    string          `json:"stamp"` // of what lay there, as stamp gives it
	Ran      bool            `json:"ran"`   // a server ran in it
	Quiesced bool            `json:"quiesced"`
	Created  time.Time       `json:"created"`
	Warnings []string        `json:"warnings"`
}

// put writes a record durably.
func (d *Driver) put(kind, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(d.cfg.StateDir, kind, id+".json"), data, 0o600)
}

// get reads a record; without one the error is fs.ErrNotExist.
func (d *Driver) get(kind, id string, v any) error {
	if !database.ValidName(id) {
		return fs.ErrNotExist
	}
	data, err := os.ReadFile(filepath.Join(d.cfg.StateDir, kind, id+".json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return errs.Wrap(errs.Corrupt, "read the record of "+id, err)
	}
	return nil
}

// drop removes a record durably; one that is not there is no error.
func (d *Driver) drop(kind, id string) error {
	return removeDurably(filepath.Join(d.cfg.StateDir, kind, id+".json"))
}

// list reads all records of a kind, by name.
func list[T any](d *Driver, kind string) ([]T, error) {
	entries, err := os.ReadDir(filepath.Join(d.cfg.StateDir, kind))
	if err != nil {
		return nil, err
	}
	var all []T
	for _, e := range entries {
		id, found := strings.CutSuffix(e.Name(), ".json")
		if !found {
			continue
		}
		var v T
		if err := d.get(kind, id, &v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func (d *Driver) bases() ([]wal.Base, error) { return list[wal.Base](d, "bases") }
func (d *Driver) markers() ([]marker, error) { return list[marker](d, "markers") }
func (d *Driver) keptOnes() ([]kept, error)  { return list[kept](d, "kept") }
func (d *Driver) raws() ([]raw, error)       { return list[raw](d, "raws") }

// switches reads the plans of all restores.
func (d *Driver) switches() (all []plan, err error) {
	names, err := d.plans.Switches()
	for _, name := range names {
		var p plan
		if e := d.plans.Load("", snap.RestoreID(name), &p); e != nil {
			return nil, e
		}
		all = append(all, p)
	}
	return all, err
}

// state is a snapshot of either kind: a marker, or one that was kept raw.
type state struct {
	marker
	raw *raw
}

// state finds a snapshot.
func (d *Driver) state(id snap.SnapshotID) (s state, err error) {
	var r raw
	if err := d.get("raws", string(id), &r); err == nil {
		return state{raw: &r}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	s.marker, err = d.marker(id)
	return s, err
}

// String says in a few words which state it is.
func (s state) String() string {
	if s.raw != nil {
		return "the files as they lay there"
	}
	return fmt.Sprintf("%s on timeline %d", s.LSN, s.TLI)
}

// marker finds a snapshot.
func (d *Driver) marker(id snap.SnapshotID) (m marker, err error) {
	if err = d.get("markers", string(id), &m); errors.Is(err, fs.ErrNotExist) {
		err = errs.New(errs.NotFound, "", "no snapshot %s of cluster %s", id, d.cfg.Name).
			WithHint("list the checkpoints to see which there are")
	}
	return m, err
}

func removeDurably(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

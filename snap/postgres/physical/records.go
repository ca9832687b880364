package physical

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// records are what the driver writes down of one cluster, in files of its StateDir: snapshots, bases, folders that were
// swapped out, the plans of restores, and what it last saw of the server. Each file is replaced or removed durably.
type records struct {
	dir     string // StateDir
	cluster string // its name
	ward    ward
	plans   *database.Plans
}

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
func (r *records) put(kind, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(r.dir, kind, id+".json"), data, 0o600)
}

// get reads a record; without one the error is fs.ErrNotExist.
func (r *records) get(kind, id string, v any) error {
	if !database.ValidName(id) {
		return fs.ErrNotExist
	}
	data, err := os.ReadFile(filepath.Join(r.dir, kind, id+".json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return errs.Wrap(errs.Corrupt, "read the record of "+id, err)
	}
	return nil
}

// drop removes a record durably. A missing record is not an error.
func (r *records) drop(kind, id string) error {
	return removeDurably(filepath.Join(r.dir, kind, id+".json"))
}

// list reads all records of a kind, by name.
func list[T any](r *records, kind string) ([]T, error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, kind))
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
		if err := r.get(kind, id, &v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func (r *records) bases() ([]wal.Base, error) { return list[wal.Base](r, "bases") }
func (r *records) markers() ([]marker, error) { return list[marker](r, "markers") }
func (r *records) keptOnes() ([]kept, error)  { return list[kept](r, "kept") }
func (r *records) raws() ([]raw, error)       { return list[raw](r, "raws") }

// switches reads the plans of all restores.
func (r *records) switches() (all []plan, err error) {
	names, err := r.plans.Switches()
	for _, name := range names {
		var p plan
		if e := r.plans.Load("", snap.RestoreID(name), &p); e != nil {
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
func (r *records) state(id snap.SnapshotID) (s state, err error) {
	var files raw
	if err := r.get("raws", string(id), &files); err == nil {
		return state{raw: &files}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	s.marker, err = r.marker(id)
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
func (r *records) marker(id snap.SnapshotID) (m marker, err error) {
	if err = r.get("markers", string(id), &m); errors.Is(err, fs.ErrNotExist) {
		err = errs.New(errs.NotFound, "", "no snapshot %s of cluster %s", id, r.cluster).
			WithHint("list the checkpoints to see which there are")
	}
	return m, err
}

// removeDurably removes a file, if it is there. After a power cut it does not come back.
func removeDurably(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(path))
}

// sumsFile returns the file with the sums of a base's files.
func (r *records) sumsFile(id string) string {
	return filepath.Join(r.dir, "bases", id+".sums")
}

// sweepConf removes configurations that no marker names.
func (r *records) sweepConf() error {
	all, err := r.markers()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(r.dir, "conf"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := strings.TrimSuffix(e.Name(), ".json")
		if !slices.ContainsFunc(all, func(m marker) bool { return m.Conf == id }) {
			if err := os.Remove(filepath.Join(r.dir, "conf", e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// remember keeps what a restore has to know of the server while it cannot be asked.
func (r *records) remember(f facts) error {
	if err := r.put(".", "ward", r.ward); err != nil {
		return err
	}
	return r.put(".", "facts", f.lasting())
}

// rememberAgain is remember where something is new.
func (r *records) rememberAgain(f facts) error {
	var old facts
	err := r.get(".", "facts", &old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a, err1 := json.Marshal(old)
	b, err2 := json.Marshal(f.lasting())
	if err == nil && errors.Join(err1, err2) == nil && string(a) == string(b) {
		return nil
	}
	return r.remember(f)
}

// known is what was remembered of the server.
func (r *records) known() (f facts, err error) {
	err = r.get(".", "facts", &f)
	if errors.Is(err, fs.ErrNotExist) {
		err = errs.New(errs.Unavailable, "", "the server of cluster %s is down, and nothing was recorded of it yet", r.cluster).
			WithHint("start it once")
	}
	return f, err
}

// rawsOf picks some of the snapshots that were kept raw.
func (r *records) rawsOf(ids []snap.SnapshotID) ([]raw, error) {
	all, err := r.raws()
	return slices.DeleteFunc(all, func(r raw) bool { return !slices.Contains(ids, r.ID) }), err
}

// ward is where the store of a cluster in care is, and whose.
type ward struct {
	Store    string `json:"store"`
	UID, GID int
	Bin      string // folder of the server's programs
}

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

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/jsonrows"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/wal"
)

// records are the driver's records of one cluster, in files of its StateDir: snapshots, base backups, folders that were swapped
// out, plans of restores, and the last known facts of the server. Each file is replaced or removed durably.
type records struct {
	dir     string // StateDir
	cluster string // name of the cluster
	ward    known.Ward
	plans   *database.Plans
}

// place is a position in the history, with the values that show later whether anything was committed after it.
type place struct {
	TLI   wal.Timeline `json:"tli"`
	Start wal.LSN      `json:"start"` // the log from here on has all records of transaction XID
	XID   uint32       `json:"xid"`   // transactions with this id or a later one began at Start or later
}

// marker is a snapshot: a named restore point in the log.
type marker struct {
	ID    snap.SnapshotID `json:"id"`
	Point string          `json:"point"` // name of the restore point
	place
	LSN      wal.LSN   `json:"lsn"`  // end of the restore point's record
	Conf     string    `json:"conf"` // name of the recorded configuration, in conf/
	Quiesced bool      `json:"quiesced"`
	Created  time.Time `json:"created"`

	segments wal.Segments // size of the cluster's log files; set only for a new marker
	system   string       // the cluster's system identifier; set only for a new marker
}

// kept is a data folder that was swapped out. It has the state of a marker, and a server can run in it.
type kept struct {
	Marker snap.SnapshotID  `json:"marker"`
	Dir    string           `json:"dir"` // name of the folder in forks/
	Inode  uint64           `json:"inode"`
	End    pgserver.Control `json:"end"` // content of its control file
}

// raw is a raw snapshot: a byte-by-byte copy of everything in the place of the data folder.
type raw struct {
	ID       snap.SnapshotID `json:"id"`
	Dir      string          `json:"dir"`             // name in raws/; "" if nothing was there
	Hash     snap.Hash       `json:"hash"`            // of names, modes and contents
	Stamp    string          `json:"stamp"`           // result of asowner.Stamp for the source
	Ran      bool            `json:"ran"`             // a server ran in it
	Whole    bool            `json:"whole,omitempty"` // and was shut down in order: restores and forks get a timeline of their own from it
	Conf     string          `json:"conf,omitempty"`  // name of the configuration that a Whole one is restored with; "": its own
	Quiesced bool            `json:"quiesced"`
	Created  time.Time       `json:"created"`
	Warnings []string        `json:"warnings"`
}

func (r *records) put(kind, id string, v any) error { return jsonrows.Folder(r.dir).Put(kind, id, v) }
func (r *records) get(kind, id string, v any) error { return jsonrows.Folder(r.dir).Get(kind, id, v) }
func (r *records) drop(kind, id string) error       { return jsonrows.Folder(r.dir).Drop(kind, id) }

func list[T any](r *records, kind string) ([]T, error) {
	return jsonrows.List[T](jsonrows.Folder(r.dir), kind)
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

// state is a snapshot of either kind: a marker or a raw snapshot.
type state struct {
	marker
	raw *raw
}

// state returns the snapshot id. The error is of kind errs.NotFound if it does not exist.
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

// String describes the state in a few words, for summaries.
func (s state) String() string {
	switch {
	case s.raw != nil && s.raw.Whole:
		return "the cluster of a fork"
	case s.raw != nil:
		return "the files as they lay there"
	}
	return fmt.Sprintf("%s on timeline %d", s.LSN, s.TLI)
}

// marker returns the marker id. The error is of kind errs.NotFound if it does not exist.
func (r *records) marker(id snap.SnapshotID) (m marker, err error) {
	if err = r.get("markers", string(id), &m); errors.Is(err, fs.ErrNotExist) {
		err = errs.New(errs.NotFound, "", "no snapshot %s of cluster %s", id, r.cluster).
			WithHint("list the checkpoints to see which there are")
	}
	return m, err
}

// sumsFile returns the path of the list of checksums of a base backup's files.
func (r *records) sumsFile(id string) string {
	return filepath.Join(r.dir, "bases", id+".sums")
}

// keepConf records a configuration, unless an equal one is recorded, and returns its name. It takes nothing but configuration files
// from found, which the server's user said.
func (r *records) keepConf(found map[string][]byte) (name string, err error) {
	files := map[string][]byte{}
	for _, name := range asowner.Configured {
		if data, ok := found[name]; ok {
			files[name] = data
		}
	}
	name = asowner.ConfDigest(files)
	if err := r.get("conf", name, &files); !errors.Is(err, fs.ErrNotExist) {
		return name, err
	}
	return name, r.put("conf", name, files)
}

// sweepConf removes configurations that no snapshot refers to.
func (r *records) sweepConf() error {
	all, err1 := r.markers()
	raws, err2 := r.raws()
	if err := errs.Also(err1, err2); err != nil {
		return undamaged(err) // what a damaged record refers to is unknown
	}
	entries, err := os.ReadDir(filepath.Join(r.dir, "conf"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := strings.TrimSuffix(e.Name(), ".json")
		if !slices.ContainsFunc(all, func(m marker) bool { return m.Conf == id }) && !slices.ContainsFunc(raws, func(w raw) bool { return w.Conf == id }) {
			if err := os.Remove(filepath.Join(r.dir, "conf", e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// remember records the facts that a restore needs while the server is down.
func (r *records) remember(f facts) error {
	if err := r.put(".", known.WardRecord, r.ward); err != nil {
		return err
	}
	return r.put(".", "facts", f.Lasting())
}

// rememberAgain calls remember if the facts have changed.
func (r *records) rememberAgain(f facts) error {
	var old facts
	err := r.get(".", "facts", &old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a, err1 := json.Marshal(old)
	b, err2 := json.Marshal(f.Lasting())
	if err == nil && errors.Join(err1, err2) == nil && string(a) == string(b) {
		return nil
	}
	return r.remember(f)
}

// known returns the recorded facts of the server.
func (r *records) known() (facts, error) { return r.clusters().Known() }

// rawsOf returns the raw snapshots among ids.
func (r *records) rawsOf(ids []snap.SnapshotID) ([]raw, error) {
	all, err := r.raws()
	return slices.DeleteFunc(all, func(r raw) bool { return !slices.Contains(ids, r.ID) }), undamaged(err)
}

// forget drops the record of a snapshot, which may be damaged or missing.
func (r *records) forget(id snap.SnapshotID) error {
	if !database.ValidName(string(id)) {
		return nil
	}
	return errors.Join(r.drop("markers", string(id)), r.drop("raws", string(id)))
}

// damaged returns an error if records of snapshots are damaged.
func (r *records) damaged() error {
	_, err1 := r.markers()
	_, err2 := r.raws()
	if err := errs.Also(err1, err2); err != nil {
		return &errs.Error{Kind: errs.KindOf(err), Err: err, Hint: "delete the checkpoint with this snapshot: until then, nothing that is stored of the cluster is removed"}
	}
	return nil
}

// undamaged returns nil if err says that records are damaged, and else err.
func undamaged(err error) error {
	if errs.KindOf(err) == errs.Corrupt {
		return nil
	}
	return err
}

// Package duckdb is the driver for one DuckDB database of an app: its file, and the log beside it.
//
// It does not open the two with DuckDB. A snapshot is their bytes at one moment, which the driver ensures by means of the
// files' times. This is the state after a crash of DuckDB at that moment, from which DuckDB recovers. A restore takes the same
// lock as DuckDB, so that no process has the database open, and replaces both files.
//
// If a DuckDB program is configured, the driver compares tables and rows by running it with the owner's rights on copies. No
// configuration reaches this driver yet.
package duckdb

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Config names the database of a driver.
type Config struct {
	App, Name string // identify its snapshots in Store; no slashes
	Dir       string // absolute path of a trusted folder: the workspace, or the folder of a database outside of it
	Path      string // path of the database relative to Dir; not trusted
	StateDir  string // a folder of the daemon for this driver alone, with the switches under way
	Store     *cas.Store
	Owner     privsep.User // owner that the files must have, and user that runs Program
	// Program is run with the path of a database and a statement as additional arguments, and prints the rows as JSON, as
	// "duckdb -readonly -json" does. Without a program, comparisons only show sizes.
	Program   []string
	Failpoint failpoint.Hook // for tests
}

// Driver captures and restores one database.
type Driver struct {
	*database.Driver[database.Plan, *database.Plan]
	cfg     Config
	records *database.Records
}

// New returns a driver. It does not access the database.
func New(cfg Config) (*Driver, error) {
	const op = "open duckdb driver"
	if !filepath.IsAbs(cfg.Dir) || !filepath.IsLocal(cfg.Path) || filepath.Clean(cfg.Path) != cfg.Path || cfg.Path == "." {
		return nil, errs.New(errs.Invalid, op, "%q in %q is not the path of a file", cfg.Path, cfg.Dir).
			WithHint("give an absolute folder, and a clean path relative to it")
	}
	r, err := database.Open(database.Config{
		Driver: "duckdb", App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Failpoint: cfg.Failpoint,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, records: r}
	d.Driver = database.NewDriver(r, engine{d})
	return d, nil
}

// state is the state of the database's files.
type state struct {
	Entries []entry `json:"entries"`
}

// entry is one file of the database.
type entry struct {
	Suffix  string `json:"suffix"` // "" for the database, ".wal" for its log
	Mode    uint32 `json:"mode"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	Size    int64  `json:"size"`
	Content string `json:"content"` // BLAKE3 in hex
}

// suffixes are the suffixes of the files that belong to a database.
var suffixes = []string{"", ".wal"}

// between reports whether each file equals that of one of the two states, or is missing: an interrupted restore leaves such a
// state.
func (s state) between(a, b state) bool {
	return !slices.ContainsFunc(s.Entries, func(e entry) bool { return !slices.Contains(a.Entries, e) && !slices.Contains(b.Entries, e) })
}

func (s state) encode() []byte {
	data, _ := json.Marshal(s) // strings and numbers always marshal
	return data
}

func (s state) hash() snap.Hash {
	return blake3.Sum256(append([]byte("mulligan duckdb state 1\n"), s.encode()...))
}

// stored is a state in the store.
type stored struct {
	state
	contents []cas.Hash // streams, one for each entry
}

// load reads the state of a snapshot.
func (d *Driver) load(root cas.Root) (s stored, err error) {
	data, refs, err := d.cfg.Store.Node(root.Hash)
	if err != nil {
		return s, database.Damaged(err)
	}
	err = json.Unmarshal(data, &s.state)
	if err == nil && len(refs) != len(s.Entries) {
		err = errors.New("it has another number of contents than of files")
	}
	s.contents = refs
	return s, errs.Wrap(errs.Corrupt, "read a snapshot", err)
}

// engine implements the steps of captures and switches for Driver.
type engine struct{ d *Driver }

// Classify gives err a kind and a hint.
func (e engine) Classify(op string, err error) error { return database.Classify(op, err, e.d.cfg.Dir) }

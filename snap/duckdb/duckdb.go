// Package duckdb is the driver for one DuckDB database of an app: its file, and the log beside it.
//
// It opens neither with DuckDB. A snapshot is the bytes of the two at one moment, which the driver
// knows from the files' times: a state that a DuckDB which died at that moment would find, and
// recovers from. A restore takes the lock that DuckDB itself takes, so that no process has the
// database open, and puts both files back.
//
// Where a DuckDB program is named, tables and rows are compared by asking it, with the owner's
// rights and on copies. No configuration reaches this driver yet.
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

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	Dir       string // absolute folder, trusted: the workspace, or the folder of a database outside it
	Path      string // of the database, relative to Dir; nothing in it is trusted
	StateDir  string // the daemon's own, for this driver alone: switches under way
	Store     *cas.Store
	Owner     privsep.User // whose the files must be, and who Program is run as
	// Program is run with the path of a database and a statement behind its arguments, and prints the
	// rows as JSON, as "duckdb -readonly -json" does. Without one, comparisons only tell sizes.
	Program   []string
	Failpoint failpoint.Hook // for tests
}

// Driver captures and restores one database.
type Driver struct {
	*database.Driver[database.Plan, *database.Plan]
	cfg     Config
	records *database.Records
}

// New makes the driver; it does not look at the database.
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

// state is what lies at the database's two names.
type state struct {
	Entries []entry `json:"entries"`
}

// entry is one of the files.
type entry struct {
	Suffix  string `json:"suffix"` // "" is the database, ".wal" its log
	Mode    uint32 `json:"mode"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	Size    int64  `json:"size"`
	Content string `json:"content"` // BLAKE3 in hex
}

// suffixes are the names beside each other that belong to a database.
var suffixes = []string{"", ".wal"}

// between reports whether each file is as in one of the two states, or is not there: what a
// restore leaves that was cut short.
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

// load reads what a snapshot's root holds.
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

// engine is the driver, as the steps of captures and switches see it.
type engine struct{ d *Driver }

// Classify gives err a kind and a hint.
func (e engine) Classify(op string, err error) error { return database.Classify(op, err, e.d.cfg.Dir) }

package supervise

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

// record is what is kept of a run across daemons, in run.json.
type record struct {
	Run  string `json:"run"`  // the run's id; empty: there never was one
	Boot string `json:"boot"` // the boot that it belongs to
	// Up says that the command is meant to run: it was started, and neither
	// stopped nor given up since.
	Up bool `json:"up"`
	// The command's process; PID 0 means that it is about to be started, or is gone.
	ident
	Restarts int       `json:"restarts"`
	Since    time.Time `json:"since"` // of the command's start, or its end
	Failed   bool      `json:"failed"`
	Result   string    `json:"result"` // how it last ended
}

// save makes rec the record, durably.
func (p *Process) save(rec record) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(p.cfg.StateDir, "run.json"), text, 0o600); err != nil {
		return errs.Wrap(errs.Failed, "record the run", err)
	}
	p.mu.Lock()
	p.rec = rec
	p.mu.Unlock()
	return nil
}

// load reads the record; without one it is the zero record.
func (p *Process) load() (rec record, err error) {
	path := filepath.Join(p.cfg.StateDir, "run.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	if err := json.Unmarshal(text, &rec); err != nil {
		return record{}, (&errs.Error{Kind: errs.Corrupt, Message: path + " is damaged", Err: err}).
			WithHint("end the app's processes by hand and remove the file")
	}
	return rec, nil
}

// takeLock locks the file at path until it is closed. The descriptor is closed
// on exec, so the lock is not passed on to the command.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = durable.Lock(f)
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errs.New(errs.Busy, "", "another daemon supervises the app").WithHint("see who has %s open", path)
	}
	return nil, errors.Join(err, f.Close())
}

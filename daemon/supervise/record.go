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

// record is the content of run.json, which describes a run for later daemons.
type record struct {
	Run  string `json:"run"`  // the run's id; empty if the command was never started
	Boot string `json:"boot"` // the boot in which it was started
	// Up says that the command should run: it was started, and since then neither stopped nor given up.
	Up bool `json:"up"`
	// The command's process. PID 0 means that it is about to be started, or has ended.
	ident
	Restarts int       `json:"restarts"`
	Since    time.Time `json:"since"` // of the command's start, or its end
	Failed   bool      `json:"failed"`
	Result   string    `json:"result"` // how the command ended last
}

// save writes rec durably. After an error the file may have rec or what it had before.
func (p *Process) save(rec record) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	err = durable.WriteFile(filepath.Join(p.cfg.StateDir, "run.json"), text, 0o600)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsure = err != nil; p.unsure {
		return errs.Wrap(errs.Failed, "record the run", err)
	}
	p.rec = rec
	return nil
}

// load reads the record. It returns the zero record if there is none.
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

// takeLock locks the file at path until the file is closed. The descriptor is closed on exec, so the command does not inherit
// the lock.
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
		err = errs.New(errs.Busy, "", "another daemon supervises the app").WithHint("lsof %s shows the process that has it open", path)
	}
	return nil, errors.Join(err, f.Close())
}

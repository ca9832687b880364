package supervise

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	err := durable.WriteJSON(filepath.Join(p.cfg.StateDir, "run.json"), rec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsure = err != nil; p.unsure {
		return errs.Wrap(errs.Failed, "record the run", err)
	}
	p.rec = rec
	return nil
}

// load reads the record. It returns the zero record if there is none. A damaged one is made anew from what runs.
func (p *Process) load() (rec record, err error) {
	err = durable.ReadJSON(filepath.Join(p.cfg.StateDir, "run.json"), &rec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record{}, nil
	case durable.Damaged(err):
		return p.found()
	case err != nil:
		return record{}, err
	}
	return rec, nil
}

// found returns the record of the newest run that has processes. It returns the zero record if nothing runs. Only processes of the command's
// user count: everybody can give a process the environment that those of a run have.
func (p *Process) found() (rec record, err error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	list, err := all()
	if err != nil {
		return record{}, err
	}
	uid := p.cfg.Owner.UID
	if p.cfg.Owner.IsSelf() {
		uid = os.Geteuid()
	}
	ours, newest := runPrefix(p.cfg.StateDir), uint64(0)
	for _, q := range list {
		if run := q.run(); strings.HasPrefix(run, ours) && q.Start >= newest && q.of(uid) {
			rec, newest = record{Run: run, Boot: boot, Up: true, Since: time.Now()}, q.Start
		}
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

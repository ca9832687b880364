package agents

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Sessions keeps the state of sessions between their hooks, each of which is a process, in a folder of the user. If the state
// is lost, a new turn begins.
type Sessions struct{ Dir string }

// session is the state of one session.
type session struct {
	Turn    string            `json:"turn,omitempty"`    // the open turn, as the daemon knows it
	Own     string            `json:"own,omitempty"`     // the agent's id of the newest turn
	Round   int               `json:"round,omitempty"`   // how often that turn was continued after its end
	Message string            `json:"message,omitempty"` // of the turn
	Apps    []string          `json:"apps,omitempty"`    // where the open turn was begun
	Where   map[string]string `json:"where,omitempty"`   // the app of each folder, during the open turn
	Calls   int               `json:"calls,omitempty"`   // number of calls without an agent's id in this turn
	Open    []openCall        `json:"open,omitempty"`    // of those
	Told    bool              `json:"told,omitempty"`    // the person was told that turns have no checkpoints
	Ending  []endedTurn       `json:"ending,omitempty"`  // ended, and the daemon does not know it yet
}

// endedTurn is a turn that ended, with the apps that were not told.
type endedTurn struct {
	Turn string   `json:"turn"`
	Apps []string `json:"apps"`
}

// openCall is a call that the agent gave no id and that has not ended.
type openCall struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	Args string `json:"args"` // digest
}

const (
	maxOpen   = 256                 // bounds the calls that never end
	maxEnding = 16                  // bounds the turns whose end cannot be told
	maxState  = 1 << 20             // bytes; a larger file was not written by mulligan
	forget    = 30 * 24 * time.Hour // a session that was unused for this time has ended
)

// with calls f with the session's state, excludes other hooks of the session meanwhile, and saves the changed state, also if f
// fails.
func (s Sessions) with(ctx context.Context, agent, name string, f func(*session) error) error {
	const op = "remember the session"
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	path := filepath.Join(s.Dir, agent+"-"+digest(name)+".json")
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	defer unlock()
	st, known := load(path)
	failed := f(&st)
	if err := save(path, st); err != nil {
		return errs.Also(failed, errs.Wrap(errs.Failed, op, err))
	}
	if !known {
		s.sweep(time.Now().Add(-forget))
	}
	return failed
}

// lock locks a file, and makes it if it is missing.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	// A wait for a lock in the kernel cannot be cancelled, so the lock is polled.
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// load reads a session. It returns a new one if the file cannot be read.
func load(path string) (st session, known bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return session{}, false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || fi.Size() > maxState {
		return session{}, true
	}
	if json.NewDecoder(f).Decode(&st) != nil {
		return session{}, true
	}
	return st, true
}

// save replaces the whole file. It does not sync: after a power failure the session has ended as well.
func save(path string, st session) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	tmp := path + ".new" // under the session's lock
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// sweep removes the files that were not used since then, and ignores errors.
func (s Sessions) sweep(since time.Time) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.ModTime().Before(since) && strings.HasSuffix(e.Name(), ".json") {
			path := filepath.Join(s.Dir, e.Name())
			_, _ = os.Remove(path), os.Remove(path+".lock")
		}
	}
}

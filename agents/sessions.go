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

// Sessions keeps, in a folder of the user's own, what a session's hooks must
// know of those that ran before them: each is a process of its own. All of it
// can be lost: then a turn is begun anew.
type Sessions struct{ Dir string }

// session is what is kept of one.
type session struct {
	Turn    string            `json:"turn,omitempty"`    // the open turn, as the daemon knows it
	Own     string            `json:"own,omitempty"`     // the agent's id of the newest turn
	Round   int               `json:"round,omitempty"`   // how often that turn was taken up again after its end
	Message string            `json:"message,omitempty"` // of the turn
	Apps    []string          `json:"apps,omitempty"`    // where the open turn was begun
	Where   map[string]string `json:"where,omitempty"`   // the app of each folder, during the open turn
	Calls   int               `json:"calls,omitempty"`   // begun in this turn, of those that the agent gives no id
	Open    []openCall        `json:"open,omitempty"`    // of those
}

// openCall is a call that the agent gave no id and that has not ended.
type openCall struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	Args string `json:"args"` // digest
}

const (
	maxOpen  = 256                 // calls that never end must not pile up
	maxState = 1 << 20             // bytes; a larger file is not ours
	forget   = 30 * 24 * time.Hour // a session unused for so long is over
)

// with runs f on the session's state, with no other hook of it at the same time,
// and keeps what f made of it, even if f fails.
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

// lock takes the lock on a file, which is made if need be.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	// A lock that is waited for in the kernel can't be given up, so it is asked for.
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

// load reads a session; what can't be read is a new one.
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

// save replaces the file as a whole. It does not wait for the disk: after a
// power failure the session is gone as well.
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

// sweep removes what was not used since then. What can't be removed stays.
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

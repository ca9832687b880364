package watch

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/testkit"
)

// follow starts a watcher on a new folder and waits until it watches.
func follow(t *testing.T, o Options) (*Watcher, string) {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.CookieDir = filepath.Join(t.TempDir(), "watch")
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.every, w.pause = 5*time.Millisecond, time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
	})
	until(t, w, snap.Watching)
	return w, o.Dir
}

// until waits for a state, and takes what is dirty then.
func until(t *testing.T, w *Watcher, want snap.FollowState) {
	t.Helper()
	deadline := time.After(testkit.Patience)
	for w.State().State != want {
		select {
		case <-w.Dirty():
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("still %+v, want %s", w.State(), want)
		}
	}
	w.Take()
}

// barrier fails the test where Barrier does.
func barrier(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), testkit.Patience)
	defer stop()
	if err := w.Barrier(ctx); err != nil {
		t.Fatalf("%v (%+v)", err, w.State())
	}
}

// entry is what the model knows of a path.
type entry struct {
	mode         fs.FileMode
	ino          uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// model is an index of a tree that is kept by what a watcher says, and by
// nothing else.
type model struct {
	dir     string
	entries map[string]entry
	alls    int // how many times it had to walk everything
}

func newModel(dir string) *model {
	m := &model{dir: dir}
	m.entries = m.walk(".")
	return m
}

func (m *model) stat(path string) (entry, bool) {
	fi, err := os.Lstat(filepath.Join(m.dir, path))
	if err != nil {
		return entry{}, false
	}
	st := fi.Sys().(*syscall.Stat_t)
	return entry{fi.Mode(), st.Ino, st.Size, st.Mtim, st.Ctim}, true
}

func (m *model) walk(top string) map[string]entry {
	found := map[string]entry{}
	filepath.WalkDir(filepath.Join(m.dir, top), func(full string, _ fs.DirEntry, err error) error {
		path, _ := filepath.Rel(m.dir, full)
		if e, ok := m.stat(path); ok {
			found[path] = e
		}
		return nil // what went away meanwhile will be an event
	})
	return found
}

func (m *model) cut(top string) {
	for p := range m.entries {
		if p == top || top == "." || strings.HasPrefix(p, top+"/") {
			delete(m.entries, p)
		}
	}
}

// apply looks where the set says.
func (m *model) apply(s Set) {
	if s.All {
		m.alls++
		m.entries = m.walk(".")
		return
	}
	for _, p := range s.Subtrees {
		m.cut(p)
		maps.Copy(m.entries, m.walk(p))
	}
	for _, p := range s.Paths {
		e, there := m.stat(p)
		if !there || !e.mode.IsDir() {
			m.cut(p)
		}
		if there {
			m.entries[p] = e
		}
	}
}

// check compares the model with the tree.
func (m *model) check(t *testing.T) {
	t.Helper()
	real := m.walk(".")
	for p, e := range real {
		if got, ok := m.entries[p]; !ok {
			t.Errorf("%q is there and was never reported", p)
		} else if got != e {
			t.Errorf("%q changed unreported: known as %+v, is %+v", p, got, e)
		}
	}
	for p := range m.entries {
		if _, ok := real[p]; !ok {
			t.Errorf("%q is gone, unreported", p)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package walk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/workspace"
	"mulligan/testkit"
)

// slowSink stores nothing, and waits in its first call.
type slowSink struct{ wait func() }

func (s *slowSink) Blob([]byte) (snap.Hash, error) {
	s.wait()
	return snap.Hash{}, nil
}

func (s *slowSink) Node([]byte, []snap.Hash) (snap.Hash, error) { return snap.Hash{}, nil }

// TestFirstWalkForetellsItsEnd: while a workspace is read for the first time, it is known how much there is, without what is excluded.
func TestFirstWalkForetellsItsEnd(t *testing.T) {
	dir := t.TempDir()
	noError(t, os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755))
	noError(t, os.MkdirAll(filepath.Join(dir, "left/out"), 0o755))
	for _, name := range []string{"a/1", "a/b/2", "a/b/c/3", "4", "left/out/5"} {
		noError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	ws, err := workspace.New(dir, t.TempDir(), 0, []string{"left"}, nil)
	noError(t, err)
	var last atomic.Pointer[snap.Work]
	ctx := snap.WithProgress(t.Context(), func(w snap.Work) { last.Store(&w) })
	w := &Walker{Workspace: ws, Cache: LoadCache(t.TempDir()), MaxFiles: 100, MaxBytes: 1 << 20}
	sink := &slowSink{}
	s := w.NewScan(ctx, "test", sink, func(snap.Hash) bool { return false })
	sink.wait = func() {
		testkit.Eventually(t, "the walk knows how much there is", func() bool {
			s.meter.Add(0)
			return last.Load().Total == 7
		})
	}
	_, err = s.Run()
	noError(t, err)
	if w := last.Load(); w.Done != w.Total {
		t.Errorf("at the end %d of %d are read", w.Done, w.Total)
	}
}

// TestForetellingLeavesTheWalkAlone: what is counted meanwhile changes nothing of what is read.
func TestForetellingLeavesTheWalkAlone(t *testing.T) {
	dir := t.TempDir()
	const files = 3000
	for i := range files {
		noError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file with a long name %06d", i)), nil, 0o644))
	}
	ws, err := workspace.New(dir, t.TempDir(), 0, nil, nil)
	noError(t, err)
	ctx := snap.WithProgress(t.Context(), func(snap.Work) {})
	for range 20 {
		w := &Walker{Workspace: ws, Cache: LoadCache(t.TempDir()), MaxFiles: 2 * files, MaxBytes: 1 << 20}
		top, err := w.NewScan(ctx, "test", &slowSink{func() {}}, func(snap.Hash) bool { return false }).Run()
		noError(t, err)
		for i, kid := range top.Children() {
			if want := fmt.Sprintf("file with a long name %06d", i); kid.Name != want {
				t.Fatalf("entry %d of %d is %q, want %q", i, len(top.Children()), kid.Name, want)
			}
		}
		if len(top.Children()) != files {
			t.Fatalf("%d of %d entries were read", len(top.Children()), files)
		}
	}
}

// TestDeepFoldersAreNotForetold: counting gives up where it would hold too many folders open.
func TestDeepFoldersAreNotForetold(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range 4*heldOpen + 2 {
		deep = filepath.Join(deep, "d")
	}
	noError(t, os.MkdirAll(deep, 0o755))
	ws, err := workspace.New(dir, t.TempDir(), 0, nil, nil)
	noError(t, err)
	root, err := ws.Open()
	noError(t, err)
	defer root.Close()
	s := (&Walker{Workspace: ws}).NewScan(t.Context(), "test", nil, nil)
	if n, err := s.number(t.Context(), root, "."); !errors.Is(err, errDeep) {
		t.Errorf("%d, %v", n, err)
	}
}

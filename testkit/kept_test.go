package testkit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What is kept is filled once, and what could not be filled is absent, so that the next test tries again.
func TestKept(t *testing.T) {
	root := t.TempDir()
	t.Setenv("MULLIGAN_TEST_CACHE", root)
	filled := 0
	fill := func(dir string) error {
		filled++
		return os.WriteFile(filepath.Join(dir, "f"), []byte{byte(filled)}, 0o600)
	}
	full := errors.New("the disk is full")
	if _, err := Kept("it", func(dir string) error { return errors.Join(fill(dir), full) }); !errors.Is(err, full) {
		t.Errorf("a failure: %v", err)
	}
	for range 2 {
		dir, err := Kept("it", fill)
		must(t, err)
		if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || b[0] != 2 || filled != 2 {
			t.Errorf("%v, %v, filled %d times", b, err, filled)
		}
	}
	// Another process is first.
	dir, err := Kept("other", func(dir string) error {
		_, err := Kept("other", fill)
		return errors.Join(err, fill(dir))
	})
	must(t, err)
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || b[0] != 3 {
		t.Errorf("%v, %v: what was there was replaced", b, err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 2 {
		t.Errorf("the cache has %v, %v", left, err)
	}
}

// A key changes with the program and with what it is told.
func TestKey(t *testing.T) {
	seen := map[string]bool{}
	dir := t.TempDir()
	program := filepath.Join(dir, "p")
	for _, text := range []string{"#!/bin/sh\n", "#!/bin/sh\n:\n"} {
		must(t, os.WriteFile(program, []byte(text), 0o755))
		for _, args := range [][]string{nil, {"a", "b"}, {"ab"}} {
			key, err := Key(program, args...)
			must(t, err)
			seen[key] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d keys, want 6", len(seen))
	}
	if _, err := Key(filepath.Join(dir, "none")); err == nil {
		t.Error("a program that is not there has a key")
	}
}

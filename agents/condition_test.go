package agents

import (
	"os"
	"path/filepath"
	"testing"
)

// An agent is found by its program or its folder, and its settings are without
// mulligan, with half of it, or in order.
func TestCondition(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, a := range All() {
		for _, scope := range []Scope{User, Project} {
			b := newBench(t, scope)
			if a.Found(b.place) {
				t.Errorf("%s is found in an empty home", a.Name)
			}
			is := func(what string, want Condition) {
				t.Helper()
				before := b.tree()
				got, files, err := a.Condition(b.place, b.backups)
				if err != nil || got != want || len(files) > 0 != (want == Partly) {
					t.Errorf("%s, %s, %s: %v %v, %v", a.Name, scope, what, got, files, err)
				}
				b.same("looked at", b.tree(), before)
			}
			is("untouched", Without)
			list := b.install(a)
			is("installed", Complete)
			if scope == User && !a.Found(b.place) {
				t.Errorf("%s is not found by its folder", a.Name)
			}
			if len(list) > 1 {
				text, err := os.ReadFile(list[0].Path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(list[0].Path); err != nil {
					t.Fatal(err)
				}
				is("with a file gone", Partly)
				if err := os.WriteFile(list[0].Path, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			was := b.place.Program
			b.place.Program = "/usr/bin/mulligan"
			if scope == User {
				is("of another program", Partly)
			}
			b.place.Program = was
			b.uninstall(a)
			is("uninstalled", Without)
		}
	}
}

func TestFoundByProgram(t *testing.T) {
	for _, a := range All() {
		bin := t.TempDir()
		t.Setenv("PATH", bin)
		if err := os.WriteFile(filepath.Join(bin, traces[a.Name].programs[0]), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if !a.Found(newBench(t, User).place) {
			t.Errorf("%s is not found by its program", a.Name)
		}
	}
}

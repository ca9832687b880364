package durable

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	for _, text := range []string{"old and long", "new", ""} {
		if err := WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v; want %q", got, err, text)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	onlyFile(t, filepath.Dir(path))
}

// What somebody else put at the temporary name is neither followed nor waited for, and the old content stays.
func TestWriteFileRefused(t *testing.T) {
	for what, put := range map[string]func(temp, other string) error{
		"folder": func(temp, _ string) error { return os.MkdirAll(filepath.Join(temp, "full"), 0o700) },
		"link":   func(temp, other string) error { return os.Symlink(other, temp) },
		"fifo":   func(temp, _ string) error { return syscall.Mkfifo(temp, 0o600) },
	} {
		path, other := filepath.Join(t.TempDir(), "note"), filepath.Join(t.TempDir(), "other")
		for _, p := range []string{path, other} {
			if err := os.WriteFile(p, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := put(path+tempSuffix, other); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, []byte("new"), 0o600); err == nil {
			t.Errorf("%s: it was written", what)
		}
		for _, p := range []string{path, other} {
			if got, err := os.ReadFile(p); err != nil || string(got) != "old" {
				t.Errorf("%s: %s holds %q, %v", what, p, got, err)
			}
		}
	}
}

// A rename that fails leaves nothing behind.
func TestWriteFileFailsLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	onlyFile(t, filepath.Dir(path))
}

func onlyFile(t *testing.T, dir string) {
	t.Helper()
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 || list[0].Name() != "note" {
		t.Errorf("%v, %v", list, err)
	}
}

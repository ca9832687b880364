package imagefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// TestNVRAM has something else in the place of an NVRAM: it is neither read nor written, and nobody waits for it.
func TestNVRAM(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	kept, outside := filepath.Join(dir, "kept"), filepath.Join(dir, "outside")
	must(os.WriteFile(kept, []byte("kept"), 0o600))
	must(os.WriteFile(outside, []byte("outside"), 0o600))
	for name, put := range map[string]func(path string) error{
		"link":          func(path string) error { return os.Symlink(outside, path) },
		"dangling link": func(path string) error { return os.Symlink(filepath.Join(dir, "none"), path) },
		"pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nvram")
			must(put(path))
			_, hashed := HashOrNone(path)
			_, read := ReadNVRAM(path)
			for what, err := range map[string]error{"hashed": hashed, "read": read, "written": Overwrite(path, kept)} {
				if errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), "is no plain file") {
					t.Errorf("it is %s: %v", what, err)
				}
			}
		})
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "outside" {
		t.Errorf("the file outside holds %q, %v", data, err)
	}
	if Exists(filepath.Join(dir, "none")) {
		t.Error("a file was made at the end of a link")
	}

	large, fresh := filepath.Join(dir, "large"), filepath.Join(dir, "fresh")
	must(os.WriteFile(large, nil, 0o600))
	must(os.Truncate(large, maxNVRAM+1))
	if _, err := ReadNVRAM(large); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("a large one: %v", err)
	}
	if _, err := ReadNVRAM(fresh); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	for _, path := range []string{large, fresh} {
		must(Overwrite(path, kept))
		if data, err := os.ReadFile(path); err != nil || string(data) != "kept" {
			t.Errorf("after a restore it holds %q, %v", data, err)
		}
	}
}

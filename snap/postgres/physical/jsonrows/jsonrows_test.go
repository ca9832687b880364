package jsonrows

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"mulligan/errs"
)

type base struct{ Start string }

// TestDamagedRow: a record in which one bit is wrong is not believed: with another start of a base copy, the log that it needs would be removed.
func TestDamagedRow(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bases"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := Folder(dir)
	var b base
	if err := f.Get("bases", "one", &b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing record: %v", err)
	}
	if err := f.Put("bases", "one", base{"0/3000028"}); err != nil {
		t.Fatal(err)
	}
	if all, err := List[base](f, "bases"); err != nil || len(all) != 1 || all[0].Start != "0/3000028" {
		t.Fatalf("%+v, %v", all, err)
	}
	path := f.file("bases", "one")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte("0/3"), []byte("0/7"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Get("bases", "one", &b); errs.KindOf(err) != errs.Corrupt {
		t.Errorf("a damaged record: %+v, %v", b, err)
	}
	if all, err := List[base](f, "bases"); errs.KindOf(err) != errs.Corrupt {
		t.Errorf("a list with a damaged record: %+v, %v", all, err)
	}
}

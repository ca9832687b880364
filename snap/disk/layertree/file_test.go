package layertree

import (
	"bytes"
	"os"
	"testing"

	"mulligan/errs"
)

// TestDamagedRecord: a record in which one bit is wrong is not believed. What it does not name would be taken for garbage.
func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	tree := &Tree{Version: Version, Layers: map[ID]*Layer{"one": {Parent: "zero"}}}
	if err := tree.Write(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := Read("read", dir); err != nil || got.Layers["one"] == nil || got.Layers["one"].Parent != "zero" {
		t.Fatalf("%+v, %v", got, err)
	}
	whole, err := os.ReadFile(file(dir))
	if err != nil {
		t.Fatal(err)
	}
	for was, is := range map[string]string{"ayers": "Ayers", "one": "ond", "zero": "zdro"} {
		text := bytes.Replace(whole, []byte(was), []byte(is), 1)
		if bytes.Equal(text, whole) {
			t.Fatalf("the record has no %q", was)
		}
		if err := os.WriteFile(file(dir), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read("read", dir); errs.KindOf(err) != errs.Corrupt || errs.HintOf(err) == "" {
			t.Errorf("with %q for %q: %+v, %v", is, was, got, err)
		}
	}
}

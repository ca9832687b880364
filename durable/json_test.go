package durable

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mulligan/errs"
)

type paper struct {
	Names map[string]string
	Start uint64
	Done  bool
}

// TestJSON: what was written is read; whatever bit of the file is wrong, or wherever it ends too early, what is read is either that or an
// error. A file of before there were checksums is read too.
func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.json")
	want := paper{Names: map[string]string{"vda": "/disks/1.qcow2", "vdb": "/disks/2.qcow2"}, Start: 3_000_028}
	var got paper
	if err := ReadJSON(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := WriteJSON(path, want); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(path, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, n int, text []byte) (damaged bool) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var got paper
		err := ReadJSON(path, &got)
		if damaged = errs.KindOf(err) == errs.Corrupt; damaged && strings.Contains(err.Error(), path) {
			return true
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s %d: %+v, %v", what, n, got, err)
		}
		return false
	}
	found := 0
	for bit := range 8 * len(whole) {
		text := bytes.Clone(whole)
		text[bit/8] ^= 1 << (bit % 8)
		if try("bit", bit, text) {
			found++
		}
	}
	if found != 8*len(whole) {
		t.Errorf("%d of %d wrong bits are found", found, 8*len(whole))
	}
	for end := range whole {
		try("end", end, whole[:end])
	}
	if try("without a checksum", 0, whole[:bytes.LastIndex(whole, []byte(sumMark))]) {
		t.Error("a file without a checksum counts as damaged")
	}
	if err := WriteJSON(path, func() {}); err == nil {
		t.Error("a function was written")
	}
}

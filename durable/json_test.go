package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestDamaged distinguishes a record whose content is lost from one that could not be read at this time.
func TestDamaged(t *testing.T) {
	in := func(err error) error {
		return fmt.Errorf("look: %w", &fs.PathError{Op: "read", Path: "record", Err: err})
	}
	for _, errno := range []unix.Errno{unix.EIO, unix.EUCLEAN, unix.EBADMSG} {
		if err := in(errno); !Damaged(err) || !Unreadable(err) {
			t.Errorf("%v is no damage", err)
		}
	}
	for _, errno := range []unix.Errno{unix.EACCES, unix.ENOENT, unix.EMFILE, unix.ENOMEM, unix.ESTALE} {
		if err := in(errno); Damaged(err) || Unreadable(err) {
			t.Errorf("%v is damage", err)
		}
	}
	if err := errs.New(errs.Corrupt, "", "the checksum is another one"); !Damaged(err) || Unreadable(err) {
		t.Errorf("%v: damage %v, unreadable %v", err, Damaged(err), Unreadable(err))
	}
}

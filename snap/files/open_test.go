package files

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// TestOpenPath reads files of a snapshot and of the workspace: a small one, an
// empty one, one with holes over many pieces; and what is no file, or not ours.
func TestOpenPath(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	store, err := cas.Open(filepath.Join(state, "store"), cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	holes := make([]byte, 5<<20+17)
	copy(holes[3<<20+5:], "in the middle")
	copy(holes[len(holes)-3:], "end")
	contents := map[string][]byte{"small": []byte("abc"), "empty": {}, "sub/holes": holes, "left/out": []byte("x")}
	for name, b := range contents {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("small", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{App: "app", Dir: dir, StateDir: filepath.Join(state, "files"), Store: store, Exclude: []string{"left/"}, Owner: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "fs-1"}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []snap.SnapshotID{"fs-1", ""} {
		for _, name := range []string{"small", "empty", "sub/holes"} {
			r, size, err := d.OpenPath(t.Context(), id, name)
			if err != nil {
				t.Fatalf("%q of %q: %v", name, id, err)
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, contents[name]) || size != int64(len(got)) {
				t.Errorf("%q of %q: %d bytes, size %d, %v", name, id, len(got), size, err)
			}
			r.Close()
		}
		for name, kind := range map[string]errs.Kind{
			"sub": errs.NotFound, "link": errs.NotFound, "nosuch": errs.NotFound, "left/out": errs.NotFound, "link/x": errs.NotFound,
			"../x": errs.Invalid, "/etc/passwd": errs.Invalid, "": errs.Invalid, "sub/../small": errs.Invalid,
		} {
			if _, _, err := d.OpenPath(t.Context(), id, name); errs.KindOf(err) != kind {
				t.Errorf("%q of %q: %v, want %s", name, id, err, kind)
			}
		}
	}
	// A reader that goes away in the middle leaves nothing behind.
	r, _, err := d.OpenPath(t.Context(), "fs-1", "sub/holes")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, r, 10); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

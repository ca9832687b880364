//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// TestLongFlippedByteOfOverlay changes single bytes of a guest's stored disk: verify names
// the checkpoint and the layer, and a rollback finds it before it touches anything.
func TestLongFlippedByteOfOverlay(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	w := newVMWorld(t, nil)
	w.put(t, "one")
	one := w.create(t, ipc.CreateRequest{Pinned: true})
	w.put(t, "two")
	overlay := w.head(t)
	two := w.create(t, ipc.CreateRequest{Pinned: true})
	w.rollback(t, one.ID) // so that the guest does not rest on the second
	w.WaitReady(t)
	sh(t, `chattr -i "$1" || true`, overlay) // where the file system knows of it
	fi, err := os.Stat(overlay)
	if err != nil {
		t.Fatal(err)
	}
	rnd := testkit.Rand(t)
	const flips = 300
	for range flips {
		at := rnd.Int64N(fi.Size())
		back := flip(t, overlay, at)
		w.foundIn(t, two.ID, "disk", fmt.Sprintf("byte %d of %s", at, filepath.Base(overlay)))
		back()
		if t.Failed() {
			return
		}
	}
	testkit.Tally(t, "flips", flips)
	if got := w.all(t); got != "one" {
		t.Errorf("the app is in state %q", got)
	}
	if res, err := w.d.Verify(t.Context(), root, "shop", two.ID, snap.Full); err != nil || !res.OK {
		t.Errorf("with all bytes as they were: %+v, %v", res, err)
	}
}

// testBrokenGuest writes text over the image of a running guest, and restarts the daemon. A rollback
// brings the guest back with the rest, what lay there is kept, and redo and undo go there and back.
// A domain that was undefined can be left out.
func testBrokenGuest(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, nil)
	w.put(t, "one")
	cp := w.create(t, ipc.CreateRequest{Pinned: true}).ID
	w.put(t, "two")
	image := w.head(t)
	if err := os.WriteFile(image, []byte("oops"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.close(t, w.d)
	w.d = w.open(t)
	if _, err := w.d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil || !strings.Contains(err.Error(), image) {
		t.Errorf("a checkpoint: %v", err)
	}
	if a, err := w.d.AppWithGaps(t.Context(), root, "shop"); err != nil || len(a.Gaps) != 1 || !a.Gaps[0].Blocks || !strings.Contains(a.Gaps[0].What, image) {
		t.Errorf("the gaps are %+v, %v", a.Gaps, err)
	}
	res := w.rollback(t, cp)
	if !strings.Contains(strings.Join(res.Warnings, "\n"), "disk could not be read; its bytes were kept") {
		t.Errorf("the warnings are %q", res.Warnings)
	}
	if kept := read(t, filepath.Dir(image), filepath.Base(image)); kept != "oops" {
		t.Errorf("what lay there is %q", kept)
	}
	if _, err := w.d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{Start: new(bool)}, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.word(t); got != "two" || w.up(t) {
		t.Errorf("redone, files and rows are in state %q, and the guest runs: %t", got, w.up(t))
	}
	start := true
	if _, err := w.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Start: &start}, nil); err != nil {
		t.Fatal(err)
	}
	w.WaitReady(t)
	if got := w.all(t); got != "one" {
		t.Errorf("the app is in state %q", got)
	}

	w.set(t, "three")
	if err := w.domain(t).Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := w.domain(t).Undefine(); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			w.close(t, w.d)
			w.d = w.open(t)
		}
		_, err := w.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
		if err == nil || !strings.Contains(errs.HintOf(err), "--without disk") {
			t.Errorf("a rollback of what is undefined: %v (%s)", err, errs.HintOf(err))
		}
		goBack(t, w.d, cp, ipc.RollbackRequest{Without: []string{"disk"}})
		if got := w.word(t); got != "one" {
			t.Errorf("files and rows are in state %q", got)
		}
		w.set(t, "three")
	}
}

// head is the file that the guest's first disk is written to.
func (w *vmWorld) head(t *testing.T) string {
	t.Helper()
	text, err := w.domain(t).GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(text, "source file='")
	path, _, _ := strings.Cut(after, "'")
	return path
}

// foundIn checks that damage is found in one layer of one checkpoint, and nothing is
// done then.
func (w *vmWorld) foundIn(t *testing.T, id ipc.CheckpointID, layer, where string) {
	t.Helper()
	res, err := w.d.Verify(t.Context(), root, "shop", id, snap.Full)
	if err != nil || res.OK || res.CheckpointID != id || !slices.ContainsFunc(res.Problems, func(p ipc.VerifyProblem) bool { return p.Layer == layer }) {
		t.Errorf("%s: %+v, %v", where, res, err)
	}
	before := w.touched(t)
	back, err := w.d.Rollback(t.Context(), root, "shop", id, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.Corrupt || back.RolledBack || !w.up(t) {
		t.Errorf("%s: %v, %+v", where, err, back)
	}
	if after := w.touched(t); !slices.Equal(after, before) {
		t.Errorf("%s: the workspace was touched:\n%q\n%q", where, before, after)
	}
}

//go:build cgo && libvirt_dlopen

package daemon_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestLibvirtdAway: with libvirtd away, what is not of the domain can be taken back, and the
// error of a whole rollback says how.
func testLibvirtdAway(t *testing.T) {
	t.Parallel()
	w := newVMWorld(t, func(a *ipc.App) { a.Run = []string{"sleep", "1000000"} })
	write(t, w.ws(), "work", "zero")
	cp := w.create(t, ipc.CreateRequest{}).ID
	write(t, w.ws(), "work", "one")
	w.endLibvirtd(t)
	_, err := w.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	if err == nil || !strings.Contains(errs.HintOf(err), "--without disk") {
		t.Errorf("a whole rollback: %v (%s)", err, errs.HintOf(err))
	}
	for name, req := range map[string]ipc.RollbackRequest{
		"layer:files": {Scope: []string{"layer:files"}}, "a path": {Scope: []string{"work"}}, "without disk": {Without: []string{"disk"}},
	} {
		write(t, w.ws(), "work", "one")
		res, err := w.d.Rollback(t.Context(), root, "shop", cp, req, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := read(t, w.ws(), "work"); got != "zero" || !strings.Contains(strings.Join(res.Warnings, "\n"), "is not known") {
			t.Errorf("%s: work says %q, the warnings are %q", name, got, res.Warnings)
		}
	}
	if err := w.host.Hold(false); err != nil {
		t.Fatal(err)
	}
	w.reconnect(t)
	if !w.up(t) {
		t.Error("the guest is off")
	}
}

// endLibvirtd kills libvirtd, which does not come up again until beginLibvirtd.
func (w *vmWorld) endLibvirtd(t *testing.T) {
	t.Helper()
	if err := w.host.Hold(true); err != nil {
		t.Fatal(err)
	}
	if err := w.host.KillLibvirtd(); err != nil {
		t.Fatal(err)
	}
}

func (w *vmWorld) beginLibvirtd(t *testing.T) {
	t.Helper()
	if err := w.host.Hold(false); err != nil {
		t.Fatal(err)
	}
	w.reconnect(t)
}

// testStartedWithoutLibvirtd starts the daemon while libvirtd is away: all but the guest's disks
// can be taken back, the disks are neither captured as files nor written over, and once
// libvirtd is there they can be taken back too, with no command in between.
func testStartedWithoutLibvirtd(t *testing.T) {
	t.Parallel()
	w := newDomainIn(t, "shop", "vm")
	w.set(t, "zero")
	w.d = w.open(t)
	app := ipc.App{
		Slug: "shop", Workspace: w.ws(), Domain: w.Name, URI: w.host.URI, Shutdown: "destroy", Run: []string{"sleep", "1000000"}, Auto: true,
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	}
	if _, err := w.d.AddApp(t.Context(), root, app); err != nil {
		t.Fatal(err)
	}
	w.close(t, w.d)
	w.endLibvirtd(t) // before anything was captured
	w.d = w.open(t)
	w.saysAway(t)
	w.beginLibvirtd(t)
	waitFor(t, "the disks can be used", func() bool { return !strings.Contains(problemsOf(t, w.d), "cannot be used yet") })
	w.put(t, "one")
	cp := w.create(t, ipc.CreateRequest{Pinned: true}).ID
	w.put(t, "two")

	w.close(t, w.d)
	w.endLibvirtd(t)
	images := w.images(t)
	w.d = w.open(t)
	w.saysAway(t)
	if _, err := w.d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), "disk: ") || !strings.Contains(errs.HintOf(err), "libvirtd") {
		t.Errorf("a checkpoint: %v (%s)", err, errs.HintOf(err))
	}
	_, err := w.d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	if err == nil || !strings.Contains(errs.HintOf(err), "--without disk") {
		t.Errorf("a whole rollback: %v (%s)", err, errs.HintOf(err))
	}
	for name, req := range map[string]ipc.RollbackRequest{
		"files": {Scope: []string{"layer:files"}}, "database": {Scope: []string{"layer:db:shop"}}, "without disk": {Without: []string{"disk"}},
	} {
		w.set(t, "two")
		res := goBack(t, w.d, cp, req)
		want := map[string][2]string{"files": {"one", "two"}, "database": {"two", "one"}, "without disk": {"one", "one"}}[name]
		files, rows, _, err := w.words()
		if got := [2]string{files, rows}; err != nil || got != want {
			t.Errorf("%s: %v, files and rows are in states %q, want %q; %q", name, err, got, want, res.Warnings)
		}
	}
	if got := w.images(t); !slices.Equal(got, images) {
		t.Errorf("the guest's images are %q, and were %q", got, images)
	}
	if got := w.Do(t, "get"); got != "two two" {
		t.Errorf("the guest was left alone, and says %q", got)
	}
	begin(t, w.d, "turn-1")
	w.set(t, "three")
	if turn := end(t, w.d, "turn-1"); turn.CheckpointID == nil {
		t.Errorf("a turn has no checkpoint: %+v", turn)
	} else if cp, err := w.d.Checkpoint(t.Context(), root, "shop", *turn.CheckpointID); err != nil || !strings.Contains(strings.Join(cp.Warnings, "\n"), "disk is not in it: the layer cannot be used yet") {
		t.Errorf("a turn's checkpoint: %v, %q", err, cp.Warnings)
	}

	w.beginLibvirtd(t)
	waitFor(t, "the disks can be used", func() bool { return !strings.Contains(problemsOf(t, w.d), "cannot be used yet") })
	w.put(t, "three")
	w.rollback(t, cp)
	w.WaitReady(t)
	if got := w.all(t); got != "one" {
		t.Errorf("the app is in state %q", got)
	}
	w.create(t, ipc.CreateRequest{})
}

// saysAway checks that the app says, at once, that its disks cannot be reached and why.
func (w *vmWorld) saysAway(t *testing.T) {
	t.Helper()
	for whose, said := range map[string]string{"the app's": problemsOf(t, w.d), "the daemon's": strings.Join(w.d.Status(root).Problems, "\n")} {
		for _, words := range []string{"disk cannot be used yet", "connect to libvirt", "libvirtd is running", "tries again"} {
			if !strings.Contains(said, words) {
				t.Errorf("%s problems lack %q: %q", whose, words, said)
			}
		}
	}
}

// images are the files in the folder of the guest's images, and which files they are.
func (w *vmWorld) images(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(filepath.Join(w.ws(), "vm"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		list = append(list, fmt.Sprintf("%s:%d", path, fi.Sys().(*syscall.Stat_t).Ino))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

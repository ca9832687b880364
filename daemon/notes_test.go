package daemon_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestNotes: after its first checkpoint, what changes in the files of an app without automatic checkpoints is noted. Checkpoints, comparisons
// and rollbacks are as exact as before, no turn is made of the writes, and the settings turn it off.
func TestNotes(t *testing.T) {
	t.Parallel()
	w := world{dir: t.TempDir()}
	check(t, os.Mkdir(w.ws(), 0o755))
	w.set(t, "zero")
	opt := w.options()
	opt.UpkeepEvery, opt.Watches = 20*time.Millisecond, 0
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}}})
	check(t, err)
	if got := followingOf(t, d, "shop"); got != "" {
		t.Errorf("before the first checkpoint, files are %q", got)
	}
	zero := createAs(t, d, "shop")
	waitFor(t, "changes are noted", func() bool { return followingOf(t, d, "shop") == "noting" })

	w.set(t, "one")
	diff, err := d.Diff(t.Context(), root, "shop", zero.ID, ipc.DiffQuery{})
	check(t, err)
	if len(diff.Changes) == 0 {
		t.Errorf("nothing changed: %+v", diff)
	}
	one := createAs(t, d, "shop")
	for _, step := range []struct {
		to   ipc.CheckpointID
		word string
	}{{zero.ID, "zero"}, {ipc.Redo, "one"}, {zero.ID, "zero"}, {one.ID, "one"}} {
		goBack(t, d, step.to, ipc.RollbackRequest{})
		if files, sqlite, _, err := w.words(); err != nil || files != step.word || sqlite != step.word {
			t.Fatalf("files %q, SQLite %q, %v, want %q", files, sqlite, err, step.word)
		}
	}
	if turns, err := d.Turns(t.Context(), root, "shop", "", 0); err != nil || len(turns) > 0 {
		t.Errorf("turns %+v, %v", turns, err)
	}

	off, on := false, true
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Follow: &off})
	check(t, err)
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Auto: &on})
	if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "automatic checkpoints need the files to be followed") {
		t.Errorf("auto without following: %v", err)
	}
	if got := followingOf(t, d, "shop"); got != "" {
		t.Errorf("with follow = false, files are %q", got)
	}
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Follow: &on, Auto: &on})
	check(t, err)
	awaitFollowing(t, d)
}

// TestShareWatches: where there are not enough watches for two apps, the one that was asked for last has them.
func TestShareWatches(t *testing.T) {
	t.Parallel()
	w := world{dir: t.TempDir()}
	opt := w.options()
	opt.UpkeepEvery, opt.Watches = 20*time.Millisecond, 30
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	for _, slug := range []string{"left", "right"} {
		for i := range 20 {
			dir := filepath.Join(w.dir, slug, fmt.Sprint("d", i))
			check(t, os.MkdirAll(dir, 0o755))
			check(t, os.WriteFile(filepath.Join(dir, "file"), []byte(slug), 0o644))
		}
		_, err := d.AddApp(t.Context(), root, ipc.App{Slug: slug, Workspace: filepath.Join(w.dir, slug)})
		check(t, err)
		createAs(t, d, slug)
		waitFor(t, slug+" has the watches", func() bool { return followingOf(t, d, slug) == "noting" })
	}
	state := map[string]string{}
	for _, a := range d.Apps(t.Context(), root) { // which is not to ask for one
		state[a.Slug] = a.Following
	}
	if state["left"] != "" || state["right"] != "noting" {
		t.Errorf("%v", state)
	}
	waitFor(t, "the other one has them, once it is asked for", func() bool { return followingOf(t, d, "left") == "noting" })
}

// TestNotesOfManyApps: of many apps, no more are noted at any moment than may be, also just after a start, when nobody has asked for any; and an app
// that somebody asks for takes the place of another one.
func TestNotesOfManyApps(t *testing.T) {
	t.Parallel()
	w := world{dir: t.TempDir()}
	opt := w.options()
	d := w.openAs(t, opt)
	for i := range 6 {
		slug := fmt.Sprint("app", i)
		check(t, os.Mkdir(filepath.Join(w.dir, slug), 0o755))
		_, err := d.AddApp(t.Context(), root, ipc.App{Slug: slug, Workspace: filepath.Join(w.dir, slug)})
		check(t, err)
		createAs(t, d, slug)
	}
	w.close(t, d)

	opt.UpkeepEvery, opt.Watches, opt.Notes = 50*time.Millisecond, 0, 2
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	noted := func() (slugs []string) {
		for _, a := range d.Apps(t.Context(), root) { // which is not to ask for one
			if a.Following != "" {
				slugs = append(slugs, a.Slug)
			}
		}
		if len(slugs) > opt.Notes {
			t.Fatalf("%d apps are noted at once: %v", len(slugs), slugs)
		}
		return slugs
	}
	waitFor(t, "two apps are noted", func() bool { return len(noted()) == 2 })
	for i := range 6 {
		slug := fmt.Sprint("app", i)
		_, err := d.App(t.Context(), root, slug)
		check(t, err)
		waitFor(t, slug+" is noted", func() bool { return slices.Contains(noted(), slug) })
	}
	if got := noted(); !slices.Equal(got, []string{"app4", "app5"}) {
		t.Errorf("noted: %v", got)
	}
}

// TestDeleteOfNoted: what only a deleted checkpoint held is freed, also where changes are noted.
func TestDeleteOfNoted(t *testing.T) {
	t.Parallel()
	w := world{dir: t.TempDir()}
	check(t, os.Mkdir(w.ws(), 0o755))
	check(t, os.WriteFile(filepath.Join(w.ws(), "big"), testkit.Bytes(t, 4<<20), 0o644))
	opt := w.options()
	opt.UpkeepEvery, opt.Watches = 20*time.Millisecond, 0
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()})
	check(t, err)
	first := createAs(t, d, "shop")
	waitFor(t, "changes are noted", func() bool { return followingOf(t, d, "shop") == "noting" })
	if n := stored(t, w.state()); n < 4<<20 {
		t.Errorf("the checkpoint takes %d bytes", n)
	}
	check(t, os.Remove(filepath.Join(w.ws(), "big")))
	createAs(t, d, "shop")
	check(t, d.Delete(t.Context(), root, "shop", first.ID))
	waitFor(t, "the file's contents are freed", func() bool { return stored(t, w.state()) < 1<<20 })
}

func stored(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // files come and go
		if err == nil && !e.IsDir() {
			if info, err := e.Info(); err == nil && e.Name() != "ballast" {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}

func followingOf(t *testing.T, d *daemon.Daemon, slug string) string {
	t.Helper()
	a, err := d.App(t.Context(), root, slug)
	check(t, err)
	return a.Following
}

func createAs(t *testing.T, d *daemon.Daemon, slug string) ipc.Checkpoint {
	t.Helper()
	cp, err := d.Create(t.Context(), root, slug, ipc.CreateRequest{})
	check(t, err)
	return cp
}

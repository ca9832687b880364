package files

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/rights"
	"mulligan/testkit"
)

// TestReaderAgainstTheKernel: for files and folders of random owners, modes and access
// lists, Reader says what the kernel says when that user opens them.
func TestReaderAgainstTheKernel(t *testing.T) {
	o := newOwn(t)
	r := testkit.Rand(t)
	const group1, group2 = 6061, 6062
	user := newSomebody(t, otherID, group1, group2)
	reader := rights.Reader{UID: otherID, GID: otherID, Groups: []int{group1, group2}}
	gids := []uint32{0, ownerID, otherID, group1, group2}
	granted, listed := 0, 0
	for i := range 600 {
		path := o.in(fmt.Sprint("x", i))
		if i%2 == 0 {
			roots(t, path, "x", 0o600)
		} else {
			must(t, os.Mkdir(path, 0o700))
		}
		must(t, os.Chown(path, []int{0, ownerID, otherID}[r.IntN(3)], int(gids[r.IntN(len(gids))])))
		must(t, unix.Chmod(path, uint32(r.IntN(0o1000))))
		if r.IntN(3) > 0 {
			must(t, unix.Setxattr(path, rights.AccessListName, randomList(r, gids), 0))
		}
		f, err := os.OpenFile(path, unix.O_PATH, 0)
		must(t, err)
		e, _, err := rights.ReadEntry(int(f.Fd()))
		must(t, err)
		must(t, f.Close())
		for _, want := range []uint32{rights.ToRead, rights.ToSearch} {
			err := user.do(func() error { return tries(path, e, want) })
			if got := reader.May(e, want); got != (err == nil) {
				t.Fatalf("%o of %d:%d %x: may(%o) is %v, and the kernel says %v", e.Mode, e.Uid, e.Gid, e.Xattrs(), want, got, err)
			}
			if err == nil {
				granted++
			}
		}
		if _, is := e.Xattr(rights.AccessListName); is {
			listed++
		}
	}
	if granted < 100 || listed < 100 {
		t.Errorf("only %d were granted, and %d had access lists", granted, listed)
	}
}

// tries reads or searches path, as far as that can be asked of its kind.
func tries(path string, e *manifest.Entry, want uint32) error {
	if want == rights.ToRead {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if e.Kind() == manifest.DirKind {
		_, err := os.Lstat(path + "/.")
		return err
	}
	return unix.Faccessat2(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// randomList is an access list with named users and groups.
func randomList(r *rand.Rand, gids []uint32) []byte {
	perm := func() uint32 { return uint32(r.IntN(8)) }
	list := []listEntry{{1, perm(), ^uint32(0)}}
	for _, uid := range []uint32{ownerID, otherID} {
		if r.IntN(2) == 0 {
			list = append(list, listEntry{tagUser, perm(), uid})
		}
	}
	list = append(list, listEntry{tagGroupOwner, perm(), ^uint32(0)})
	for _, gid := range gids {
		if r.IntN(3) == 0 {
			list = append(list, listEntry{tagGroup, perm(), gid})
		}
	}
	return encodeList(append(list, listEntry{16, perm(), ^uint32(0)}, listEntry{32, perm(), ^uint32(0)}))
}

// TestOpenPathOfTheOwner: the app's owner reads what the kernel would let the owner
// read, of a snapshot and of the present, and nothing else.
func TestOpenPathOfTheOwner(t *testing.T) {
	o := newOwn(t)
	o.owner.must(t, func() error { return os.MkdirAll(o.in("sub/deep"), 0o755) })
	for _, p := range []string{"mine", "sub/deep/mine"} {
		o.owner.write(t, o.in(p), "own "+p, 0o600)
	}
	roots(t, o.in("public"), "for all", 0o644)
	roots(t, o.in("secret"), "secret", 0o600)
	roots(t, o.in("group"), "for the group", 0o640)
	must(t, os.Chown(o.in("group"), 0, ownerID))
	roots(t, o.in("listed"), "for one", 0o600)
	must(t, unix.Setxattr(o.in("listed"), rights.AccessListName, aclText(ownerID, 4), 0))
	roots(t, o.in("masked"), "for none", 0o600)
	must(t, unix.Setxattr(o.in("masked"), rights.AccessListName, aclText(ownerID, 4), 0))
	must(t, unix.Chmod(o.in("masked"), 0o600)) // that is the mask
	must(t, os.Mkdir(o.in("shut"), 0o700))
	roots(t, o.in("shut/public"), "behind a door", 0o644)
	must(t, unix.Mknod(o.in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	snapshot := o.site.capture(t).ID
	want := map[string]string{"mine": "own mine", "sub/deep/mine": "own sub/deep/mine", "public": "for all", "group": "for the group", "listed": "for one"}
	for _, id := range []snap.SnapshotID{snapshot, ""} {
		for _, p := range []string{"mine", "sub/deep/mine", "public", "group", "listed", "secret", "masked", "shut/public"} {
			f, _, err := o.OpenPath(t.Context(), id, p)
			if want[p] == "" {
				if errs.KindOf(err) != errs.Denied {
					t.Errorf("%s of %q: %v", p, id, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s of %q: %v", p, id, err)
				continue
			}
			if b, err := io.ReadAll(f); err != nil || string(b) != want[p] {
				t.Errorf("%s of %q: %q, %v", p, id, b, err)
			}
			f.Close()
		}
		if _, _, err := o.OpenPath(t.Context(), id, "null"); errs.KindOf(err) != errs.NotFound {
			t.Errorf("a device of %q: %v", id, err)
		}
	}
}

// TestNamesBehindDoors: of what changed where the owner may not look, a diff, a
// restore's changes and a revert's outcome tell the number and no name.
func TestNamesBehindDoors(t *testing.T) {
	o := newOwn(t)
	must(t, os.Mkdir(o.in("data"), 0o700))
	roots(t, o.in("data/hidden-a"), "a", 0o644)
	o.owner.write(t, o.in("mine"), "one", 0o644)
	o.flush(t)
	old := o.site.capture(t).ID
	turn := o.during(t, func() {
		roots(t, o.in("data/hidden-a"), "longer", 0o644)
		must(t, os.MkdirAll(o.in("data/hidden-d"), 0o755))
		roots(t, o.in("data/hidden-d/hidden-c"), "c", 0o644)
		o.owner.write(t, o.in("mine"), "two", 0o644)
	})
	new := o.site.capture(t).ID
	quiet := func(what string, v any) {
		t.Helper()
		text, err := json.Marshal(v)
		must(t, err)
		if strings.Contains(string(text), "hidden") || !strings.Contains(string(text), "mine") || !strings.Contains(string(text), `"data"`) {
			t.Errorf("%s: %s", what, text)
		}
	}
	for _, sides := range [][2]snap.SnapshotID{{old, new}, {old, ""}, {new, old}} {
		list, err := o.Diff(t.Context(), sides[0], sides[1], nil)
		must(t, err)
		quiet("diff", list)
		if len(list) != 2 || !strings.Contains(list[0].Summary, "3 changes in it, where the app's owner may not look") {
			t.Errorf("%+v", list)
		}
	}
	sw, err := o.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Base: new, Target: old})
	must(t, err)
	list, total := sw.Changes(100)
	if quiet("changes", list); total != 2 {
		t.Errorf("%d changes", total)
	}
	must(t, sw.Finish(t.Context()))
	seen, err := o.RedactPaths([]string{"data/hidden-a", "data/hidden-d/hidden-c", "mine"})
	must(t, err)
	quiet("seen", seen)
	sw, how, err := o.PrepareRevert(t.Context(), snap.RevertRequest{ID: "op-2", Base: new, Writes: turn})
	must(t, err)
	quiet("revert", how)
	must(t, sw.Finish(t.Context()))

	// Of the past, too: the folder is open now, and was not.
	must(t, unix.Chmod(o.in("data"), 0o755))
	list, err = o.Diff(t.Context(), old, "", nil)
	must(t, err)
	quiet("diff with an open folder", list)
	all, err := o.Diff(t.Context(), new, "", nil)
	must(t, err)
	if len(all) != 1 || all[0].Path != "data" {
		t.Errorf("%+v", all)
	}
	// Its names are told to whom they always were open.
	must(t, unix.Chmod(o.in("data"), 0o755))
	open := o.site.capture(t).ID
	roots(t, o.in("data/seen"), "x", 0o600)
	list, err = o.Diff(t.Context(), open, "", nil)
	must(t, err)
	if len(list) != 1 || list[0].Path != "data/seen" {
		t.Errorf("%+v", list)
	}
}

// TestWarningsBehindDoors: warnings and errors of a capture name nothing that is in a folder that the owner may not look into.
func TestWarningsBehindDoors(t *testing.T) {
	testkit.Need(t, "root")
	for _, follow := range []bool{false, true} {
		o := newOwn(t)
		if !follow {
			o.stop()
		}
		must(t, os.Mkdir(o.in("data"), 0o700))
		must(t, os.Mkdir(o.in("data/hidden-d"), 0o755))
		must(t, unix.Mount("none", o.in("data/hidden-d"), "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { unix.Unmount(o.in("data/hidden-d"), unix.MNT_DETACH) })
		roots(t, o.in("data/hidden-a"), "a", 0o644)
		must(t, exec.Command("chattr", "+d", o.in("data/hidden-a")).Run())
		mustGit(t, o.in("data"), "init", "-q", "hidden-repo")
		roots(t, o.in("data/hidden-repo/.git/index.lock"), "", 0o644)
		warnings := o.site.capture(t).Warnings
		text := strings.Join(warnings, "\n")
		for _, want := range []string{"is a mount point", "inode flags", "Git was at work in"} {
			if !strings.Contains(text, want) {
				t.Errorf("follow=%v: no warning that it %s", follow, want)
			}
		}
		if strings.Contains(text, "hidden") || !strings.Contains(text, "something in "+o.dir+"/data") {
			t.Errorf("follow=%v: %s", follow, text)
		}

		chain(t, o.in("data"), 200, strings.Repeat("hidden", 40))
		_, err := o.Capture(t.Context(), snap.CaptureRequest{ID: "fs-deep"})
		if errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "something in "+o.dir+"/data") {
			t.Errorf("follow=%v: a path that is too long: %v", follow, err)
		}
	}
}

// TestMountedOver: a workspace that something is mounted on later is neither read nor
// written; one that always was a mount point is, also when its device has another number.
func TestMountedOver(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/file", "one")
	one := s.capture(t)
	refused := func(s *site, what, hint string) {
		t.Helper()
		_, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-r"})
		if errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), what) || !strings.Contains(errs.HintOf(err), hint) {
			t.Errorf("%v (%s)", err, errs.HintOf(err))
		}
		s.open(t) // as a new process
		if _, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-r"}); errs.KindOf(err) != errs.Denied {
			t.Errorf("after a restart: %v", err)
		}
	}
	write(t, s.dir+"/file", "two")
	two := s.capture(t)
	sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: one.ID, Base: two.ID})
	must(t, err)
	mount(t, "none", s.dir, "tmpfs", 0, "size=1m")
	if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Denied {
		t.Errorf("Commit into what was mounted: %v", err)
	}
	if names, err := os.ReadDir(s.dir); err != nil || len(names) > 0 {
		t.Errorf("it holds %v, %v", names, err)
	}
	refused(s, "mounted on it", "unmount")
	must(t, unix.Unmount(s.dir, 0))
	s.capture(t)

	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(top+"/part", 0o755))
	mount(t, "none", top+"/part", "tmpfs", 0, "size=1m")
	p := newSite(t, func(c *Config) { c.Dir = top + "/part" })
	p.capture(t)
	must(t, unix.Unmount(top+"/part", unix.MNT_DETACH))
	refused(p, "nothing is mounted", "mount it")
	mount(t, "none", top+"/part", "tmpfs", 0, "size=1m") // another device, as after a reboot
	p.open(t)
	p.capture(t)
}

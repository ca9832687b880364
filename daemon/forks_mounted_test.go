package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// mountedForks is the app of a world on a file system where the forks of one request are mounted over one copy.
type mountedForks struct {
	world
	t     *testing.T
	d     *daemon.Daemon
	image string // the disk
}

func newMountedForks(t *testing.T) *mountedForks {
	t.Helper()
	testkit.Need(t, "root", "xfs")
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	m := &mountedForks{world: world{dir: dir}, t: t, image: filepath.Join(t.TempDir(), "image")}
	sh(t, `truncate -s 512M "$2" && mkfs.xfs -q "$2" && mount -o loop "$2" "$1"`, dir, m.image)
	t.Cleanup(func() { sh(t, `umount -l -R "$1" && rmdir "$1"`, dir) })
	check(t, os.Mkdir(m.ws(), 0o755))
	m.set(t, "zero")
	check(t, os.MkdirAll(filepath.Join(m.ws(), "deep/er/folder"), 0o750))
	check(t, os.WriteFile(filepath.Join(m.ws(), "deep/er/folder/f"), []byte("deep"), 0o600))
	for _, link := range []string{"hard1", "hard2"} {
		check(t, os.Link(filepath.Join(m.ws(), "deep/er/folder/f"), filepath.Join(m.ws(), link)))
	}
	check(t, os.Symlink("../file1", filepath.Join(m.ws(), "deep/link")))
	m.d = m.open(t)
	t.Cleanup(func() { m.close(t, m.d) })
	_, err = m.d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: m.ws(), Run: []string{"sh", "-c", "exec sleep 100000"},
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	})
	check(t, err)
	return m
}

func (m *mountedForks) restart(between func()) {
	m.t.Helper()
	m.close(m.t, m.d)
	between()
	m.d = m.open(m.t)
}

func (m *mountedForks) fork(req ipc.ForkRequest) []ipc.App {
	m.t.Helper()
	list, err := m.d.Fork(m.t.Context(), root, "shop", req)
	check(m.t, err)
	return list.Forks
}

// of is the world of a fork.
func (m *mountedForks) of(f ipc.App) world {
	return world{dir: filepath.Dir(f.Workspace), at: f.Workspace}
}

// says checks the state of a workspace, and that every checkpoint of its app is whole.
func (m *mountedForks) says(ref string, w world, want string) {
	m.t.Helper()
	files, sqlite, _, err := w.words()
	if err != nil || files != want || sqlite != want {
		m.t.Errorf("the files of %s say %q, its database %q, %v; want %q", ref, files, sqlite, err, want)
	}
	list, err := m.d.Checkpoints(m.t.Context(), root, ref, ipc.CheckpointQuery{})
	check(m.t, err)
	for _, cp := range list.Checkpoints {
		if res, err := m.d.Verify(m.t.Context(), root, ref, cp.ID, snap.Full); err != nil || !res.OK {
			m.t.Errorf("%s of %s: %v, %+v", cp.ID, ref, err, res)
		}
	}
}

// mountsIn lists what is mounted below a folder.
func mountsIn(t *testing.T, dir string) (list []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			list = append(list, at)
		}
	}
	slices.Sort(list)
	return list
}

// reboot ends the daemon, and begins anew with a copy of the disk: mounts are gone, and devices have other numbers. Unlike an unmount, it is
// no matter what other processes of this host, with mounts of their own, still hold.
func (m *mountedForks) reboot(between func()) {
	m.t.Helper()
	m.restart(func() {
		device := func() uint64 {
			var st unix.Stat_t
			check(m.t, unix.Stat(m.dir, &st))
			return st.Dev
		}
		was := device()
		sh(m.t, `sync -f "$1" && cp --sparse=always "$2" "$2.next" && next=$(losetup -f --show "$2.next") &&
			umount -l -R "$1" && mv "$2.next" "$2" && mount -o nouuid "$next" "$1" && losetup -d "$next"`, m.dir, m.image)
		if device() == was {
			m.t.Error("the disk has the number that it had before the reboot")
		}
		between()
	})
}

// tree describes all files below a folder, but for the databases: names, kinds, rights, sizes, times, names per file and contents.
func tree(t *testing.T, dir string) (list []string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		check(t, err)
		if strings.HasPrefix(e.Name(), "shop.db") {
			return nil
		}
		var st unix.Stat_t
		check(t, unix.Lstat(path, &st))
		nlink, text := st.Nlink, ""
		switch {
		case e.IsDir():
			nlink, st.Size = 0, 0
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			check(t, err)
			text = string(b)
		}
		if path == dir { // the database's files come and go in it
			st.Mtim = unix.Timespec{}
		}
		rel, err := filepath.Rel(dir, path)
		check(t, err)
		list = append(list, fmt.Sprintf("%s %o %d:%d %d %d %d.%d %q", rel, st.Mode, st.Uid, st.Gid, st.Size, nlink, st.Mtim.Sec, st.Mtim.Nsec, text))
		return nil
	}))
	return list
}

func (m *mountedForks) same(what string, got, want []string) {
	m.t.Helper()
	if !slices.Equal(got, want) {
		m.t.Errorf("%s: there is\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// testForksMounted makes three forks, whose folders are mounted over one copy, works in them, loses the mounts as in a reboot, keeps one and drops the rest.
func testForksMounted(t *testing.T) {
	t.Parallel()
	m := newMountedForks(t)
	want := tree(t, m.ws())
	forks := m.fork(ipc.ForkRequest{Count: 3})
	pinned := forks[0].Fork.Pinned
	for _, f := range forks {
		if f.Fork.Pinned != pinned || pinned == "" {
			t.Fatalf("the fork %s is based on %q", f.Slug, f.Fork.Pinned)
		}
		m.same(f.Slug, tree(t, f.Workspace), want)
		m.says(f.Slug, m.of(f), "zero")
	}
	if got := len(mountsIn(t, m.dir)); got != 3 {
		t.Errorf("there are %d mounts", got)
	}

	// Each goes its own way, and back.
	one, two, three := forks[0], forks[1], forks[2]
	for i, f := range forks {
		word := fmt.Sprint("went", i+1)
		m.of(f).set(t, word)
		sh(t, `cd "$1" && echo more >>hard1 && mv deep/er deep/moved && rm deep/link && chmod 700 deep && ln file3 hard3`, f.Workspace)
		m.says(f.Slug, m.of(f), word)
	}
	m.says("shop", m.world, "zero")
	went := tree(t, one.Workspace)
	cp, err := m.d.Create(t.Context(), root, one.Slug, ipc.CreateRequest{})
	check(t, err)
	first := m.origin(one)
	d, err := m.d.Diff(t.Context(), root, one.Slug, first, ipc.DiffQuery{Against: string(cp.ID), Limit: 100})
	check(t, err)
	if !slices.ContainsFunc(d.Changes, func(c ipc.DiffChange) bool { return strings.Contains(c.Path, "deep/moved") }) {
		t.Errorf("the diff has %+v", d.Changes)
	}
	for range 2 {
		_, err = m.d.Rollback(t.Context(), root, one.Slug, first, ipc.RollbackRequest{}, nil)
		check(t, err)
		m.same("back at its origin", tree(t, one.Workspace), want)
		_, err = m.d.Rollback(t.Context(), root, one.Slug, cp.ID, ipc.RollbackRequest{}, nil)
		check(t, err)
		m.same("forward", tree(t, one.Workspace), went)
	}

	// A further fork of the checkpoint is based on the same copy, one of another is not, and forks may have forks.
	four := m.fork(ipc.ForkRequest{CheckpointID: one.Fork.Origin, NoStart: true})[0]
	if four.Fork.Pinned != pinned {
		t.Errorf("a fourth fork is based on %q", four.Fork.Pinned)
	}
	m.same("the fourth fork", tree(t, four.Workspace), want)
	plain := m.fork(ipc.ForkRequest{})[0]
	if plain.Fork.Pinned != "" {
		t.Errorf("a fork of another checkpoint is based on %q", plain.Fork.Pinned)
	}
	inner, err := m.d.Fork(t.Context(), root, one.Slug, ipc.ForkRequest{Count: 3})
	check(t, err)
	for _, f := range inner.Forks {
		m.same("a fork of a fork", tree(t, f.Workspace), went)
		check(t, m.d.DropFork(t.Context(), root, one.Slug, f.Fork.Name))
	}

	// A reboot ends the mounts. Nobody is led to the empty folder, and nothing is lost.
	m.reboot(func() {
		for _, name := range []string{"file0", "new"} {
			cmd := `setpriv --reuid=65534 --clear-groups sh -c 'echo lost >"$0"' "$1" && exit 1; true`
			sh(t, cmd, filepath.Join(two.Workspace, name))
		}
	})
	for _, a := range m.d.Apps(t.Context(), root) {
		if len(a.Problems) > 0 {
			t.Errorf("%s: %q", a.Slug, a.Problems)
		}
	}
	m.same("after a reboot", tree(t, one.Workspace), went)
	check(t, m.d.DropFork(t.Context(), root, "shop", plain.Fork.Name))
	if _, err := os.Lstat(plain.Workspace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a fork that was dropped after a reboot: %v", err)
	}
	m.says(two.Slug, m.of(two), "went2")
	check(t, unix.Unmount(four.Workspace, 0)) // and while the daemon runs
	_, err = m.d.Create(t.Context(), root, four.Slug, ipc.CreateRequest{})
	if err == nil {
		m.same("mounted again", tree(t, four.Workspace), want)
	} else if errs.KindOf(err) != errs.Busy { // another process of this host has it still
		t.Error(err)
	}
	m.reboot(func() {
		check(t, os.Rename(pinned, pinned+"-moved"))
	})
	_, err = m.d.Create(t.Context(), root, two.Slug, ipc.CreateRequest{})
	if err == nil || !strings.Contains(err.Error(), pinned) {
		t.Errorf("without the copy: %v", err)
	}
	if left, err := os.ReadDir(two.Workspace); err != nil || len(left) > 0 {
		t.Errorf("without the copy, the folder has %v, %v", left, err)
	}
	m.restart(func() { check(t, os.Rename(pinned+"-moved", pinned)) })
	m.says(two.Slug, m.of(two), "went2")

	went = tree(t, three.Workspace)
	_, err = m.d.KeepFork(t.Context(), root, "shop", three.Fork.Name, ipc.KeepRequest{})
	check(t, err)
	m.same("kept", tree(t, m.ws()), went)
	m.says("shop", m.world, "went3")
	m.dropAll()
}

// origin is the first checkpoint of a fork.
func (m *mountedForks) origin(f ipc.App) ipc.CheckpointID {
	m.t.Helper()
	list, err := m.d.Checkpoints(m.t.Context(), root, f.Slug, ipc.CheckpointQuery{})
	check(m.t, err)
	return list.Checkpoints[len(list.Checkpoints)-1].ID
}

// dropAll drops all forks, and checks that nothing is left of them.
func (m *mountedForks) dropAll() {
	m.t.Helper()
	list, err := m.d.Forks(context.Background(), root, "shop")
	check(m.t, err)
	for _, f := range list.Forks {
		check(m.t, m.d.DropFork(context.Background(), root, "shop", f.Fork.Name))
	}
	m.nothingLeft()
}

func (m *mountedForks) nothingLeft() {
	m.t.Helper()
	if list := mountsIn(m.t, m.dir); len(list) > 0 {
		m.t.Errorf("mounted are %q", list)
	}
	if _, err := os.Lstat(filepath.Join(m.dir, "shop-forks")); !errors.Is(err, os.ErrNotExist) {
		m.t.Errorf("the folder of the forks is left: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(m.state(), "pinned")); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
		m.t.Errorf("the daemon has %v of pinned copies, %v", left, err)
	}
}

package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/testkit"
)

// TestSeed fills an empty workspace from another one, whose files are as in the snapshot, or changed since, or changed so that only
// their contents tell. The result is exact, and only what changed comes from the content store. A second Seed takes the workspace, which
// somebody has used meanwhile, to another snapshot.
func TestSeed(t *testing.T) {
	r := testkit.Rand(t)
	for range 5 {
		parent := newSite(t)
		scramble(t, r, parent.dir, 150)
		for i := range 30 {
			must(t, os.WriteFile(filepath.Join(parent.dir, "plain"+string(rune('a'+i%26))+".txt"), random(r, 1+r.IntN(20_000)), 0o644))
		}
		first := parent.capture(t)
		want := listing(t, parent.dir)
		fork := beside(t, parent)
		_, err := fork.Adopt(t.Context(), parent.Driver, first.ID, "fs-first")
		must(t, err)
		var brought atomic.Int32
		fork.cfg.Failpoint = func(step string) error {
			if step == "file placed" || step == "file rewritten" {
				brought.Add(1)
			}
			return nil
		}
		fork.Driver, err = New(fork.cfg)
		must(t, err)

		sly := filepath.Join(parent.dir, "plaina.txt")
		st, err := os.Stat(sly)
		must(t, err)
		must(t, os.WriteFile(sly, random(r, int(st.Size())), 0o644))
		must(t, os.Chtimes(sly, time.Time{}, st.ModTime()))
		must(t, os.WriteFile(filepath.Join(parent.dir, "plainb.txt"), []byte("other"), 0o644))
		must(t, os.Remove(filepath.Join(parent.dir, "plainc.txt")))
		must(t, os.Symlink("/etc/hostname", filepath.Join(parent.dir, "plainc.txt")))
		must(t, fork.Seed(t.Context(), parent.Driver, "fs-first"))
		if got := listing(t, fork.dir); !slices.Equal(got, want) {
			t.Fatalf("in the fork there is\n%q, want\n%q", got, want)
		}
		// Of the files whose names begin with plain, three changed. How many of the others can be copied depends on what was drawn.
		others := 0
		must(t, filepath.WalkDir(fork.dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), "plain") {
				others++
			}
			return err
		}))
		if stored := int(brought.Load()); stored < 3 || stored > 3+others {
			t.Errorf("%d files came from the content store: of those named plain, 3 should, and there are %d others", stored, others)
		}

		must(t, os.Chtimes(filepath.Join(fork.dir, "plaind.txt"), time.Time{}, st.ModTime().Add(time.Hour)))
		must(t, os.Remove(filepath.Join(fork.dir, "plaine.txt")))
		must(t, os.WriteFile(filepath.Join(fork.dir, "plaina.txt"), []byte("of a test in the fork"), 0o600))
		must(t, os.WriteFile(filepath.Join(fork.dir, "left behind"), nil, 0o600))
		second := parent.capture(t)
		_, err = fork.Adopt(t.Context(), parent.Driver, second.ID, "fs-second")
		must(t, err)
		must(t, fork.Seed(t.Context(), parent.Driver, "fs-second"))
		if got, want := listing(t, fork.dir), listing(t, parent.dir); !slices.Equal(got, want) {
			t.Fatalf("after the second Seed there is\n%q, want\n%q", got, want)
		}
	}
}

// TestSeedOfUser copies the files of an ordinary user's workspace. Those in folders of that user need not be made anew.
func TestSeedOfUser(t *testing.T) {
	testkit.Need(t, "root")
	parent := newSite(t)
	deep := filepath.Join(parent.dir, "deep", "deeper")
	must(t, os.MkdirAll(deep, 0o750))
	plain := filepath.Join(deep, "plain.txt")
	must(t, os.WriteFile(plain, []byte("in a folder of an ordinary user"), 0o644))
	fork := beside(t, parent)
	for _, path := range []string{parent.dir, filepath.Dir(deep), deep, plain, fork.dir} {
		must(t, os.Chown(path, 65534, 65534))
	}
	first := parent.capture(t)
	_, err := fork.Adopt(t.Context(), parent.Driver, first.ID, "fs-first")
	must(t, err)
	fork.cfg.Failpoint = func(step string) error {
		if step == "file placed" || step == "file rewritten" {
			t.Error("a file that was copied is made anew")
		}
		return nil
	}
	fork.Driver, err = New(fork.cfg)
	must(t, err)
	must(t, fork.Seed(t.Context(), parent.Driver, "fs-first"))
	if got, want := listing(t, fork.dir), listing(t, parent.dir); !slices.Equal(got, want) {
		t.Errorf("in the fork there is\n%q, want\n%q", got, want)
	}
}

// TestSeedShared does not read copies that share their blocks with files whose content is known. It reads those of files that a capture did
// not read, or that change through a mapping without a trace in their stat.
func TestSeedShared(t *testing.T) {
	testkit.Need(t, "xfs")
	top := testkit.Loop(t, 512, "mkfs.xfs", "-q", "-f")
	parent := newSite(t, func(c *Config) {
		c.Dir = filepath.Join(top, "parent")
		must(t, os.Mkdir(c.Dir, 0o755))
	})
	parent.dir = parent.cfg.Dir
	const n = 3000 // those of the last 10 ms are read, because a file may change twice at the same time
	name := func(i int) string { return filepath.Join(parent.dir, "f"+strconv.Itoa(i)) }
	for i := range n {
		must(t, os.WriteFile(name(i), []byte("content "+strconv.Itoa(i)), 0o644))
	}
	first := parent.capture(t)
	fork := besideIn(t, parent, filepath.Join(top, "fork"))
	_, err := fork.Adopt(t.Context(), parent.Driver, first.ID, "fs-first")
	must(t, err)
	was, err := os.Stat(name(0))
	must(t, err)
	must(t, os.WriteFile(name(0), []byte("CONTENT 0"), 0o644))
	must(t, os.Chtimes(name(0), time.Time{}, was.ModTime()))
	mapped, err := os.OpenFile(name(1), os.O_RDWR, 0)
	must(t, err)
	defer mapped.Close() // it is not written to
	m, err := unix.Mmap(int(mapped.Fd()), 0, 9, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(m) // as above

	target, err := fork.stored(t.Context(), "test", "fs-first")
	must(t, err)
	b := fork.cfg.Store.Begin()
	defer b.Discard()
	empty, err := fork.present(t.Context(), "test", b, nil)
	must(t, err)
	deltas, err := fork.compare(t.Context(), empty.Manifest, target, nil)
	must(t, err)
	copies, err := seed(t.Context(), fork.Driver, "test", b, parent.Driver, deltas)
	must(t, err)
	if copies != n || len(regulars(t, fork.dir)) != n {
		t.Fatalf("%d files were copied, and there are %d", copies, len(regulars(t, fork.dir)))
	}
	known := func(i int) bool {
		st, err := inode.StatAt(unix.AT_FDCWD, filepath.Join(fork.dir, "f"+strconv.Itoa(i)))
		must(t, err)
		var e manifest.Entry
		found := fork.walker.Cache.Find("", st, &e)
		if found {
			b, err := os.ReadFile(filepath.Join(fork.dir, "f"+strconv.Itoa(i)))
			must(t, err)
			if e.Hash != snap.Hash(blake3.Sum256(b)) {
				t.Errorf("copy %d has %q, which is not what is known of it", i, b)
			}
		}
		return found
	}
	count := 0
	for i := range n {
		if known(i) {
			count++
		}
	}
	if count == 0 || known(0) || known(1) {
		t.Errorf("of %d copies, %d need not be read; the one that had changed: %t, the mapped one: %t", n, count, known(0), known(1))
	}
	must(t, fork.Seed(t.Context(), parent.Driver, "fs-first"))
	if b, err := os.ReadFile(filepath.Join(fork.dir, "f0")); err != nil || string(b) != "content 0" {
		t.Errorf("a file has %q, %v", b, err)
	}
}

// beside makes a workspace of another app, with the same content store.
func beside(t *testing.T, s *site) *site {
	t.Helper()
	return besideIn(t, s, filepath.Join(t.TempDir(), "ws"))
}

func besideIn(t *testing.T, s *site, dir string) *site {
	t.Helper()
	other := &site{dir: dir, state: filepath.Join(t.TempDir(), "state"), cas: s.cas}
	must(t, os.Mkdir(other.dir, 0o755))
	must(t, os.Mkdir(other.state, 0o755))
	t.Cleanup(func() { makeRemovable(other.dir) })
	cfg := s.cfg
	cfg.App, cfg.Dir, cfg.StateDir = "other", other.dir, other.state
	other.cfg = cfg
	var err error
	other.Driver, err = New(cfg)
	must(t, err)
	return other
}

// regulars returns the inodes of the regular files below dir by their names.
func regulars(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var st unix.Stat_t
			err = unix.Lstat(p, &st)
			all[p] = st.Ino
		}
		return err
	}))
	return all
}

var _ snap.Seeder = (*Driver)(nil)

package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
)

// TestSeed fills an empty workspace from another one, whose files are as in the snapshot, or changed since, or changed so that only
// their contents tell. The restore that follows is exact, and finds the files that were copied in their place.
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

		sly := filepath.Join(parent.dir, "plaina.txt")
		st, err := os.Stat(sly)
		must(t, err)
		must(t, os.WriteFile(sly, random(r, int(st.Size())), 0o644))
		must(t, os.Chtimes(sly, time.Time{}, st.ModTime()))
		must(t, os.WriteFile(filepath.Join(parent.dir, "plainb.txt"), []byte("other"), 0o644))
		must(t, os.Remove(filepath.Join(parent.dir, "plainc.txt")))
		must(t, os.Symlink("/etc/hostname", filepath.Join(parent.dir, "plainc.txt")))
		must(t, fork.Seed(t.Context(), parent.Driver, "fs-first"))
		seeded := regulars(t, fork.dir)
		if len(seeded) < 20 {
			t.Fatalf("only %d files were copied", len(seeded))
		}
		for _, name := range []string{"plainb.txt", "plainc.txt"} {
			if _, err := os.Lstat(filepath.Join(fork.dir, name)); err == nil {
				t.Errorf("%s was copied, though it had changed", name)
			}
		}
		fork.restore(t, "fs-first")
		if got := listing(t, fork.dir); !slices.Equal(got, want) {
			t.Fatalf("after the restore there is\n%q, want\n%q", got, want)
		}
		moved := 0
		for name, ino := range regulars(t, fork.dir) {
			if was, ok := seeded[name]; ok && was != ino {
				moved++
			}
		}
		if moved != 1 {
			t.Errorf("%d of the %d files that were copied were brought again, want the one with another content", moved, len(seeded))
		}
	}
}

// beside makes a workspace of another app, with the same content store.
func beside(t *testing.T, s *site) *site {
	t.Helper()
	other := &site{dir: filepath.Join(t.TempDir(), "ws"), state: filepath.Join(t.TempDir(), "state"), cas: s.cas}
	must(t, os.Mkdir(other.dir, 0o755))
	must(t, os.Mkdir(other.state, 0o755))
	t.Cleanup(func() { makeRemovable(other.dir) })
	cfg := s.cfg
	cfg.App, cfg.Dir, cfg.StateDir = "other", other.dir, other.state
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

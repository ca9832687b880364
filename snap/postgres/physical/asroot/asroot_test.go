package asroot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

const uid = 54321

// newHome makes an engine's folder with a volume, whose data folder is rel in it.
func newHome(t *testing.T, rel string) Home {
	t.Helper()
	testkit.Need(t, "root")
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	volume := filepath.Join(dir, "volumes", "rows", "_data")
	h := Home{Volume: volume, Data: filepath.Join(volume, rel), Store: StoreOf(volume), UID: uid, GID: uid}
	must(t, os.MkdirAll(h.Data, 0o700))
	return h
}

func must(t *testing.T, all ...error) {
	t.Helper()
	for _, err := range all {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// folder makes a folder of the cluster's owner with a file of this name.
func makeFolder(t *testing.T, path, name string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, name), nil, 0o600), os.Chown(path, uid, uid))
}

func TestExchange(t *testing.T) {
	for _, rel := range []string{"", "18/docker"} {
		h := newHome(t, rel)
		if made, err := h.Make(); !made || err != nil {
			t.Fatal(made, err)
		}
		if made, err := h.Make(); made || err != nil {
			t.Fatal(made, err)
		}
		must(t, h.Fits())
		fork := filepath.Join(h.Store, "forks", "one")
		makeFolder(t, h.Data, "old")
		makeFolder(t, fork, "new")
		must(t, h.Exchange(fork))
		for path, name := range map[string]string{h.Data: "new", fork: "old"} {
			if _, err := os.Stat(filepath.Join(path, name)); err != nil {
				t.Error(err)
			}
		}

		// The owner puts something else there.
		aside := filepath.Join(h.Store, "aside")
		must(t, os.Rename(filepath.Join(h.Store, "forks"), aside), os.Symlink(aside, filepath.Join(h.Store, "forks")))
		if err := h.Exchange(fork); err == nil {
			t.Error("a link on the way to the fork was followed")
		}
		must(t, os.Remove(filepath.Join(h.Store, "forks")), os.Rename(aside, filepath.Join(h.Store, "forks")), os.Rename(fork, aside), os.Symlink("/etc", fork))
		err := h.Exchange(fork)
		if rel == "" && (err == nil || !strings.Contains(err.Error(), "is no folder of the server's user")) {
			t.Errorf("a link in the place of the volume's folder: %v", err)
		}
		if rel != "" { // the container sees that link, and its own files
			must(t, err)
			if to, err := os.Readlink(h.Data); err != nil || to != "/etc" {
				t.Error(to, err)
			}
			must(t, os.Rename(filepath.Join(h.Volume, "18"), filepath.Join(h.Volume, "17")), os.Symlink("17", filepath.Join(h.Volume, "18")))
			if err := h.Exchange(fork); err == nil {
				t.Error("a link on the way to the data folder was followed")
			}
		}
	}
}

func TestLink(t *testing.T) {
	h := newHome(t, "pg")
	wal, archive := filepath.Join(h.Data, "pg_wal"), filepath.Join(h.Store, "archive")
	must(t, os.Mkdir(wal, 0o700))
	if _, err := h.Make(); err != nil {
		t.Fatal(err)
	}
	must(t, os.Mkdir(archive, 0o700), os.WriteFile(filepath.Join(wal, "0001"), []byte("one"), 0o600), os.WriteFile(filepath.Join(archive, "0001.live"), []byte("other"), 0o600))
	must(t, h.Link(wal, archive, ".live", []string{"0001", "0002"}))
	if text, err := os.ReadFile(filepath.Join(archive, "0001.live")); string(text) != "one" {
		t.Errorf("%q, %v", text, err)
	}
	if list, err := os.ReadDir(archive); len(list) != 1 {
		t.Error(list, err)
	}
	for _, name := range []string{"", "..", "../x", "a/b"} {
		if err := h.Link(wal, archive, ".live", []string{name}); err == nil {
			t.Errorf("%q was taken for the name of a log file", name)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o700), os.Rename(archive, archive+"-"), os.Symlink(outside, archive))
	if err := h.Link(wal, archive, ".live", []string{"0001"}); err == nil {
		t.Error("a link in the place of the archive was followed")
	}
}

func TestStoreOfOthers(t *testing.T) {
	h := newHome(t, "")
	must(t, os.Mkdir(filepath.Dir(h.Store), 0o777), os.Chmod(filepath.Dir(h.Store), 0o777))
	if _, err := h.Make(); err == nil || !strings.Contains(err.Error(), "others than root could replace the engine's folder") {
		t.Errorf("a store where everybody may write: %v", err)
	}
	must(t, os.Chmod(filepath.Dir(h.Store), 0o711))
	if _, err := h.Make(); err != nil {
		t.Fatal(err)
	}
	if err := Drop(h.Store); err != nil {
		t.Error(err)
	}
	if err := Drop(h.Store); err != nil {
		t.Error(err)
	}
}

// TestExchangeIsSynced: after a power cut the folders are as before the exchange or as after it.
func TestExchangeIsSynced(t *testing.T) {
	testkit.Need(t, "root")
	home := func(dir string) (Home, string) {
		volume := filepath.Join(dir, "volumes", "rows", "_data")
		h := Home{Volume: volume, Data: volume, Store: StoreOf(volume), UID: uid, GID: uid}
		return h, filepath.Join(h.Store, "forks", "one")
	}
	calls := sysfault.Trace(t, func(dir string) {
		must(t, os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(dir, "volumes", "rows", "_data"), 0o700))
		h, fork := home(dir)
		_, err := h.Make()
		must(t, err)
		makeFolder(t, h.Data, "old")
		makeFolder(t, fork, "new")
	}, func(dir string) error {
		h, fork := home(dir)
		return h.Exchange(fork)
	})
	if !slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "rename ") }) {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}

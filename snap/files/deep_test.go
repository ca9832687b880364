package files

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
)

// deepFolder makes a chain of folders in dir whose path is longer than PATH_MAX, and gives the innermost.
func deepFolder(t *testing.T, dir string) (path string, in *beneath.Root) {
	t.Helper()
	name := strings.Repeat("d", 200)
	at, err := beneath.Open(dir)
	must(t, err)
	var names []string
	for range 30 {
		must(t, unix.Mkdirat(at.FD(), name, 0o755))
		next, err := at.OpenDir(name)
		must(t, err)
		must(t, at.Close())
		at, names = next, append(names, name)
	}
	t.Cleanup(func() { at.Close() })
	return strings.Join(names, "/"), at
}

func writeIn(t *testing.T, dir *beneath.Root, name, text string) {
	t.Helper()
	f, err := dir.OpenFile(name, unix.O_WRONLY|unix.O_CREAT, 0o644) // the file is not emptied first, so the journal records one change of it
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}

func readIn(t *testing.T, dir *beneath.Root, name string) string {
	t.Helper()
	f, err := dir.OpenFile(name, unix.O_RDONLY, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, 100)
	n, err := f.Read(b)
	must(t, err)
	return string(b[:n])
}

// TestDeepFolders: what changes below a path longer than PATH_MAX is seen and
// goes back, also in folders that were made while somebody followed.
func TestDeepFolders(t *testing.T) {
	f := &followed{site: newSite(t)}
	path, in := deepFolder(t, f.dir)
	writeIn(t, in, "leaf", "one")
	f.follow(t)
	must(t, unix.Mkdirat(in.FD(), "new", 0o755))
	f.flush(t)
	made, err := in.OpenDir("new")
	must(t, err)
	defer made.Close()
	writeIn(t, made, "leaf", "one")
	start := f.flush(t)
	one := f.at(t, start)
	writeIn(t, in, "leaf", "two")
	writeIn(t, made, "leaf", "two, and more")
	end := f.flush(t)
	w, err := f.Writes(t.Context(), start, end)
	must(t, err)
	if len(w) != 2 || w[0].Path != path+"/leaf" && w[1].Path != path+"/leaf" {
		t.Fatalf("%d writes recorded, want the two leaves", len(w))
	}
	two := f.at(t, end)
	f.restore(t, one)
	if a, b := readIn(t, in, "leaf"), readIn(t, made, "leaf"); a != "one" || b != "one" {
		t.Fatalf("after the restore: %q, %q", a, b)
	}
	f.restore(t, two)
	if a, b := readIn(t, in, "leaf"), readIn(t, made, "leaf"); a != "two" || b != "two, and more" {
		t.Fatalf("after the restore forth: %q, %q", a, b)
	}
}

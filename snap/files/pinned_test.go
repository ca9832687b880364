package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/overlay"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// pinned makes a pinned copy of a parent's files in a snapshot, and mounts a workspace over it. below is the Config's Below.
func pinned(t *testing.T, parent *site) (dir, below string) {
	t.Helper()
	testkit.Need(t, "root")
	id := parent.capture(t).ID
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	copied := top + "/.pinned"
	must(t, overlay.Make(copied, os.Geteuid(), os.Getegid()))
	t.Cleanup(func() { must(t, overlay.Remove(copied)) })
	below = top + "/state"
	to, err := Pinned(parent.Driver, overlay.Base(copied), below)
	must(t, err)
	must(t, Pin(t.Context(), to, parent.Driver, id))
	dir = top + "/fork"
	must(t, os.Mkdir(dir, 0o755))
	must(t, overlay.Mount{Pinned: copied, Name: "fork", At: dir, Owner: os.Geteuid(), Fresh: true}.Ensure())
	return dir, below
}

// parentOfPinned has files of several names, in folders.
func parentOfPinned(t *testing.T) *site {
	t.Helper()
	parent := newSite(t)
	for i := range 40 {
		write(t, fmt.Sprintf("%s/sub/deep%d/f%d", parent.dir, i%3, i), fmt.Sprint("of the parent ", i))
	}
	must(t, os.Link(parent.dir+"/sub/deep0/f0", parent.dir+"/sub/linked"))
	must(t, unix.Setxattr(parent.dir+"/sub/deep0", "user.colour", []byte("red"), 0))
	must(t, os.Chmod(parent.dir, 0o711))
	return parent
}

// TestConformanceOfMounted puts the driver of a workspace that is mounted over a pinned copy through the suite of all drivers.
func TestConformanceOfMounted(t *testing.T) {
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject {
		dir, below := pinned(t, parentOfPinned(t))
		s := &subject{newSite(t, func(c *Config) { c.Dir, c.Below = dir, below }), t}
		s.dir = dir
		s.casOptions.SegmentBytes = smallSegments
		s.open(t)
		return s
	})
}

// clones reports whether the filesystem of a folder copies files by sharing their blocks.
func clones(t *testing.T, dir string) bool {
	t.Helper()
	from, err := os.CreateTemp(dir, "")
	must(t, err)
	defer from.Close()
	to, err := os.CreateTemp(dir, "")
	must(t, err)
	defer to.Close()
	must(t, errors.Join(os.Remove(from.Name()), os.Remove(to.Name())))
	_, err = from.WriteString("shared")
	must(t, err)
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
}

// TestMounted checks that a mounted workspace looks like its parent's, that none of its files has to be read, and that what is changed is.
func TestMounted(t *testing.T) {
	parent := parentOfPinned(t)
	// While this one is copied, the others grow older than a step of the clock: younger ones are read again.
	write(t, parent.dir+"/sub/large", strings.Repeat("0123456789abcdef", 4<<20))
	dir, below := pinned(t, parent)
	if got, want := listing(t, dir), listing(t, parent.dir); !slices.Equal(got, want) {
		t.Fatalf("there is\n%q, want\n%q", got, want)
	}
	fork := newSite(t, func(c *Config) { c.Dir, c.Below = dir, below })
	fork.dir = dir
	write(t, dir+"/sub/deep1/f1", "of the fork   1") // as many bytes as before
	known := func() (list map[string]bool) {
		list = map[string]bool{}
		must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			must(t, err)
			if e.Type().IsRegular() {
				st, err := inode.StatAt(unix.AT_FDCWD, path)
				must(t, err)
				list[path] = fork.walker.Cache.Find(path, st, &manifest.Entry{})
			}
			return nil
		}))
		return list
	}
	young := clones(t, parent.dir) // a filesystem that shares blocks copies all in a moment: all copies are younger than that
	for path, is := range known() {
		switch name := filepath.Base(path); {
		case young && name != "f1", name == "linked" || name == "large" || path == dir+"/sub/deep0/f0": // made a moment before they were read, or not
		case is == (name == "f1"):
			t.Errorf("%s is known: %v", path, is)
		}
	}
	first := fork.capture(t)
	before := listing(t, dir)
	for range 2 { // with what is below, and without
		write(t, dir+"/sub/linked", "changed")
		must(t, os.Rename(dir+"/sub", dir+"/moved"))
		fork.restore(t, first.ID)
		if got := listing(t, dir); !slices.Equal(got, before) {
			t.Fatalf("there is\n%q, want\n%q", got, before)
		}
		fork.open(t)
	}
}

// TestPinRefuses what overlayfs gives a meaning of its own.
func TestPinRefuses(t *testing.T) {
	testkit.Need(t, "root")
	for what, spoil := range map[string]func(path string) error{
		"a device 0:0": func(path string) error { return unix.Mknod(path, unix.S_IFCHR, 0) },
		"an attribute": func(path string) error {
			return errs.Also(os.Mkdir(path, 0o755), unix.Setxattr(path, "trusted.overlay.opaque", []byte("y"), 0))
		},
	} {
		parent := newSite(t)
		write(t, parent.dir+"/here/f", "x")
		must(t, spoil(parent.dir+"/here/odd"))
		id := parent.capture(t).ID
		to, err := Pinned(parent.Driver, t.TempDir(), t.TempDir())
		must(t, err)
		if err := Pin(t.Context(), to, parent.Driver, id); errs.KindOf(err) != errs.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}

package files

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/apply"
	"mulligan/snap/files/inode"
)

// inodeOf is the inode number of a file.
func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	st, err := inode.StatAt(int(f.Fd()), "")
	must(t, err)
	return st.ID.Ino
}

// TestRewritten: a small text keeps its inode, what could be mapped gets a new one.
func TestRewritten(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		mode           os.FileMode
		keeps          bool
	}{
		{"longer", "one", strings.Repeat("two ", 3000), 0o644, true},
		{"shorter", strings.Repeat("two ", 3000), "one", 0o644, true},
		{"zero byte", "one", "a\x00b", 0o644, false},
		{"was binary", "a\x00b", "one", 0o644, false},
		{"program", "#!/bin/sh\n", "#!/bin/bash\n", 0o755, false},
		{"large", strings.Repeat("x", 64<<10+1), "one", 0o644, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			if c.keeps {
				root, err := s.Driver.ws.Open()
				must(t, err)
				defer root.Close()
				if !apply.Overwrites(root.FD()) {
					t.Skip("this filesystem does not write where the old bytes are")
				}
			}
			path := s.dir + "/f"
			must(t, os.WriteFile(path, []byte(c.new), c.mode))
			target := s.capture(t)
			want := listing(t, s.dir)
			must(t, os.WriteFile(path, []byte(c.old), c.mode))
			before := inodeOf(t, path)
			s.restore(t, target.ID)
			same(t, c.name, listing(t, s.dir), want)
			if kept := inodeOf(t, path) == before; kept != c.keeps {
				t.Errorf("inode kept: %v", kept)
			}
		})
	}
}

// TestHalfRewritten: what a crash left between two texts is mulligan's own, and
// what anybody else wrote is not.
func TestHalfRewritten(t *testing.T) {
	a, b := bytes.Repeat([]byte("a line of the first\n"), 1000), bytes.Repeat([]byte("and of the second\n"), 1500)
	mix := func(cut int) []byte { return append(bytes.Clone(a[:cut]), b[cut:]...) }
	for name, c := range map[string]struct {
		left []byte
		ours bool
	}{
		"one block":        {mix(4096), true},
		"some blocks":      {mix(3 * 4096), true},
		"cut off":          {b[:len(a)], true},
		"room, no content": {append(bytes.Clone(a), make([]byte, len(b)-len(a))...), true},
		"within a block":   {mix(5000), false},
		"somebody's":       {append(mix(4096), "more"...), false},
	} {
		for _, forward := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				s := newSite(t)
				write(t, s.dir+"/f", string(a))
				target := s.capture(t)
				want := listing(t, s.dir)
				write(t, s.dir+"/f", string(b))
				base := s.capture(t)
				if !forward {
					want = listing(t, s.dir)
				}
				sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: "op", Target: target.ID, Base: base.ID})
				must(t, err)
				must(t, sw.(*change).set(committing))
				must(t, os.WriteFile(s.dir+"/f", c.left, 0o644))
				s.open(t)
				if sw, err = s.Resume(t.Context(), "op"); err != nil {
					t.Fatal(err)
				}
				if forward {
					err = sw.Commit(t.Context())
					if !c.ours && errors.Is(err, snap.ErrChanged) {
						return
					}
				} else {
					err = sw.Undo(t.Context())
				}
				must(t, err)
				same(t, name, listing(t, s.dir), want)
				late := s.cas.Roots("files/app/late/")
				if len(late) == 0 != c.ours {
					t.Errorf("kept as somebody else's: %v", late)
				}
			})
		}
	}
}

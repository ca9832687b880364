package files

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/walk"
)

// content fails the test if the file has another content.
func content(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); string(b) != want || err != nil {
		t.Fatalf("%s: %q, %v; want %q", path, b, err, want)
	}
}

// TestNamesOutside: a write through a name outside of the workspace gives no
// event, and neither does making that name. A capture by hand sees both.
func TestNamesOutside(t *testing.T) {
	for _, follow := range []bool{false, true} {
		for _, early := range []bool{false, true} { // the name outside is made before the checkpoint
			t.Run(fmt.Sprintf("follow=%v,early=%v", follow, early), func(t *testing.T) {
				f := &followed{site: newSite(t)}
				in, out := f.dir+"/d/f", f.dir+"-outside"
				write(t, in, "one")
				if follow {
					f.follow(t)
				}
				if early {
					must(t, os.Link(in, out))
				}
				one := f.capture(t)
				if !early {
					must(t, os.Link(in, out))
				}
				write(t, out, "two")
				two := f.capture(t)
				if one.Hash == two.Hash {
					t.Fatal("the capture misses what was written through a name outside")
				}
				f.restore(t, one.ID)
				content(t, in, "one")
				content(t, out, "two")
				f.restore(t, two.ID)
				content(t, in, "two")
			})
		}
	}
}

// TestStaleThroughNamesOutside: what is written through a name outside after the base
// was captured is seen by Stale, and by the proof.
func TestStaleThroughNamesOutside(t *testing.T) {
	f := newFollowed(t)
	in, out := f.dir+"/f", f.dir+"-outside"
	write(t, in, "one")
	one := f.capture(t)
	write(t, f.dir+"/g", "more")
	must(t, os.Link(in, out))
	base := f.capture(t)
	sw, err := f.Prepare(t.Context(), snap.RestoreRequest{ID: "op-stale", Target: one.ID, Base: base.ID})
	must(t, err)
	write(t, out, "two")
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Fatalf("stale: %v, %v", stale, err)
	}
	write(t, out, "one")
	base = f.capture(t)
	sw, err = f.Prepare(t.Context(), snap.RestoreRequest{ID: "op-proof", Target: one.ID, Base: base.ID})
	must(t, err)
	must(t, sw.Commit(t.Context()))
	write(t, out, "two")
	if p, err := sw.Check(t.Context()); err != nil || p.Match && readsAs(in, "two") {
		t.Fatalf("f says two, and the proof %+v, %v", p, err)
	}
}

// reliableNow reports whether what is read of the file now is believed later.
func reliableNow(t *testing.T, path string) bool { return walk.Reliable(statOf(t, path), time.Now()) }

func readsAs(path, want string) bool {
	b, err := os.ReadFile(path)
	return err == nil && string(b) == want
}

// mapShared maps the file at path for the time of the test.
func mapShared(t *testing.T, path string, size int) []byte {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	m, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(m) })
	return m
}

// TestStoresThroughMappings: a second store to a page shows neither as an event nor in a stat. The file may be new, or another one with the same content and times.
func TestStoresThroughMappings(t *testing.T) {
	for _, kind := range []string{"not followed", "followed", "new", "replaced by an equal one"} {
		t.Run(kind, func(t *testing.T) {
			f := &followed{site: newSite(t)}
			path := f.dir + "/d/mapped"
			must(t, os.Mkdir(f.dir+"/d", 0o755))
			if kind != "new" {
				write(t, path, "first")
			}
			if kind != "not followed" {
				f.follow(t)
			}
			switch kind {
			case "new":
				write(t, path, "first")
			case "replaced by an equal one":
				was := statOf(t, path)
				for i := 0; ; i++ { // until the inode's number is far from that of the first one
					other := fmt.Sprint(f.dir, "-other-", i)
					write(t, other, "first")
					must(t, os.Chtimes(other, time.Time{}, time.Unix(was.Mtime.Sec, int64(was.Mtime.Nsec))))
					if st := statOf(t, other); st.ID.Ino/1000 != was.ID.Ino/1000 {
						must(t, os.Rename(other, path))
						break
					}
				}
			}
			if kind != "not followed" {
				f.exact(t)
			}
			m := mapShared(t, path, 5)
			copy(m, "other")
			for f.capture(t); !reliableNow(t, path); { // the capture that comes now could be believed
			}
			one := f.capture(t)
			copy(m, "third")
			two := f.capture(t)
			if one.Hash == two.Hash {
				t.Fatal("the capture misses a store through a mapping")
			}
			f.restore(t, one.ID)
			content(t, path, "other")
		})
	}
}

// TestGoneName: what was written through a further name that nobody saw before it was gone gave no
// event to the first one. A capture by hand has it all the same.
func TestGoneName(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/first", "one")
	f.flush(t)
	for i := range 10 {
		must(t, os.Link(f.dir+"/first", f.dir+"/second"))
		must(t, os.WriteFile(f.dir+"/second", fmt.Append(nil, "more ", i), 0o644))
		must(t, os.Remove(f.dir+"/second"))
		s, state := f.capture(t), listing(t, f.dir)
		f.exact(t)
		write(t, f.dir+"/first", "another")
		f.restore(t, s.ID)
		same(t, "restored", listing(t, f.dir), state)
	}
}

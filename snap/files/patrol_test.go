package files

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
)

// TestPatrol: a store through a mapping, of which no event tells, is found.
func TestPatrol(t *testing.T) {
	f := newFollowed(t)
	for i := range patrolNames + 100 {
		write(t, fmt.Sprintf("%s/d%d/f%d", f.dir, i%7, i), fmt.Sprint("first ", i))
	}
	write(t, f.dir+"/z/mapped", "first")
	f.flush(t)
	file, err := os.OpenFile(f.dir+"/z/mapped", os.O_RDWR, 0)
	must(t, err)
	m, err := unix.Mmap(int(file.Fd()), 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, file.Close())
	copy(m, "other")
	must(t, unix.Msync(m, unix.MS_SYNC))
	defer unix.Munmap(m) // it would be an event

	start, later := f.flush(t), time.Now().Add(patrolPause)
	j, rounds := f.following(), 0
	for again := idleAfter; again == idleAfter; rounds++ {
		must(t, j.do(t.Context(), func() error { again = j.patrol(t.Context(), later); return nil }))
		if rounds > 1000 {
			t.Fatal("the patrol never comes home")
		}
	}
	if rounds < 2 {
		t.Errorf("everything was looked at in %d rounds", rounds)
	}
	w, err := f.Writes(t.Context(), start, f.flush(t))
	must(t, err)
	if len(w) != 1 || w[0].Path != "z/mapped" {
		t.Errorf("found: %+v", w)
	}
}

// TestAfter: the patrol passes every path once, whatever its stride.
func TestAfter(t *testing.T) {
	f := newFollowed(t)
	for i := range 50 {
		write(t, fmt.Sprintf("%s/a%d/b%d/f%d", f.dir, i%3, i%5, i), "x")
	}
	f.flush(t)
	j := f.following()
	must(t, j.do(t.Context(), func() error {
		var want []string
		j.live.each(j.live.root, ".", func(p string, _ *manifest.Node) {
			if p != "." {
				want = append(want, p)
			}
		})
		for stride := 1; stride < 80; stride += 13 {
			var got []string
			for at := ""; ; at = got[len(got)-1] {
				some := j.live.after(at, stride)
				if got = append(got, some...); len(some) < stride {
					break
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("in steps of %d: %q instead of %q", stride, got, want)
			}
		}
		return nil
	}))
}

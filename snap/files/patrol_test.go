package files

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/follow"
)

// TestPatrol: a store through a mapping, of which no event tells, is found.
func TestPatrol(t *testing.T) {
	f := newFollowed(t)
	for i := range follow.PatrolNames + 100 {
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

	start, later := f.flush(t), time.Now().Add(follow.PatrolPause)
	j, rounds := f.follower.Session(), 0
	for again := follow.IdleAfter; again == follow.IdleAfter; rounds++ {
		must(t, j.Do(t.Context(), func() error { again = j.Patrol(t.Context(), later); return nil }))
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

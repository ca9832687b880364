package files

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
	"mulligan/testkit"
)

// TestWholeSeconds: where the filesystem keeps whole seconds, a file that is
// written twice within one is still seen to have changed.
func TestWholeSeconds(t *testing.T) {
	mnt := testkit.Loop(t, 32, "mkfs.ext4", "-q", "-F", "-I", "128")
	for _, follow := range []bool{false, true} {
		t.Run(fmt.Sprintf("follow=%v", follow), func(t *testing.T) {
			ws := fmt.Sprintf("%s/ws-%v", mnt, follow)
			must(t, os.Mkdir(ws, 0o755))
			f := &followed{site: newSite(t, func(c *Config) { c.Dir = ws })}
			if follow {
				f.follow(t)
			}
			deadline := time.Now().Add(testkit.Patience)
			for !withinOneSecond(t, f, ws) {
				if time.Now().After(deadline) {
					t.Fatal("two writes and a checkpoint never fell into one second")
				}
			}
		})
	}
}

// withinOneSecond writes a file twice with a checkpoint between, and goes back
// to that. false: the two writes have different times, which shows nothing.
func withinOneSecond(t *testing.T, f *followed, ws string) bool {
	path := ws + "/f"
	for now := time.Now(); now.Nanosecond() < 5e7 || now.Nanosecond() > 4e8; now = time.Now() {
		time.Sleep(time.Millisecond) // polls the clock: early in a second, and not at once
	}
	write(t, path, "good1")
	good, first := f.capture(t), statOf(t, path)
	write(t, path, "evil1")
	if second := statOf(t, path); !first.Same(second) {
		return false
	}
	evil := f.capture(t)
	if evil.Hash == good.Hash {
		t.Fatal("the second checkpoint misses a write of the same second")
	}
	f.restore(t, good.ID)
	if b, err := os.ReadFile(path); string(b) != "good1" || err != nil {
		t.Fatalf("after the restore: %q, %v", b, err)
	}
	f.restore(t, evil.ID)
	if b, err := os.ReadFile(path); string(b) != "evil1" || err != nil {
		t.Fatalf("after the restore forth: %q, %v", b, err)
	}
	return true
}

func statOf(t *testing.T, path string) inode.Stat {
	t.Helper()
	st, err := inode.StatAt(unix.AT_FDCWD, path)
	must(t, err)
	return st
}

func TestSettled(t *testing.T) {
	at := func(sec int64, nsec uint32) inode.Time { return inode.Time{Sec: sec, Nsec: nsec} }
	fine := at(990, 123456789)
	for _, x := range []struct {
		what         string
		ctime, mtime inode.Time
		read         time.Time
		want         bool
	}{
		{"fine, at once", at(1000, 123456789), fine, time.Unix(1000, 130000000), false},
		{"fine, later", at(1000, 123456789), fine, time.Unix(1000, 140000000), true},
		{"an odd whole second", at(1001, 0), fine, time.Unix(1001, 990000000), false},
		{"an odd whole second, later", at(1001, 0), fine, time.Unix(1002, 20000000), true},
		{"an even whole second", at(1000, 0), fine, time.Unix(1001, 990000000), false},
		{"an even whole second, later", at(1000, 0), fine, time.Unix(1002, 20000000), true},
		{"hundredths", at(1000, 120000000), fine, time.Unix(1000, 139000000), false},
		{"hundredths, later", at(1000, 120000000), fine, time.Unix(1000, 141000000), true},
		{"no ctime, coarse mtime", at(0, 0), at(1001, 0), time.Unix(1001, 500000000), false},
		{"a chosen mtime", at(1000, 123456789), at(5000, 0), time.Unix(1000, 140000000), true},
		{"a ctime ahead", at(1100, 1), fine, time.Unix(1000, 140000000), false},
	} {
		if got := settled(inode.Stat{Ctime: x.ctime, Mtime: x.mtime}, x.read); got != x.want {
			t.Errorf("%s: %v", x.what, got)
		}
	}
}

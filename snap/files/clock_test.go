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
	for now := time.Now(); now.Nanosecond() < 5e7 || now.Nanosecond() > 1e8; now = time.Now() {
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

package apply

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A process that may have few files open syncs fewer at a time.
func TestSyncsFitTheLimit(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = min(64, was.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	n := syncsAtOnce()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if n > 16 {
		t.Errorf("%d files are open for their syncs at a time, where %d may be open", n, few.Cur)
	}
}

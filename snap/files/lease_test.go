package files

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
)

// lease takes a write lease of the file at path. Nobody gives it back but the
// caller: SIGIO, which asks for it, is ignored.
func lease(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path) // for reading: its end is no event, which would have the file read again
	must(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must(t, err)
	return f
}

// TestLeases: a lease that is kept is an error that says so; one that is given
// back on request does not matter.
func TestLeases(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/leased", "one")
	write(t, s.dir+"/other", "one")
	kept := lease(t, s.dir+"/leased")
	_, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-kept"})
	if errs.KindOf(err) != errs.Busy || !strings.Contains(err.Error(), "leased") || !strings.Contains(errs.HintOf(err), "lease-break-time") {
		t.Fatalf("a lease that is kept: %v (%s)", err, errs.HintOf(err))
	}
	must(t, kept.Close())
	s.capture(t)

	write(t, s.dir+"/leased", "two")
	given := lease(t, s.dir+"/leased")
	done := make(chan error, 1)
	go func() {
		for { // polls until the kernel asks for it
			kind, err := unix.FcntlInt(given.Fd(), unix.F_GETLEASE, 0)
			if err == nil && kind != unix.F_WRLCK {
				_, err = unix.FcntlInt(given.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
				done <- err
				return
			}
			if err != nil {
				done <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	s.capture(t)
	must(t, <-done)
}

// TestLeaseWhileFollowed: a leased file does not keep the journal from the others.
func TestLeaseWhileFollowed(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/other", "one")
	write(t, f.dir+"/leased", "one")
	start := f.flush(t)
	kept := lease(t, f.dir+"/leased")
	must(t, os.Chmod(f.dir+"/leased", 0o600)) // it must be read for that
	write(t, f.state+"/beside", "two")
	must(t, os.Rename(f.state+"/beside", f.dir+"/other")) // in one moment: a file that is emptied first may be seen empty
	end, err := f.Flush(t.Context())
	if errs.KindOf(err) != errs.Busy {
		t.Fatalf("a Flush that lacks a file: %v", err)
	}
	w, err := f.Writes(t.Context(), start, end)
	must(t, err)
	if len(w) != 1 || w[0].Path != "other" {
		t.Errorf("recorded: %+v", w)
	}
	must(t, kept.Close())
	f.exact(t)
}

// TestHolesNeedNoRoom: a file with a large hole goes back to a small disk.
func TestHolesNeedNoRoom(t *testing.T) {
	s, _ := small(t, "8m")
	path := s.cfg.Dir + "/sparse"
	write(t, path, "begin")
	must(t, os.Truncate(path, 2<<30))
	one := s.capture(t)
	must(t, os.Remove(path))
	s.restore(t, one.ID)
	if st := statOf(t, path); st.Size != 2<<30 || st.Blocks*512 > 4<<20 {
		t.Errorf("%d bytes, %d of them on the disk", st.Size, st.Blocks*512)
	}
}

// TestNoSizes: a filesystem that does not say how much room it has is not full.
func TestNoSizes(t *testing.T) {
	top := t.TempDir()
	mount(t, "none", top, "ramfs", 0, "")
	must(t, os.Mkdir(top+"/ws", 0o755))
	s := newSite(t, func(c *Config) { c.Dir = top + "/ws" })
	write(t, top+"/ws/f", "one")
	one := s.capture(t)
	must(t, os.Remove(top+"/ws/f"))
	s.restore(t, one.ID)
	content(t, top+"/ws/f", "one")
}

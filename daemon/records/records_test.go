package records

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestDeletedWhilePinned deletes a checkpoint, or its app, while the checkpoint is being pinned, after its record was read: the record is not
// there again once it is deleted.
func TestDeletedWhilePinned(t *testing.T) {
	for what, c := range map[string]struct {
		remove func(*Records) error
		kind   errs.Kind
	}{
		"DeleteCheckpoints": {func(r *Records) error { return r.DeleteCheckpoints(t.Context(), nil, "cp-1") }, errs.Pinned},
		"PurgeApp":          {func(r *Records) error { return r.PurgeApp(t.Context(), "app-1", nil) }, ""},
	} {
		t.Run(what, func(t *testing.T) {
			opt := &settings.Options{StateDir: t.TempDir()}
			opt.SetDefaults()
			var onDescription func()
			opt.Failpoint = func(step string) error {
				if step == "append-change" && onDescription != nil {
					onDescription()
				}
				return nil
			}
			r, err := Open(t.Context(), opt, false)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := r.PutApp(t.Context(), store.App{App: ipc.App{ID: "app-1", Slug: "shop"}}); err != nil {
				t.Fatal(err)
			}
			if err := r.PutCheckpoint(t.Context(), store.Checkpoint{Checkpoint: ipc.Checkpoint{ID: "cp-1", AppID: "app-1"}}, ""); err != nil {
				t.Fatal(err)
			}
			removed := make(chan error, 1)
			onDescription = func() {
				onDescription = nil
				go func() { removed <- c.remove(r) }()
				testkit.Eventually(t, "the deletion is over or waits", func() bool { return len(removed) > 0 || waits(what) })
			}
			pinErr := r.SetPinned(t.Context(), "app-1", "cp-1", true)
			if err := <-removed; pinErr != nil || errs.KindOf(err) != c.kind {
				t.Errorf("pinned: %v; deleted: %v", pinErr, err)
			}
			_, err = r.Checkpoint(t.Context(), "app-1", "cp-1")
			if kept := c.kind == errs.Pinned; kept != (err == nil) {
				t.Errorf("afterwards the checkpoint is read: %v", err)
			}
			if c.kind == "" {
				if err := r.SetPinned(t.Context(), "app-1", "cp-1", true); errs.KindOf(err) != errs.NotFound {
					t.Errorf("pinned once it is gone: %v", err)
				}
			}
		})
	}
}

// TestUnreadStore has the disk refuse to open a file of the content store: the records can be used, and say so until the file can be read again.
func TestUnreadStore(t *testing.T) {
	opt := &settings.Options{StateDir: t.TempDir()}
	opt.SetDefaults()
	pack := filepath.Join(opt.StateDir, "store", "00000009.pack")
	problems := func() string {
		t.Helper()
		r, err := Open(t.Context(), opt, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.PutApp(t.Context(), store.App{App: ipc.App{ID: "app-1", Slug: "shop"}}); err != nil {
			t.Error(err)
		}
		return strings.Join(r.Problems(), "\n")
	}
	if words := problems(); words != "" {
		t.Errorf("the problems are %q", words)
	}
	tty, err := os.Open("/dev/ptmx") // the other end cannot be opened: EIO, until it is unlocked
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	n, err := unix.IoctlGetUint32(int(tty.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = os.Symlink(fmt.Sprintf("/dev/pts/%d", n), pack)
	}
	if err != nil {
		t.Fatal(err)
	}
	if words := problems(); !strings.Contains(words, "the disk cannot read all of "+pack) {
		t.Errorf("the problems are %q", words)
	}
	if err := os.Remove(pack); err != nil {
		t.Fatal(err)
	}
	if words := problems(); words != "" {
		t.Errorf("in the end the problems are %q", words)
	}
}

// TestStartsOnFullDisk opens the records on a disk that something else fills again and again: they take of the ballast only what they need, so that there is room
// for a rollback after several starts.
func TestStartsOnFullDisk(t *testing.T) {
	testkit.Need(t, "root")
	opt := &settings.Options{StateDir: t.TempDir()}
	opt.SetDefaults()
	if err := unix.Mount("tmpfs", opt.StateDir, "tmpfs", 0, "size=128m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(opt.StateDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	fill, err := os.Create(filepath.Join(opt.StateDir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	var filled int64
	start := func(free int64) (ballast int64) {
		t.Helper()
		var disk unix.Statfs_t
		if err := unix.Statfs(opt.StateDir, &disk); err != nil {
			t.Fatal(err)
		}
		if more := int64(disk.Bavail)*disk.Bsize - free; more > 0 {
			if err := unix.Fallocate(int(fill.Fd()), 0, filled, more); err != nil {
				t.Fatal(err)
			}
			filled += more
		}
		r, err := Open(t.Context(), opt, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.fillBallast()
		info, err := os.Stat(filepath.Join(opt.StateDir, ballastFile))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const full = 8 << 20
	if got := start(100 << 20); got != full {
		t.Fatalf("the ballast has %d bytes", got)
	}
	if got := start(1 << 20); got != full {
		t.Errorf("a start that has room enough left %d bytes of the ballast", got)
	}
	for i := range int64(4) {
		if got, want := start(0), full-(i+1)<<20; got != want {
			t.Errorf("start %d left %d bytes of the ballast, want %d", i+1, got, want)
		}
	}
}

// waits reports whether a goroutine waits for a mutex in a method of Records.
func waits(method string) bool {
	all := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.Contains(g, "[sync.Mutex.Lock") && strings.Contains(g, "(*Records)."+method+"(") {
			return true
		}
	}
	return false
}

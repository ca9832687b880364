package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testForkSettings makes forks as the app's settings say: in a folder of their own, with addresses for several ports. Forks that nobody
// touched for the set time go; a fork that somebody asked for, inside of which a command runs or has just run, that has a new checkpoint or in whose folder
// something was written stays.
func testForkSettings(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	around := workspace(t)
	ws := filepath.Join(around, "shop")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, ws, "page", "zero")
	ports := []int{testkit.Port(t), testkit.Port(t)}
	var skew atomic.Int64 // the daemon asks for the time in the background too
	warned := &warnings{Handler: slog.DiscardHandler}
	opt := daemon.Options{
		StateDir: filepath.Join(around, "daemon"), StopTimeout: 10 * time.Second, Steady: steady, ExpireEvery: time.Hour, Log: slog.New(warned),
		Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) },
	}
	d := openForks(t, opt)
	defer func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	serve := fmt.Sprintf("python3 -m http.server --bind 127.0.0.1 %d & exec python3 -m http.server --bind 127.0.0.1 %d", ports[0], ports[1])
	_, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: ws, Run: []string{"sh", "-c", serve},
		Health:  &ipc.Health{URL: fmt.Sprintf("http://127.0.0.1:%d/page", ports[0])},
		Forking: ipc.Forking{Dir: "../tries/here", Expose: ports, ExpireAfter: "24h"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{}); errs.HintOf(err) == "" {
		t.Errorf("a fork in a folder whose parent does not exist: %v", err)
	}
	if err := os.Mkdir(filepath.Join(around, "tries"), 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 6})
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range made.Forks {
		if want := filepath.Join(around, "tries", "here", fmt.Sprint(i+1)); f.Workspace != want {
			t.Errorf("the fork is in %s, want %s", f.Workspace, want)
		}
		write(t, f.Workspace, "page", fmt.Sprint("try ", i+1))
		if len(f.Fork.Ports) != 2 || f.Fork.Ports[0].Address == f.Fork.Ports[1].Address {
			t.Fatalf("its ports are %+v", f.Fork.Ports)
		}
		for n, p := range f.Fork.Ports {
			if p.Port != ports[n] {
				t.Errorf("port %d has an address, want %d", p.Port, ports[n])
			}
			got := ""
			testkit.Eventually(t, "the fork answers at each port", func() bool {
				got = page(p.Address)
				return got != ""
			})
			if want := fmt.Sprint("try ", i+1); got != want {
				t.Errorf("at port %d the fork says %q, want %q", p.Port, got, want)
			}
			if !testkit.IPv6() {
				continue
			}
			if six := strings.Replace(p.Address, "127.0.0.1", "[::1]", 1); page(six) != got { // where a browser asks first
				t.Errorf("at %s the fork says %q", six, page(six))
			}
		}
	}

	begun := time.Now()
	names := func() (names []string) {
		list, err := d.Forks(t.Context(), root, "shop")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list.Forks {
			names = append(names, f.Fork.Name)
		}
		return names
	}
	expire := func(want ...string) {
		t.Helper()
		d.Expire(t.Context(), begun)
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("forks %q are left, want %q", got, want)
		}
	}
	conn, leave, err := d.Enter(t.Context(), root, "shop", "6")
	check(t, err)
	defer conn.Close() // no command was sent
	expire("1", "2", "3", "4", "5", "6")
	skew.Add(int64(23 * time.Hour))
	expire("1", "2", "3", "4", "5", "6")
	if _, err := d.App(t.Context(), root, made.Forks[1].Slug); err != nil { // touched
		t.Fatal(err)
	}
	if _, err := d.Create(t.Context(), root, made.Forks[2].Slug, ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Compare(t.Context(), root, "shop", ipc.CompareRequest{Names: []string{"5"}})
	check(t, err)
	skew.Add(int64(2 * time.Hour))
	d.Expire(t.Context(), time.Now().Add(time.Duration(skew.Load()))) // as if the daemon had just been started
	if got := names(); len(got) != 6 {
		t.Errorf("a daemon that was just started dropped forks: %q are left", got)
	}
	data, at := filepath.Join(around, "data"), filepath.Join(made.Forks[3].Workspace, "mnt")
	check(t, errors.Join(os.Mkdir(data, 0o755), os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(data, "file"), nil, 0o600)))
	check(t, unix.Mount(data, at, "", unix.MS_BIND, ""))
	unmount := sync.OnceValue(func() error { return unix.Unmount(at, 0) })
	defer unmount() // the fork's folder is removed after the test
	expire("2", "3", "4", "5", "6")
	if err := d.DropFork(t.Context(), root, "shop", "4"); errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), at) {
		t.Errorf("a fork with something mounted in its folder is dropped: %v", err)
	}
	if got := page(made.Forks[3].Fork.Ports[0].Address); got != "try 4" {
		t.Errorf("the fork that was not dropped says %q", got)
	}
	check(t, unmount())
	skew.Add(int64(25 * time.Hour)) // somebody asked for 4 and 5 a while ago
	for _, i := range []int{1, 2} {
		if _, err := d.App(t.Context(), root, made.Forks[i].Slug); err != nil {
			t.Fatal(err)
		}
	}
	expire("2", "3", "6")
	leave()
	expire("2", "3", "6")
	if _, err := os.Stat(filepath.Join(data, "file")); err != nil {
		t.Errorf("what was mounted: %v", err)
	}
	for _, f := range []ipc.App{made.Forks[0], made.Forks[3], made.Forks[4]} {
		if _, err := os.Stat(f.Workspace); !os.IsNotExist(err) {
			t.Errorf("the folder of an expired fork: %v", err)
		}
	}
	if log, err := d.Audit(t.Context(), root, "shop", 100, false); err != nil || !slices.ContainsFunc(log.Entries, func(e ipc.AuditEntry) bool {
		return e.Action == "drop" && strings.Contains(e.Reason, "nobody touched it for 24h")
	}) {
		t.Errorf("the audit trail does not say that forks expired: %v", err)
	}

	// Files have the kernel's time: those of a fork that the daemon takes for two days old were written just now.
	skew.Store(-int64(48 * time.Hour))
	if _, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Name: "old"}); err != nil {
		t.Fatal(err)
	}
	skew.Store(0)
	begun = time.Now().Add(-48 * time.Hour)
	expire("2", "3", "6", "old")

	// Nobody looks at them again before that is long ago: it would be told that this one's are not there.
	moved := filepath.Join(around, "tries", "here", "old")
	check(t, os.Rename(moved, moved+"-moved"))
	expire("2", "3", "6", "old")
	if words := warned.list(); len(words) > 0 {
		t.Errorf("the daemon warns: %q", words)
	}
	check(t, os.Rename(moved+"-moved", moved))
	for _, name := range names() {
		check(t, d.DropFork(t.Context(), root, "shop", name))
	}
}

// warnings keeps the warnings of a log.
type warnings struct {
	slog.Handler
	mu    sync.Mutex
	words []string
}

func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words = append(w.words, r.Message)
	return nil
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.words)
}

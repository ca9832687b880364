package files

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/snap/files/watch"
	"mulligan/testkit"
)

const watchesEnv = "MULLIGAN_FILES_WATCHES"

// TestFewWatches: with fewer watches than folders, and a queue of 16 events, each checkpoint is
// still what an independent record says, and it is said that more watches are needed. The limit
// is that of a user namespace: the host's stays as it is.
func TestFewWatches(t *testing.T) {
	if n := os.Getenv(watchesEnv); n != "" {
		limit, err := strconv.Atoi(n)
		must(t, err)
		fewWatches(t, limit)
		return
	}
	if os.Geteuid() != 0 {
		testkit.Lack(t, "only root gives a user namespace its limits")
	}
	limits := []int{16, 30, 500}
	for _, i := range testkit.Sample(t, "numbers of watches", len(limits), 1) {
		limit := limits[i]
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			c := exec.Command(os.Args[0], "-test.run", "^TestFewWatches$", "-test.v", "-test.timeout", "30m")
			c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", watchesEnv, limit), testkit.SeedEnv(t))
			own := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: own, GidMappings: own}
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// fewWatches is the test in a user namespace with that many watches.
func fewWatches(t *testing.T, limit int) {
	must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte(strconv.Itoa(limit)), 0))
	r := testkit.Rand(t)
	f := &followed{site: newSite(t, func(c *Config) { c.Watch = func(o *watch.Options) { o.Queue = 16 } })}
	for i := range limit + 50 {
		write(t, fmt.Sprintf("%s/d%d/in/f", f.dir, i), fmt.Sprint("first ", i))
	}
	f.follow(t)
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) { // until all watches that there are were set
		s := f.Following()
		if s.State == snap.Degraded && s.Remedy != "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with %d watches: %+v", limit, s)
		}
	}
	type turn struct {
		id     snap.SnapshotID
		record []string
	}
	var turns []turn
	rounds := 6
	if testkit.Long() {
		rounds = 42
	}
	for range rounds {
		before := listing(t, f.dir)
		turns = append(turns, turn{f.at(t, f.flush(t)), before})
		scramble(t, r, f.dir, 1+r.IntN(8))
		for range 3 { // where there is no watch, mostly
			path := fmt.Sprintf("%s/d%d/in/f", f.dir, r.IntN(limit+50))
			_ = os.WriteFile(path, fmt.Append(nil, r.Uint64()), 0o644) // it may be gone, or a folder
		}
		turns = append(turns, turn{f.capture(t).ID, listing(t, f.dir)})
	}
	f.exact(t)
	for _, i := range r.Perm(len(turns)) {
		f.restore(t, turns[i].id)
		same(t, string(turns[i].id), listing(t, f.dir), turns[i].record)
	}
}

package files

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/manifest"
	"mulligan/testkit"
)

// filesystems are those that the support page says to be exact. Each gives a folder on one.
var filesystems = []struct {
	name string
	make func(t *testing.T) (dir string)
}{
	{"tmpfs", func(t *testing.T) string {
		dir := t.TempDir()
		mount(t, "none", dir, "tmpfs", 0, "size=512m")
		return dir
	}},
	{"ext4", func(t *testing.T) string { return testkit.Loop(t, 512, "mkfs.ext4", "-q", "-F", "-I", "256") }},
	{"ext4 with inodes of 128 bytes", func(t *testing.T) string { return testkit.Loop(t, 512, "mkfs.ext4", "-q", "-F", "-I", "128") }},
	{"xfs", func(t *testing.T) string {
		testkit.Need(t, "xfs")
		return testkit.Loop(t, 512, "mkfs.xfs", "-q", "-f")
	}},
	{"btrfs", func(t *testing.T) string {
		testkit.Need(t, "btrfs")
		return testkit.Loop(t, 512, "mkfs.btrfs", "-q", "-f")
	}},
	{"overlayfs", func(t *testing.T) string {
		top := testkit.Loop(t, 512, "mkfs.ext4", "-q", "-F")
		for _, d := range []string{"lower/ws/sub", "upper", "work", "merged"} {
			must(t, os.MkdirAll(top+"/"+d, 0o755))
		}
		for i := range 40 { // what is changed of these is copied up
			write(t, fmt.Sprintf("%s/lower/ws/sub/f%d", top, i), fmt.Sprint("lower ", i))
		}
		merged := top + "/merged"
		mount(t, "none", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", top, top, top))
		return merged
	}},
	{"bindfs", func(t *testing.T) string {
		testkit.Need(t, "bindfs")
		top := t.TempDir()
		must(t, os.Mkdir(top+"/source", 0o755))
		must(t, os.Mkdir(top+"/mnt", 0o755))
		fuse(t, 0, top+"/mnt", "bindfs", "-f", "-o", "attr_timeout=0,entry_timeout=0", top+"/source", top+"/mnt") // else a file written by one name looks old by another
		return top + "/mnt"
	}},
	{"fuse-overlayfs", func(t *testing.T) string {
		testkit.Need(t, "fuse-overlayfs")
		top := testkit.Loop(t, 512, "mkfs.ext4", "-q", "-F")
		fuseOverlay(t, top)
		return top + "/merged"
	}},
}

// fuseOverlay has fuse-overlayfs serve top/merged: some folders and files of the lower layer top/lower, below what
// changes.
func fuseOverlay(t *testing.T, top string) {
	t.Helper()
	for _, d := range []string{"lower/ws/sub/deep", "upper", "work", "merged"} {
		must(t, os.MkdirAll(top+"/"+d, 0o755))
	}
	for i := range 40 { // what is changed of these is copied up
		write(t, fmt.Sprintf("%s/lower/ws/sub/f%d", top, i), fmt.Sprint("lower ", i))
		write(t, fmt.Sprintf("%s/lower/ws/sub/deep/f%d", top, i), fmt.Sprint("lower ", i))
	}
	fuse(t, 0, top+"/merged", "fuse-overlayfs", "-f", "-o", fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", top, top, top), top+"/merged")
}

// TestCopiedUp: fuse-overlayfs changes a folder's time when a file in it is first changed, without an event, and the kernel
// shows the old time for a while. The checkpoint holds the new one.
func TestCopiedUp(t *testing.T) {
	testkit.Need(t, "root", "fuse-overlayfs")
	for _, follow := range []bool{false, true} {
		top := t.TempDir()
		fuseOverlay(t, top)
		ws := top + "/merged/ws"
		f := &followed{site: newSite(t, func(c *Config) { c.Dir = ws })}
		if follow {
			f.follow(t)
			defer f.stop()
		}
		f.capture(t)
		for i := range 10 {
			path := fmt.Sprintf("%s/sub/deep/f%d", ws, i)
			file, err := os.OpenFile(path, os.O_WRONLY, 0) // copies it up
			must(t, err)
			if i%2 == 0 { // half of them without a change, and so without an event
				_, err = file.WriteString("written")
			}
			must(t, err)
			must(t, file.Close())
			snapshot := f.capture(t)
			before := listing(t, ws)
			write(t, path, "later")
			f.capture(t)
			f.restore(t, snapshot.ID)
			same(t, fmt.Sprintf("follow=%v, file %d", follow, i), listing(t, ws), before)
		}
	}
}

// stressors are those of stress-ng that work on files. They leave what they made. iomix is not
// among them: it leaves files that nobody may change (chattr +i).
var stressors = []string{
	"access", "chdir", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep", "dirmany", "dup", "fallocate", "fcntl", "fiemap",
	"file-ioctl", "filename", "flock", "fpunch", "fsize", "hdd", "lease", "link", "locka", "mknod", "open", "rename", "seek",
	"sendfile", "symlink", "sync-file", "touch", "utime", "xattr",
}

// smaller keep stressors from filling the disk.
var smaller = []string{"--chdir-dirs", "64", "--fallocate-bytes", "4M", "--sync-file-bytes", "4M", "--hdd-bytes", "2M"}

// stress lets one of stress-ng's stressors work in dir. What it can't do there it leaves.
func stress(t *testing.T, dir, stressor string, seed uint64) {
	t.Helper()
	args := append([]string{"--" + stressor, "1", "--" + stressor + "-ops", "10", "--timeout", "2", "--keep-files", "--temp-path", dir,
		"--seed", strconv.FormatUint(seed>>1, 10), "--quiet"}, smaller...)
	c := exec.Command("stress-ng", args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Logf("stress-ng %s: %v: %.300s", stressor, err, out) // what a filesystem lacks is no failure
	}
	if strings.Contains(string(out), "--help") {
		t.Fatal("stress-ng does not know what it was asked for")
	}
}

// shorten cuts files that are larger than any may be, or that would be read hole by hole where
// the filesystem does not say where holes are.
func shorten(t *testing.T, dir string) {
	t.Helper()
	most := int64(manifest.MaxFile)
	var disk unix.Statfs_t
	must(t, unix.Statfs(dir, &disk))
	if disk.Type == unix.FUSE_SUPER_MAGIC {
		most = 64 << 20
	}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if fi, err := d.Info(); err != nil || fi.Size() <= most {
			return err
		}
		return os.Truncate(p, min(most, 1<<40))
	}))
}

// testStressed: whatever stress-ng's file stressors did in a turn, each state comes back as an
// independent record of it says, on each filesystem, with and without a journal. A run takes some of the
// filesystems, and the next run the next ones.
func testStressed(t *testing.T) {
	testkit.Need(t, "root", "stress-ng")
	n := 4
	if testkit.Long() {
		n = len(stressors)
	}
	for _, i := range testkit.Sample(t, "filesystems", len(filesystems), (len(filesystems)+1)/2) {
		kind := filesystems[i]
		t.Run(kind.name, func(t *testing.T) {
			dir := kind.make(t)
			r := testkit.Rand(t)
			order := r.Perm(len(stressors))[:n]
			for i, part := range [][]int{order[:n/2], order[n/2:]} {
				stressTurns(t, dir+"/ws", i == 1, r, part)
			}
		})
	}
}

// settle waits until no file is left that was deleted while somebody, such as the follower, had it open: on FUSE it has a name in its
// folder until it is closed.
func settle(t *testing.T, ws string) {
	t.Helper()
	testkit.Eventually(t, "files deleted on FUSE are gone", func() bool {
		err := filepath.WalkDir(ws, func(path string, e fs.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(e.Name(), ".fuse_hidden") {
				err = os.ErrExist
			}
			return err
		})
		return err == nil
	})
}

// stressTurns does a turn for each stressor, and goes back and forth over each.
func stressTurns(t *testing.T, ws string, follow bool, r *rand.Rand, order []int) {
	t.Helper()
	must(t, os.MkdirAll(ws, 0o755))
	f := &followed{site: newSite(t, func(c *Config) { c.Dir = ws })}
	if follow {
		f.follow(t)
		defer f.stop()
	}
	changed := 0
	for _, i := range order {
		if testing.Verbose() {
			t.Log(stressors[i])
		}
		before, one := listing(t, ws), f.capture(t)
		stress(t, ws, stressors[i], r.Uint64())
		shorten(t, ws)
		scramble(t, r, ws, 10)
		settle(t, ws)
		after, two := listing(t, ws), f.capture(t)
		if strings.Join(before, "\n") != strings.Join(after, "\n") {
			changed++
		}
		what := fmt.Sprintf("follow=%v, %s", follow, stressors[i])
		f.restore(t, one.ID)
		same(t, what+": back", listing(t, ws), before)
		f.restore(t, two.ID)
		same(t, what+": forth", listing(t, ws), after)
	}
	if changed == 0 {
		t.Error("nothing was changed: this shows nothing")
	}
}

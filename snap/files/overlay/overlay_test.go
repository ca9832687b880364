package overlay

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
)

const nobody = 65534

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// forks is a folder of an ordinary user's with a pinned copy, which has the file "f" and the folder "d", and an empty folder "1".
func forks(t *testing.T) (dir string, m Mount) {
	t.Helper()
	dir = testkit.Loop(t, 512, "mkfs.xfs", "-q", "-f")
	m = Mount{Pinned: dir + "/.pin-1", Name: "app-1", At: dir + "/1", Owner: nobody, Fresh: true}
	for up := dir; strings.HasPrefix(up, os.TempDir()+"/"); up = filepath.Dir(up) {
		must(t, os.Chmod(up, 0o755))
	}
	must(t, os.Chown(dir, nobody, nobody))
	must(t, Make(m.Pinned, nobody, nobody))
	t.Cleanup(func() { must(t, Remove(m.Pinned)) })
	base := Base(m.Pinned)
	must(t, os.WriteFile(base+"/f", []byte("of the copy"), 0o644))
	must(t, os.Mkdir(base+"/d", 0o755))
	for _, p := range []string{base + "/f", base + "/d"} {
		must(t, os.Chown(p, nobody, nobody))
	}
	must(t, os.Chmod(base, 0o750))
	must(t, os.Mkdir(m.At, 0o755))
	must(t, os.Chown(m.At, nobody, nobody))
	return dir, m
}

// as runs a command as an ordinary user.
func as(t *testing.T, command string) (string, error) {
	t.Helper()
	out, err := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", command).CombinedOutput()
	return string(out), err
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		list = append(list, e.Name())
	}
	return list
}

// TestMount mounts a workspace, loses the mount as a reboot does, and mounts it again. What was changed is there, and the copy is as it was.
// Where something is missing, nothing is mounted.
func TestMount(t *testing.T) {
	testkit.Need(t, "root", "xfs")
	_, m := forks(t)
	for range 2 {
		must(t, m.Ensure())
	}
	if st, err := os.Stat(m.At); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("the folder is %v, %v", st.Mode(), err)
	}
	if out, err := as(t, "cd "+m.At+" && echo changed >f && mv d e && echo new >e/g"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, unix.Unmount(m.At, 0))
	if out, err := as(t, "echo lost >"+m.At+"/f"); err == nil {
		t.Errorf("a file was written below the mount: %s", out)
	}
	m.Fresh = false
	must(t, m.Ensure())
	if got := names(t, m.At); !slices.Equal(got, []string{"e", "f"}) {
		t.Errorf("the workspace has %q", got)
	}
	if text, err := os.ReadFile(m.At + "/f"); err != nil || string(text) != "changed\n" {
		t.Errorf("f is %q, %v", text, err)
	}
	if text, err := os.ReadFile(Base(m.Pinned) + "/f"); err != nil || string(text) != "of the copy" {
		t.Errorf("f of the copy is %q, %v", text, err)
	}

	for what, spoil := range map[string]func() (mend func()){
		"without the copy": func() func() {
			must(t, os.Rename(m.Pinned, m.Pinned+"-moved"))
			return func() { must(t, os.Rename(m.Pinned+"-moved", m.Pinned)) }
		},
		"with another folder in the copy's place": func() func() {
			must(t, os.Rename(m.Pinned, m.Pinned+"-moved"))
			must(t, os.MkdirAll(Base(m.Pinned), 0o700))
			return func() {
				must(t, os.RemoveAll(m.Pinned))
				must(t, os.Rename(m.Pinned+"-moved", m.Pinned))
			}
		},
		"without what it has of its own": func() func() {
			must(t, os.Rename(m.Pinned+"/app-1", m.Pinned+"/other"))
			return func() { must(t, os.Rename(m.Pinned+"/other", m.Pinned+"/app-1")) }
		},
		"with a file in the folder": func() func() {
			must(t, os.WriteFile(m.At+"/f", nil, 0o644))
			return func() { must(t, os.Remove(m.At+"/f")) }
		},
		"with a link in the folder's place": func() func() {
			must(t, os.Remove(m.At))
			must(t, os.Symlink("/etc", m.At))
			return func() {
				must(t, os.Remove(m.At))
				must(t, os.Mkdir(m.At, 0o755))
			}
		},
		"with another user's folder": func() func() {
			must(t, os.Chown(m.At, 1234, 1234))
			return func() { must(t, os.Chown(m.At, nobody, nobody)) }
		},
	} {
		must(t, unix.Unmount(m.At, 0))
		mend := spoil()
		if err := m.Ensure(); err == nil {
			t.Errorf("%s it was mounted", what)
		} else if kind := errs.KindOf(err); kind == errs.Internal || len(err.Error()) < 30 {
			t.Errorf("%s: kind %s: %v", what, kind, err)
		}
		mend()
		must(t, m.Ensure())
	}

	must(t, m.Remove())
	must(t, m.Remove())
	if got := names(t, m.At); len(got) > 0 {
		t.Errorf("left are %q", got)
	}
	if got := names(t, m.Pinned); !slices.Equal(got, []string{"base"}) {
		t.Errorf("the copy's folder has %q", got)
	}
}

// TestOwner lets the owner of the folders try to reach the copy, to get rid of a mount, and to lead root elsewhere.
func TestOwner(t *testing.T) {
	testkit.Need(t, "root", "xfs")
	dir, m := forks(t)
	must(t, m.Ensure())
	for _, command := range []string{
		"cd " + m.Pinned, "cat " + m.Pinned + "/base/f", "ls " + m.Pinned, "rmdir " + m.At, "mv " + m.At + " " + dir + "/2", "umount " + m.At,
		"mknod " + m.At + "/hidden c 0 0",
	} {
		if out, err := as(t, command); err == nil {
			t.Errorf("%s: %s", command, out)
		}
	}
	if out, err := as(t, "cp /bin/sh "+m.At+"/sh && chmod u+s "+m.At+"/sh"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command(m.At+"/sh", "-p", "-c", "id -u").Output(); err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("a set-user-ID program in a workspace runs as %s, %v", out, err)
	}

	// A mount is found wherever its folder is moved to.
	must(t, os.Mkdir(dir+"/moved", 0o755))
	must(t, m.Remove())
	must(t, os.Remove(m.At))
	deep := dir + "/x/1"
	must(t, os.MkdirAll(deep, 0o755))
	m.At = deep
	must(t, m.Ensure())
	must(t, os.Rename(dir+"/x", dir+"/moved/y"))
	must(t, m.Remove())
	if got := names(t, dir+"/moved/y/1"); len(got) > 0 {
		t.Errorf("after the removal, there are %q", got)
	}

	// A folder in the place of a pinned copy stays.
	must(t, os.Rename(m.Pinned, m.Pinned+"-moved"))
	must(t, os.MkdirAll(m.Pinned+"/base", 0o700))
	must(t, os.WriteFile(m.Pinned+"/base/precious", nil, 0o600))
	must(t, Remove(m.Pinned))
	if _, err := os.Stat(m.Pinned + "/base/precious"); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(m.Pinned))
	must(t, os.Rename(m.Pinned+"-moved", m.Pinned))
	must(t, Remove(m.Pinned))
	if _, err := os.Stat(m.Pinned); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
}

// TestUnsupported says where workspaces cannot be mounted: on another overlay, for example.
func TestUnsupported(t *testing.T) {
	testkit.Need(t, "root", "xfs")
	dir, m := forks(t)
	must(t, m.Ensure())
	inner := m.At + "/d/.pin-2"
	if err := Make(inner, nobody, nobody); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("on an overlay: %v", err)
	}
	must(t, Remove(inner))
	if got := names(t, filepath.Dir(inner)); len(got) > 0 {
		t.Errorf("left are %q in %s", got, dir)
	}
}

// onFirst is set for a child that calls onThread on the process's first thread.
const onFirst = "MULLIGAN_TEST_ON_FIRST_THREAD"

const (
	exitElsewhere = 10 + iota // the child was not on the first thread itself
	exitOnFirst               // what it called ran on the first thread
)

// TestMain is the child: its goroutine begins on the first thread.
func TestMain(m *testing.M) {
	if os.Getenv(onFirst) == "" {
		os.Exit(m.Run())
	}
	if unix.Gettid() != os.Getpid() {
		os.Exit(exitElsewhere)
	}
	err := onThread(func() error {
		if unix.Gettid() == os.Getpid() {
			os.Exit(exitOnFirst)
		}
		return nil
	})
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// TestOnThread calls onThread from the process's first thread, where a goroutine that begins gets it. Nothing may run there that changes a namespace.
func TestOnThread(t *testing.T) {
	ran := 0
	for range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), onFirst+"=1", "GOMAXPROCS=1")
		err := cmd.Run()
		switch code := cmd.ProcessState.ExitCode(); {
		case code == exitOnFirst:
			t.Fatal("it ran on the first thread")
		case code == exitElsewhere:
		case err != nil:
			t.Fatal(err)
		default:
			ran++
		}
	}
	if ran == 0 {
		t.Fatal("no child was on the first thread")
	}
}

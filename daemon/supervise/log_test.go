package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
	"mulligan/testkit"
)

// logged is what was logged of a command's output, as far as it is kept.
func logged(t *testing.T, p *Process) string {
	t.Helper()
	old, err := os.ReadFile(p.LogPath() + ".1")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	now, err := os.ReadFile(p.LogPath())
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(old) + string(now)
}

// fill is what a command tries, to make its log large otherwise than by writing.
// It prints what succeeded, and "tried" at the end.
func fill() {
	const size = 4 << 30
	for fd := 1; fd <= 2; fd++ {
		tries := map[string]error{
			"fallocate": unix.Fallocate(fd, 0, 0, size),
			"keep size": unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size),
			"ftruncate": unix.Ftruncate(fd, size),
		}
		_, tries["pwrite"] = unix.Pwrite(fd, []byte("x"), size)
		_, tries["lseek"] = unix.Seek(fd, size, unix.SEEK_SET)
		_, tries["F_SETPIPE_SZ"] = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<30)
		tries["fchmod"] = unix.Fchmod(fd, 0o666)
		tries["fchown"] = unix.Fchown(fd, os.Getuid(), os.Getgid())
		_, tries["open"] = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
		for what, err := range tries {
			if err == nil {
				fmt.Printf("%s of descriptor %d\n", what, fd)
			}
		}
	}
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} { // and no descriptor leads elsewhere
		entries, err := os.ReadDir(dir)
		if err != nil {
			fmt.Println(err)
		}
		for _, e := range entries {
			if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(to, "run.log") {
				fmt.Printf("descriptor %s is %s\n", e.Name(), to)
			}
		}
	}
	fmt.Println("tried")
	select {}
}

// TestLogCannotBeFilled has another user's command do its worst to its log.
func TestLogCannotBeFilled(t *testing.T) {
	testkit.Need(t, "root")
	bin := helperBinary(t)
	cfg := script(t.TempDir(), "exec "+bin)
	cfg.Env = []string{"SUPERVISE_FILL=1", "SUPERVISE_DIR=-"}
	cfg.Owner = privsep.User{UID: 65534, GID: 65534}
	p := supervise(t, cfg)
	must(t, p.Start(t.Context()))
	until(t, "tried", func() bool { return strings.Contains(logged(t, p), "tried\n") })
	must(t, p.Stop(t.Context()))
	if out := logged(t, p); out != "tried\n" {
		t.Errorf("the command could: %s", out)
	}
	var st unix.Stat_t
	must(t, unix.Stat(p.LogPath(), &st))
	if st.Size > quick.logLimit || st.Blocks*512 > quick.logLimit {
		t.Errorf("the log has %d bytes in %d blocks", st.Size, st.Blocks)
	}
}

// helperBinary is this program where every user can run it.
func helperBinary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	b, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	bin := filepath.Join(dir, "helper")
	must(t, errors.Join(testkit.WriteProgram(bin, b), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return bin
}

// TestLogIsBounded has a command write many times what the log may hold: at
// every moment the log and what was rotated away are within the limit, and what
// was kept is the end of the output.
func TestLogIsBounded(t *testing.T) {
	const lines = 400_000 // about 10 MiB
	p := supervise(t, script(t.TempDir(), fmt.Sprintf("seq -f 'line %%020.0f' %d; echo end; exec sleep 1000", lines)))
	must(t, p.Start(t.Context()))
	until(t, "written", func() bool {
		for _, path := range []string{p.LogPath(), p.LogPath() + ".1"} {
			if info, err := os.Stat(path); err == nil && info.Size() > quick.logLimit {
				t.Fatalf("%s has %d bytes", path, info.Size())
			}
		}
		return strings.HasSuffix(logged(t, p), "\nend\n")
	})
	must(t, p.Stop(t.Context()))
	kept := strings.Split(strings.TrimSuffix(logged(t, p), "end\n"), "\n")
	kept = kept[1 : len(kept)-1] // the first line may have been cut
	if int64(len(kept))*26 < quick.logLimit-64<<10 {
		t.Errorf("only %d lines were kept", len(kept))
	}
	for i, line := range kept {
		if want := fmt.Sprintf("line %020d", lines-len(kept)+i+1); line != want {
			t.Fatalf("line %d of those kept is %q, want %q", i, line, want)
		}
	}
}

// TestOutputWithoutDaemon has a command write more than its pipe holds while
// there is no daemon: it waits, and the next daemon logs all of it.
func TestOutputWithoutDaemon(t *testing.T) {
	const lines = 100_000 // about 2.5 MiB
	dir := t.TempDir()
	text := fmt.Sprintf("trap 'echo broken pipe >%[1]s/broken' PIPE; echo first; until [ -e %[1]s/go ]; do sleep 0.01; done; "+
		"seq -f 'line %%020.0f' %[2]d || echo failed >%[1]s/broken; echo last; exec sleep 1000", dir, lines)
	pid := killedDaemon(t, dir, text)
	must(t, os.WriteFile(dir+"/go", nil, 0o600))
	until(t, "waiting in a full pipe", func() bool { return pipeIsFull(t, dir+"/run.out") })

	roomy := quick
	roomy.logLimit = 8 << 20
	p, err := open(script(dir, text), roomy)
	must(t, err)
	defer func() { must(t, p.Close()) }()
	until(t, "logged", func() bool { return strings.HasSuffix(logged(t, p), "\nlast\n") })
	if st := state(t, p); st.MainPID != pid || !st.Running() {
		t.Errorf("not adopted: %+v", st)
	}
	must(t, p.Stop(t.Context()))
	var want strings.Builder
	want.WriteString("first\n")
	for i := range lines {
		fmt.Fprintf(&want, "line %020d\n", i+1)
	}
	want.WriteString("last\n")
	if out := logged(t, p); out != want.String() {
		t.Errorf("of %d bytes %d were logged", want.Len(), len(out))
	}
	if b, err := os.ReadFile(dir + "/broken"); err == nil {
		t.Errorf("the command met: %s", b)
	}
}

// pipeIsFull reports whether nothing more goes into the pipe at path.
func pipeIsFull(t *testing.T, path string) bool {
	t.Helper()
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	must(t, err)
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err = unix.Poll(fds, 0)
	if errors.Is(err, unix.EINTR) {
		return false
	}
	must(t, err)
	return fds[0].Revents&unix.POLLOUT == 0
}

// TestOutputAcrossClose has one Process after the other read the same pipe, with
// nothing lost or doubled in between.
func TestOutputAcrossClose(t *testing.T) {
	dir := t.TempDir()
	cfg := script(dir, "i=0; until [ -e "+dir+"/stop ]; do i=$((i+1)); echo $i; sleep 0.001; done; echo end; exec sleep 1000")
	var p *Process
	for range 5 {
		p = supervise(t, cfg) // closes the one before
		must(t, p.Start(t.Context()))
		seen := len(logged(t, p))
		until(t, "going on", func() bool { return len(logged(t, p)) > seen })
	}
	must(t, os.WriteFile(dir+"/stop", nil, 0o600))
	until(t, "at its end", func() bool { return strings.HasSuffix(logged(t, p), "\nend\n") })
	must(t, p.Stop(t.Context()))
	kept := strings.Split(strings.TrimSuffix(logged(t, p), "\nend\n"), "\n")
	for i, line := range kept {
		if want := fmt.Sprint(i + 1); line != want {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

// TestPipeOfAnEarlierRun: what an earlier run left behind can't read the output of the next.
func TestPipeOfAnEarlierRun(t *testing.T) {
	dir := t.TempDir()
	p := supervise(t, script(dir, "echo $MULLIGAN_RUN; exec sleep 1000"))
	must(t, p.Start(t.Context()))
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/1", state(t, p).MainPID), unix.O_RDWR|unix.O_NONBLOCK, 0) // as one that was lost sight of
	must(t, err)
	defer unix.Close(fd)
	until(t, "logged", func() bool { return strings.Count(logged(t, p), "\n") == 1 })
	must(t, p.Stop(t.Context()))
	must(t, p.Start(t.Context()))
	until(t, "logged again", func() bool { return strings.Count(logged(t, p), "\n") == 2 })
	if n, err := unix.Read(fd, make([]byte, 100)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	must(t, p.Stop(t.Context()))
}

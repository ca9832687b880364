package sqlite

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// TestOpenerBesideSilentServer: whoever has a file open whose FUSE server does not answer keeps nobody from learning who has a database open.
func TestOpenerBesideSilentServer(t *testing.T) {
	testkit.Need(t, "root", "bindfs")
	src, dir := t.TempDir(), t.TempDir()
	path := filepath.Join(t.TempDir(), "own")
	check(t, os.WriteFile(path, nil, 0o600))
	check(t, os.WriteFile(filepath.Join(src, "f"), nil, 0o600))
	server := exec.Command("bindfs", "-f", "-o", "attr_timeout=0", src, dir)
	check(t, server.Start())
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = server.Process.Kill() // also if it is stopped
		_ = server.Wait()
	})
	testkit.Eventually(t, "bindfs serves the folder", func() bool {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
	})
	client := exec.Command("sh", "-c", `exec 3<"$0" 4<"$1" && echo open && read end`, filepath.Join(dir, "f"), path)
	in, err := client.StdinPipe()
	check(t, err)
	out, err := client.StdoutPipe()
	check(t, err)
	check(t, client.Start())
	t.Cleanup(func() {
		_ = server.Process.Signal(unix.SIGCONT) // the end of the client closes its files, which the server has to answer
		_ = in.Close()
		_ = client.Wait() // read fails at the end of its input
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	check(t, unix.Stat(path, &st))
	check(t, server.Process.Signal(unix.SIGSTOP))
	found := make(chan int, 1)
	go func() { found <- opener(st) }()
	select {
	case pid := <-found:
		if pid != client.Process.Pid {
			t.Errorf("process %d has the file open, not %d", pid, client.Process.Pid)
		}
	case <-time.After(testkit.Patience):
		t.Error("looking for who has the file open does not end")
	}
}

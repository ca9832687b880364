package pgserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
)

// strays are servers of a cluster that its data folder does not show, because it was removed or replaced.
type strays struct {
	Bin, DataDir string
	AtOnce       bool // without a clean shutdown
}

// endStraysAsOwner asks the strays to stop, and returns the number of processes left.
var endStraysAsOwner = privsep.Define("physical.endStrays", func(_ context.Context, s strays) (int, error) {
	found, err := s.find()
	sig := unix.SIGINT // a fast shutdown
	if s.AtOnce {
		sig = unix.SIGQUIT
	}
	for _, pid := range found {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
			_ = unix.Kill(pid, sig) // it may have ended
		}
	}
	return len(found), err
})

// find returns the ids of the main processes of servers that run the cluster's program and were started for its folder.
func (s strays) find() (pids []int, err error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || pid == os.Getpid() {
			continue
		}
		program, err := os.Readlink(filepath.Join(proc, "exe"))
		if err != nil || strings.TrimSuffix(program, gone) != filepath.Join(s.Bin, "postgres") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		args := strings.Split(string(line), "\x00")
		if i := slices.Index(args, "-D"); err == nil && i >= 0 && i+1 < len(args) && args[i+1] == s.DataDir {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

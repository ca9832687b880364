package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ident identifies a process. The kernel reuses pids, but never a pid with the same start time in one boot.
type ident struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// proc holds what /proc says of a process; see proc(5).
type proc struct {
	ident
	name    string
	dead    bool // it has ended, and was not reaped yet
	parent  int
	session int
}

// marker is the name of the environment variable that carries the run's id.
const marker = "MULLIGAN_RUN"

// look reads /proc/PID/stat. os.ErrNotExist means that there is no such process.
func look(pid int) (proc, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return proc{}, err
	}
	return parseStat(string(b))
}

// parseStat parses the line of /proc/PID/stat. The name in it is in parentheses, and may contain any character, also
// parentheses.
func parseStat(line string) (proc, error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return proc{}, fmt.Errorf("not a line of /proc/PID/stat: %q", line)
	}
	f := strings.Fields(line[end+1:]) // the fields from the third on
	if len(f) < 20 {
		return proc{}, fmt.Errorf("not a line of /proc/PID/stat: %q", line)
	}
	field := func(n int) string { return f[n-3] }
	pid, err1 := strconv.Atoi(strings.TrimSpace(line[:open]))
	parent, err2 := strconv.Atoi(field(4))
	session, err3 := strconv.Atoi(field(6))
	threads, err4 := strconv.Atoi(field(20))
	start, err5 := strconv.ParseUint(field(22), 10, 64)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return proc{}, err
	}
	// A process whose first thread has ended is shown as a zombie while other threads run.
	dead := field(3) == "X" || field(3) == "Z" && threads <= 1
	return proc{ident{pid, start}, line[open+1 : end], dead, parent, session}, nil
}

// alive reports whether this process still runs. It returns true if it cannot find out.
func (id ident) alive() bool {
	p, err := look(id.PID)
	if err != nil {
		return id.PID > 0 && !errors.Is(err, os.ErrNotExist)
	}
	return p.ident == id && !p.dead
}

// pidfd opens the process, so that a signal cannot reach another process with the same pid.
func (id ident) pidfd() (int, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return -1, err
	}
	if !id.alive() {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// signal sends sig if the process still runs.
func (id ident) signal(sig unix.Signal) error {
	fd, err := id.pidfd()
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
		unix.Close(fd)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// all lists the running processes.
func all() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list []proc
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := look(pid)
		if errors.Is(err, os.ErrNotExist) || p.dead {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// run returns the id of the run with which the process was started in its environment. It returns "" if it has none or the environment
// cannot be read, as that of another user's process.
func (p proc) run() string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	if err != nil {
		return ""
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(v, []byte(marker+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// of reports whether the process is the user's.
func (p proc) of(uid int) bool {
	var st unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d", p.PID), &st) == nil && int(st.Uid) == uid && p.alive()
}

// members lists the running processes of a run. known are processes that were seen before; their descendants belong to the run
// too.
func members(rec record, known ...proc) ([]proc, error) {
	boot, err := bootID()
	if err != nil || rec.Run == "" || rec.Boot != boot {
		return nil, err
	}
	list, err := all()
	if err != nil {
		return nil, err
	}
	// The kernel gives a session's id to no other process while the session has members. If another process has the id, the
	// session has ended.
	session := rec.PID
	if p, err := look(rec.PID); err == nil && p.ident != rec.ident {
		session = 0
	}
	in := map[int]bool{}
	for _, k := range known {
		in[k.PID] = k.alive()
	}
	self := os.Getpid()
	other := func(p proc) bool { return p.PID != self && !in[p.PID] }
	for _, p := range list {
		// Nothing that started before the command is of its run: most processes of a host need no further look.
		if other(p) && p.Start >= rec.Start && (session > 0 && p.session == session || p.run() == rec.Run) {
			in[p.PID] = true
		}
	}
	for again := true; again; { // repeat until no new child of a member is found
		again = false
		for _, p := range list {
			if other(p) && in[p.parent] {
				in[p.PID], again = true, true
			}
		}
	}
	return slices.DeleteFunc(list, func(p proc) bool { return !in[p.PID] }), nil
}

// bootID identifies the present boot of the machine. Without it, every process would seem to be of another boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

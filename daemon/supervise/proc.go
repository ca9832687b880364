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

// ident is one process and no other: pids are used again, but not together
// with the time of their start, as long as the machine is up.
type ident struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// proc is what /proc tells of a process; see proc(5).
type proc struct {
	ident
	name    string
	dead    bool // nothing of it runs any more; it waits to be reaped
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

// parseStat parses a line of /proc/PID/stat. The name is in parentheses and may
// itself have any character, parentheses too.
func parseStat(line string) (proc, error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return proc{}, fmt.Errorf("not a line of /proc/PID/stat: %q", line)
	}
	f := strings.Fields(line[end+1:]) // from field 3 on
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
	// A process whose first thread ended is shown as a zombie while others run.
	dead := field(3) == "X" || field(3) == "Z" && threads <= 1
	return proc{ident{pid, start}, line[open+1 : end], dead, parent, session}, nil
}

// alive reports whether the very process is still there and runs; one that
// cannot be looked at is taken to.
func (id ident) alive() bool {
	p, err := look(id.PID)
	if err != nil {
		return id.PID > 0 && !errors.Is(err, os.ErrNotExist)
	}
	return p.ident == id && !p.dead
}

// pidfd opens the process, so that a signal can't hit another one.
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

// signal sends sig, if the process is still there.
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

// all lists the processes that run.
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

// marked reports whether the process was started with the run's id in its
// environment. What can't be read (another user's) isn't marked.
func (p proc) marked(run string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	return err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool {
		return string(v) == marker+"="+run
	})
}

// members lists the running processes of a run; known are further ones that
// were seen before, whose descendants count too.
func members(rec record, known ...proc) ([]proc, error) {
	boot, err := bootID()
	if err != nil || rec.Run == "" || rec.Boot != boot {
		return nil, err
	}
	list, err := all()
	if err != nil {
		return nil, err
	}
	// The number of a session is not given to another process while the session
	// has members; a different process under it means that the session is over.
	session := rec.PID
	if p, err := look(rec.PID); err == nil && p.ident != rec.ident {
		session = 0
	}
	in := map[int]bool{}
	for _, k := range known {
		in[k.PID] = k.alive()
	}
	self := os.Getpid()
	for again := true; again; { // until no child of a member is new
		again = false
		for _, p := range list {
			if in[p.PID] || p.PID == self {
				continue
			}
			inSession := session > 0 && p.session == session && p.Start >= rec.Start
			if inSession || in[p.parent] || p.marked(rec.Run) {
				in[p.PID], again = true, true
			}
		}
	}
	return slices.DeleteFunc(list, func(p proc) bool { return !in[p.PID] }), nil
}

// bootID tells this start of the machine from others. Not to know it would be to
// take every process for one of another start.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// Package privsep does work for a user in a separate process that has only this user's rights.
//
// The daemon is root. The owner of an app names files that the daemon uses: password files, certificates, sockets, commands.
// The daemon must open such files with the owner's rights only. It never changes the ids of one of its own threads: a user may
// kill or stop a thread that has the user's ids, and with it the whole daemon. Instead, the daemon starts its own program
// again, as a process that drops root's ids for ever:
//
//   - A worker serves calls of functions that were defined with [Define]. It has
//     all ids and groups of the user, no capability, no_new_privs, limits on
//     memory and open files, and its own process group. It answers with a bounded
//     number of bytes and with open files. One worker does one call at a time;
//     idle workers are used again.
//   - A launcher becomes a command of the user's: [User.Start].
//
// Both drop root's ids after execve, when they have memory of their own. So the user can never signal, trace or delay a process
// that shares memory with the daemon. The kernel lets only root trace a process that dropped its ids (PR_SET_DUMPABLE,
// prctl(2)), so the user cannot take over a worker. The daemon nevertheless treats a worker's answers as untrusted input.
//
// A program that uses the package must call [Main] before anything else; a test binary calls it
// in TestMain. The model is OpenSSH's privilege separation (Provos, Friedl, Honeyman:
// "Preventing Privilege Escalation", 2003).
package privsep

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// User is the user for whom a process works: uid, gid and supplementary groups. The uid is -1 for the daemon's own user.
type User struct {
	UID    int
	GID    int
	Groups []int
	// Folders, if there are any, are all that a worker of the user sees of the host's files, at their own paths. The user need not be able to
	// enter the folders above them. Such a user can only be called for: no command can be started. One that does not exist is left out.
	Folders []string
}

// Self is the user as whom the daemon itself runs.
var Self = User{UID: -1, GID: -1}

// String returns the user's name for messages.
func (u User) String() string {
	if u.UID < 0 {
		return "the daemon's own user"
	}
	return fmt.Sprintf("user %d", u.UID)
}

// IsSelf reports whether the daemon itself runs as u.
func (u User) IsSelf() bool { return u.UID < 0 || u.UID == os.Geteuid() }

// key identifies the user in the pool of workers.
func (u User) key() string {
	groups := slices.Clone(u.Groups)
	slices.Sort(groups)
	key := fmt.Sprint(u.UID, ":", u.GID, ":", groups)
	for _, dir := range u.Folders { // a worker sees the folder that was there when the worker was started
		var st unix.Stat_t
		_ = unix.Lstat(dir, &st) // without a folder, the numbers are 0
		key += fmt.Sprintf(":%s=%d:%d", dir, st.Dev, st.Ino)
	}
	return key
}

// mayBecome returns an error if the daemon cannot work as u.
func (u User) mayBecome() error {
	switch {
	case os.Geteuid() != 0:
		return errs.New(errs.Denied, "", "this daemon is not root and cannot work for %s", u).
			WithHint("run mulligand as root, or use what belongs to the user who runs it")
	case u.UID <= 0 || u.GID < 0:
		return errs.New(errs.Internal, "", "refused to start a process for %s with group %d", u, u.GID)
	case !hasMain.Load():
		return errs.New(errs.Internal, "", "this program does not call privsep.Main")
	}
	return nil
}

// The names (argv[0]) from which a process knows that it was started as a worker or a launcher.
const (
	WorkerName   = "mulligand-worker"
	LauncherName = "mulligand-launch" // launcher_name in launcher.c
)

// program is the path of the daemon's own program. It is valid even if the file was replaced since the start.
const program = "/proc/self/exe"

var hasMain atomic.Bool

// Main runs the worker if the process was started as one, and then does not return. Otherwise it returns at once. A launcher does not
// come here: launcher.c has run before.
func Main() {
	if os.Args[0] == WorkerName {
		os.Exit(work())
	}
	hasMain.Store(true)
}

// environment returns the environment of workers and launchers. It has no variables of the daemon or the user, except the race
// detector's settings.
func environment() []string {
	env := []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	if race := os.Getenv("GORACE"); race != "" {
		env = append(env, "GORACE="+race)
	}
	return env
}

// Package privsep does the daemon's work for a user in another process, which
// is that user.
//
// The host's daemon is root. Much of what it does is named by the owner of an
// app: password files, certificates, sockets, commands. Such a name is followed
// with the owner's rights and no other. For that the daemon never changes the
// ids of one of its own threads: a thread with a user's ids may be killed or
// stopped by that user, and the whole daemon with it. It starts its own program
// again, as a process that drops root's ids for ever:
//
//   - A worker serves calls of functions that were defined with [Define]. It has
//     all ids and groups of the user, no capability, no_new_privs, limits on
//     memory and open files, and a process group of its own. It answers with
//     bounded bytes and with open files. One worker does one call at a time;
//     workers that wait are used again.
//   - A launcher becomes a command of the user's: [User.Start].
//
// Both drop their ids after they were executed, with memory of their own, so the
// user can at no instant signal, trace or delay a process that shares memory
// with the daemon. The kernel lets nobody but root trace a process that dropped
// its ids (PR_SET_DUMPABLE, prctl(2)), so the user cannot take a worker over. What a
// worker answers is nevertheless checked as something that the user said.
//
// A program that uses the package calls [Main] before anything else, and a test
// binary does so in TestMain. OpenSSH's privilege separation is the model
// (Provos, Friedl, Honeyman: "Preventing Privilege Escalation", 2003).
package privsep

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"mulligan/errs"
)

// User is whom a process works for: one user's ids and all groups that count.
// Its uid is -1 for the daemon's own user.
type User struct {
	UID    int
	GID    int
	Groups []int
}

// Self is the user that the daemon itself runs as.
var Self = User{UID: -1, GID: -1}

// String names the user for messages.
func (u User) String() string {
	if u.UID < 0 {
		return "the daemon's own user"
	}
	return fmt.Sprintf("user %d", u.UID)
}

// IsSelf reports whether work for u is done by the daemon itself.
func (u User) IsSelf() bool { return u.UID < 0 || u.UID == os.Geteuid() }

// key tells users apart in the pool of workers.
func (u User) key() string {
	groups := slices.Clone(u.Groups)
	slices.Sort(groups)
	return fmt.Sprint(u.UID, ":", u.GID, ":", groups)
}

// mayBecome returns an error if the daemon cannot work as u.
func (u User) mayBecome() error {
	switch {
	case os.Geteuid() != 0:
		return errs.New(errs.Denied, "", "only the host's daemon works for %s", u).
			WithHint("run mulligand as root, or use what belongs to the user who runs it")
	case u.UID <= 0 || u.GID < 0:
		return errs.New(errs.Internal, "", "no process becomes %s with group %d", u, u.GID)
	case !hasMain.Load():
		return errs.New(errs.Internal, "", "this program does not call privsep.Main")
	}
	return nil
}

// The names that a process finds as its own when it was started to work for a user.
const (
	workerName   = "mulligand-worker"
	launcherName = "mulligand-launch"
)

// program is the daemon's own program, whatever was done to its file since.
const program = "/proc/self/exe"

var hasMain atomic.Bool

// Main makes a process a worker or a launcher if it was started as one, and
// does not return then.
func Main() {
	switch os.Args[0] {
	case workerName:
		os.Exit(work())
	case launcherName:
		os.Exit(launch())
	}
	hasMain.Store(true)
}

// environment is what a worker and a launcher begin with: nothing of the
// daemon's, and nothing of the user's, but for the race detector's settings.
func environment() []string {
	env := []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	if race := os.Getenv("GORACE"); race != "" {
		env = append(env, "GORACE="+race)
	}
	return env
}

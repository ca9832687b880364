package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

// daemon checks that the daemon answers, and asks it for its state and apps.
func (e *exam) daemon(ctx context.Context) {
	const about = "daemon"
	short, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := e.Daemon.Status(short)
	if err != nil {
		e.report.NoDaemon = err
		if errors.Is(err, ipc.ErrNoDaemon) && e.Asleep != nil {
			err = e.Asleep
		}
		e.add(about, "reachable", Problem, plain(err), errs.HintOf(err))
		return
	}
	e.status = st
	e.add(about, "reachable", OK, fmt.Sprintf("the %s daemon, pid %d, on %s", st.Mode, st.PID, e.Daemon.Socket()), "")
	if st.Version == e.Version {
		e.add(about, "version", OK, st.Version+", as this program", "")
	} else {
		e.add(about, "version", Advice, "it is "+st.Version+", this program is "+e.Version, "install both from one build, and restart the daemon")
	}
	e.apps, err = e.Daemon.Apps(short)
	if err != nil {
		e.add(about, "apps", Problem, plain(err), errs.HintOf(err))
	}
	for _, p := range st.Problems {
		if !e.ofApp(p) {
			e.add(about, "complaint", Problem, p, "see `mulligan status`")
		}
	}
}

// ofApp reports whether a problem that the daemon reports is about a listed app.
// The checks of that app then report it.
func (e *exam) ofApp(complaint string) bool {
	for _, a := range e.apps {
		if strings.HasPrefix(complaint, a.Slug+": ") {
			return true
		}
	}
	return false
}

// hostMode reports whether the daemon is the host's, or would be if one ran.
func (e *exam) hostMode() bool {
	if e.status.Mode != "" {
		return e.status.Mode == "host"
	}
	return e.UID == 0
}

// plain returns the text of an error in one line.
func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

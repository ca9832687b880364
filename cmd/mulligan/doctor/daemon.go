package doctor

import (
	"context"
	"fmt"
	"strings"

	"mulligan/errs"
)

// daemon asks whether it answers, and for what it knows.
func (e *exam) daemon(ctx context.Context) {
	const about = "daemon"
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := e.Daemon.Status(short)
	if err != nil {
		e.report.NoDaemon = err
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

// ofApp tells whether a complaint of the daemon is about an app that is listed:
// then it comes with that.
func (e *exam) ofApp(complaint string) bool {
	for _, a := range e.apps {
		if strings.HasPrefix(complaint, a.Slug+": ") {
			return true
		}
	}
	return false
}

// host tells whether the daemon is, or would be, the host's.
func (e *exam) hostMode() bool {
	if e.status.Mode != "" {
		return e.status.Mode == "host"
	}
	return e.UID == 0
}

// plain is an error in a line.
func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

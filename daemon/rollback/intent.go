package rollback

import (
	"fmt"

	"mulligan/daemon/store"
	"mulligan/systemd"
)

// startsAfter decides whether a rollback starts the app at its end, and if it does
// not, why. now is the app's state before the rollback, target the checkpoint that is
// gone to, and asked what the request says, if anything.
func startsAfter(now systemd.Status, target store.Checkpoint, asked *bool) (start bool, why string) {
	if asked != nil {
		if *asked {
			return true, ""
		}
		return false, "is left down, as requested"
	}
	const hint = "; --start starts it"
	switch now.Intent() {
	case systemd.Up:
		return true, ""
	case systemd.Stopped:
		return false, "was stopped on purpose before the rollback, and stays down" + hint
	}
	if target.Running != nil && *target.Running {
		return true, ""
	}
	return false, fmt.Sprintf("was not running, and did not run when %s was made: it stays down%s", target.ID, hint)
}

// standing words how a unit is doing, for people.
func standing(s systemd.Status) string {
	how := s.Active
	if s.Sub != "" && s.Sub != s.Active {
		how += ", " + s.Sub
	}
	if s.Result != "" && s.Result != "success" {
		how += ", " + s.Result
	}
	return how
}

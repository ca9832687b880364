package retention

import (
	"time"

	"mulligan/ipc"
)

// Sent is what the rules of a remote need to know about a checkpoint there.
type Sent struct {
	ID        ipc.CheckpointID
	CreatedAt time.Time
	Here      bool // this host has it, too
	Pinned    bool
}

// PlanRemote says which checkpoints go from a remote, given in the order in which they were sent, the last first. No clock is asked, so that a wrong one
// removes nothing. The rules:
//
//   - without keep_last and daily_days, all stay;
//   - those that this host has stay, and those that are pinned, and the newest;
//   - the keep_last newest stay;
//   - of the daily_days newest days (of UTC) of which one is there, the oldest of the day stays.
func PlanRemote(rules ipc.Remoting, list []Sent) (drop map[ipc.CheckpointID]bool) {
	drop = map[ipc.CheckpointID]bool{}
	if rules.KeepLast <= 0 && rules.DailyDays <= 0 {
		return drop
	}
	oldest := map[int64]ipc.CheckpointID{} // of each day that counts
	for _, s := range list {
		d := day(s.CreatedAt)
		if _, ok := oldest[d]; ok || len(oldest) < rules.DailyDays {
			oldest[d] = s.ID
		}
	}
	for i, s := range list {
		stays := s.Here || s.Pinned || i == 0 || i < rules.KeepLast || oldest[day(s.CreatedAt)] == s.ID
		if !stays {
			drop[s.ID] = true
		}
	}
	return drop
}

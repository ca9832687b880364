package sqlite

import "mulligan/snap/database"

// plan is the durable record of a switch, beside the target's content.
type plan struct {
	database.Plan
	BaseIdentity identity // of the live files when the base was captured
}

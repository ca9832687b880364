package logical

import (
	"unicode/utf8"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is the durable record of a switch. It is saved before anything is created on the server, so that the driver finds
// everything that a crash leaves there.
type plan struct {
	database.Plan
	TargetHash  string
	New, Old    string       // names of the new database before the exchange, and of the old live database after it
	NewOID      uint32       // 0: the target has no database
	BaseOID     uint32       // 0: there was no database
	Comment     string       // the comment of the target
	BaseComment string       // the comment of the base, for Undo
	Roles       []string     // roles that were created because the target needs them
	Clean       identity     // identity at which the live state equalled the base
	Proven      identity     // identity of the new database when it was compared and closed; zero: it may have been written to since
	Known       []uncaptured `json:",omitempty"` // tables of the live database that no checkpoint has, and that the new database may be without
	Exchanged   uint64       // id of the transaction that made the new database live; 0: unknown
}

// beside returns the name for a database of the switch beside db. It has at most 63 bytes.
func beside(db string, id snap.RestoreID, which string) string {
	suffix := "__mulligan_" + string(id) + "_" + which
	keep := max(0, min(len(db), 63-len(suffix)))
	for keep > 0 && keep < len(db) && !utf8.RuneStart(db[keep]) {
		keep--
	}
	return db[:keep] + suffix
}

// name sets the names of the switch's databases.
func (d *Driver) name(p *plan) {
	p.New, p.Old = beside(d.login.Database, p.ID, "new"), beside(d.login.Database, p.ID, "old")
}

// note returns the comment that marks a database as part of the switch.
func (d *Driver) note(p *plan) string {
	return "made by mulligan for restore " + string(p.ID) + " of " + d.cfg.App + "/" + d.cfg.Name
}

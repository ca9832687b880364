package logical

import (
	"unicode/utf8"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is the durable record of a switch. It is saved before anything is created on the server,
// so that everything a crash leaves there can be found.
type plan struct {
	database.Plan
	TargetHash  string
	New, Old    string   // names of the new database before the exchange, and of the old live one after it
	NewOID      uint32   // 0: the target has no database
	BaseOID     uint32   // 0: there was no database
	Comment     string   // the target's
	BaseComment string   // the base's, for Undo
	Roles       []string // roles created because the target needs them
	Clean       identity // the identity at which the live state was known to equal the base
	Proven      identity // the identity of the new database when it was compared with the target and closed; zero: it may have been written to in between
	Exchanged   uint64   // id of the transaction that made the new database live; 0: unknown
}

// beside returns the name of a switch's database beside db, at most 63 bytes.
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
	p.New, p.Old = beside(d.login.database, p.ID, "new"), beside(d.login.database, p.ID, "old")
}

// note returns the comment that marks a database as part of the switch.
func (d *Driver) note(p *plan) string {
	return "made by mulligan for restore " + string(p.ID) + " of " + d.cfg.App + "/" + d.cfg.Name
}

package logical

import (
	"unicode/utf8"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is what is kept of a switch. It is written before anything is made on the
// server, so that what a crash leaves there is known.
type plan struct {
	database.Plan
	TargetHash  string
	New, Old    string   // names: of the new database before the switch, of the live one after it
	NewOID      uint32   // 0: the target is that there is none
	BaseOID     uint32   // 0: there was none
	Comment     string   // the target's
	BaseComment string   // the base's, to be put back
	Roles       []string // that were made because the target needs them
	Clean       identity // in which the live state was known to be the base
	Proven      identity // of the new database when it was compared with the target and closed; zero: it may have been written to in between
	Exchanged   uint64   // id of the transaction that made the new database live; 0: not known
}

// beside is the name of a database beside db that belongs to a switch. The
// server allows 63 bytes.
func beside(db string, id snap.RestoreID, which string) string {
	suffix := "__mulligan_" + string(id) + "_" + which
	keep := max(0, min(len(db), 63-len(suffix)))
	for keep > 0 && keep < len(db) && !utf8.RuneStart(db[keep]) {
		keep--
	}
	return db[:keep] + suffix
}

// name fills in the names of the switch's databases.
func (d *Driver) name(p *plan) {
	p.New, p.Old = beside(d.login.database, p.ID, "new"), beside(d.login.database, p.ID, "old")
}

// note is the comment on a database of ours.
func (d *Driver) note(p *plan) string {
	return "made by mulligan for restore " + string(p.ID) + " of " + d.cfg.App + "/" + d.cfg.Name
}

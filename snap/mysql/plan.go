package mysql

import (
	"context"
	"fmt"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is the durable record of a switch.
type plan struct {
	database.Plan
	Loaded string // hash of the state in the side database
}

// sideMark follows the live database's name in the names of the databases that a restore creates.
const sideMark = "__mulligan_"

// A switch has up to three databases: side has the target's tables before Commit, old has the base's tables after Commit, and
// gone has the tables that were live when Undo began.
func (d *Driver) side(id snap.RestoreID) string {
	name := []byte(d.login.db + sideMark + string(id))
	for i, c := range name[len(d.login.db):] {
		if c == '-' || c >= 0x80 || c < '0' {
			name[len(d.login.db)+i] = '_'
		}
	}
	if len(name) > 58 { // the server allows names of at most 64 characters
		sum := blake3.Sum256(name)
		name = fmt.Appendf(nil, "%.30s%s%.16x", d.login.db, sideMark, sum)
	}
	return string(name)
}

func (d *Driver) old(id snap.RestoreID) string  { return d.side(id) + "_old" }
func (d *Driver) gone(id snap.RestoreID) string { return d.side(id) + "_gone" }

// errNotRemoved is the server's error number for a DROP DATABASE that dropped all tables but could not remove the database's
// folder, because it has other files.
const errNotRemoved = 1010

// dropSides drops the databases of a switch. left describes those that are empty but that the server cannot remove: a crash may
// have left files in their folders, which no statement removes.
func (d *Driver) dropSides(ctx context.Context, id snap.RestoreID) (left []string, err error) {
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.end()
	for _, db := range []string{d.side(id), d.old(id), d.gone(id)} {
		err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(db))
		if isCode(err, errNotRemoved) {
			left = append(left, fmt.Sprintf("database %s is empty, and the server cannot remove it (%v): remove the files in its folder, in the server's data folder", db, err))
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

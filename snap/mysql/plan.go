package mysql

import (
	"context"
	"fmt"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is what is kept of a switch.
type plan struct {
	database.Plan
	Loaded string // the hash of the state whose tables are in the side database
}

// sideMark is in the name of every database that a restore makes, behind the live one's.
const sideMark = "__mulligan_"

// The databases of a switch: the target's tables before Commit, the base's after
// Commit, and what was live when Undo came.
func (d *Driver) side(id snap.RestoreID) string {
	name := []byte(d.login.db + sideMark + string(id))
	for i, c := range name[len(d.login.db):] {
		if c == '-' || c >= 0x80 || c < '0' {
			name[len(d.login.db)+i] = '_'
		}
	}
	if len(name) > 58 { // a name has 64 characters at most
		sum := blake3.Sum256(name)
		name = fmt.Appendf(nil, "%.30s%s%.16x", d.login.db, sideMark, sum)
	}
	return string(name)
}

func (d *Driver) old(id snap.RestoreID) string  { return d.side(id) + "_old" }
func (d *Driver) gone(id snap.RestoreID) string { return d.side(id) + "_gone" }

// errNotRemoved is the server's number for a DROP DATABASE that dropped all tables, and
// could not remove the database's folder: there are files in it that are no table's.
const errNotRemoved = 1010

// dropSides drops the databases of a switch. left are those that are empty, and that
// the server cannot remove: a crash of it may have left files there, which no
// statement reaches.
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

package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/zeebo/blake3"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"mulligan/errs"
)

// summed is a table whose rows have a sum over their other columns.
type summed struct {
	name string
	key  []string
	cols []string // all but sum
	from int      // the version of the schema since which there is such a table, if that is later than firstSummed
}

// tables lists the tables with sums. The audit trail has a chain of hashes instead, which also shows a missing row.
var tables = []summed{
	{"apps", []string{"id"}, []string{"id", "slug", "owner_uid", "workspace", "spec", "created_at", "removed_at", "folder_uid", "by_root", "rev"}, 0},
	{"checkpoints", []string{"seq"}, []string{"seq", "id", "app_id", "pinned", "body", "created_at", "snapshots", "rev"}, 0},
	{"operations", []string{"id"}, []string{"id", "app_id", "kind", "plan", "created_at"}, 0},
	{"turns", []string{"seq"}, []string{"seq", "app_id", "id", "open", "body"}, 0},
	{"calls", []string{"seq"}, []string{"seq", "turn", "id", "body"}, 0},
	{"tokens", []string{"id"}, []string{"id", "owner_uid", "hash", "expires_at", "body"}, 0},
	{"conversations", []string{"app_id", "id"}, []string{"app_id", "id", "message_id", "turn", "set_at"}, 0},
	{"own_writes", []string{"seq"}, []string{"seq", "app_id", "start", "end", "at"}, 0},
	{"disposals", []string{"kind", "id"}, []string{"kind", "id", "app_id", "layer", "cause", "at"}, 0},
	{"remotes", []string{"app_id", "name"}, []string{"app_id", "name", "body"}, 8},
}

func init() {
	sqlite.MustRegisterDeterministicScalarFunction("rowsum", -1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		return rowSum(args), nil
	})
}

// rowSum is the sum of a row: half of the BLAKE3-256 of the table's name and the
// values, each behind a letter for its type and its length.
func rowSum(values []driver.Value) []byte {
	var b []byte
	for _, v := range values {
		var word string
		switch v := v.(type) {
		case nil:
			b = append(b, 'n')
			continue
		case int64:
			b = append(b, 'i')
			b = binary.BigEndian.AppendUint64(b, uint64(v))
			continue
		case string:
			b, word = append(b, 's'), v
		case []byte:
			b, word = append(b, 'b'), string(v)
		default:
			b, word = append(b, '?'), fmt.Sprint(v)
		}
		b = binary.BigEndian.AppendUint64(b, uint64(len(word)))
		b = append(b, word...)
	}
	sum := blake3.Sum256(b)
	return sum[:16]
}

// sum is the SQL expression for what a row's sum should be. row is "", "NEW." or "OLD.".
func (t summed) sum(row string) string {
	return fmt.Sprintf("rowsum('%s', %s%s)", t.name, row, strings.Join(quoted(t.cols), ", "+row))
}

// quoted puts names of columns into quotes: one of them is a keyword.
func quoted(cols []string) (list []string) {
	for _, c := range cols {
		list = append(list, `"`+c+`"`)
	}
	return list
}

// intact returns the SQL expression that is 1 for a row that is as it was written.
func intact(table string) string {
	for _, t := range tables {
		if t.name == table {
			return "(" + table + ".sum IS " + t.sum(table+".") + ")"
		}
	}
	panic("no sums in " + table)
}

// triggers returns the SQL that gives every row its sum, and the triggers that keep the
// sums: a row gets its sum when it is written, and a damaged row cannot be changed, because a new
// sum would hide the damage.
func (t summed) triggers() string {
	var where []string
	for _, k := range t.key {
		where = append(where, k+" = NEW."+k)
	}
	set := fmt.Sprintf("UPDATE %s SET sum = %s WHERE %s;", t.name, t.sum("NEW."), strings.Join(where, " AND "))
	of := strings.Join(quoted(t.cols), ", ")
	return fmt.Sprintf(`
		UPDATE %[1]s SET sum = %[4]s;
		CREATE TRIGGER %[1]s_made AFTER INSERT ON %[1]s BEGIN %[2]s END;
		CREATE TRIGGER %[1]s_kept BEFORE UPDATE OF %[3]s ON %[1]s WHEN OLD.sum IS NOT %[5]s
			BEGIN SELECT RAISE(ABORT, '`+damagedRow+`'); END;
		CREATE TRIGGER %[1]s_changed AFTER UPDATE OF %[3]s ON %[1]s BEGIN %[2]s END;`,
		t.name, set, of, t.sum(""), t.sum("OLD."))
}

const damagedRow = "a record is damaged"

// addSums gives all rows of the tables that have sums since a version theirs, and has triggers keep them.
func addSums(ctx context.Context, tx *sql.Tx, version int) error {
	for _, t := range tables {
		if max(t.from, firstSummed) != version {
			continue
		}
		if _, err := tx.ExecContext(ctx, t.triggers()); err != nil {
			return fmt.Errorf("sums of %s: %w", t.name, err)
		}
	}
	return nil
}

// checkSums returns errs.Corrupt if any row is not as it was written.
func (s *Store) checkSums(ctx context.Context) error {
	var bad []string
	for _, t := range tables {
		var n int
		err := s.r.QueryRowContext(ctx, "SELECT count(*) FROM "+t.name+" WHERE NOT "+intact(t.name)).Scan(&n)
		if err != nil {
			return reading(err)
		}
		if n > 0 {
			bad = append(bad, fmt.Sprintf("%d of %s", n, t.name))
		}
	}
	if len(bad) > 0 {
		return errs.New(errs.Corrupt, "", "records differ from what was written: %s", strings.Join(bad, ", "))
	}
	return nil
}

// rebuildHint tells what to do when the records turn out to be damaged while the daemon runs.
const rebuildHint = "restart mulligand: it rebuilds the records from the content stores"

// damaged is the error that a record of that name is not as it was written.
func damaged(what string) error {
	return errs.New(errs.Corrupt, "read records", "the record of %s is damaged", what).WithHint(rebuildHint)
}

// reading wraps an error of reading the records.
func reading(err error) error { return classify("read records", err) }

// classify tells damage from other trouble with the database.
func classify(op string, err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errs.Wrap(errs.Failed, op, err)
	}
	switch e.Code() & 0xff {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_FORMAT:
	case lib.SQLITE_CONSTRAINT:
		if e.Code() != lib.SQLITE_CONSTRAINT_TRIGGER {
			return errs.Wrap(errs.Failed, op, err)
		}
	case lib.SQLITE_FULL:
		return &errs.Error{Kind: errs.Failed, Op: op, Err: err, Hint: "free space on the file system of the state folder"}
	default:
		return errs.Wrap(errs.Failed, op, err)
	}
	return &errs.Error{Kind: errs.Corrupt, Op: op, Err: err, Hint: rebuildHint}
}

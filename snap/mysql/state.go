package mysql

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

const formatName = "mulligan mysql state 1\n"

// state is everything of a database that a restore brings back, in the form that is hashed.
type state struct {
	Absent    bool     `json:"absent,omitempty"` // the database does not exist; all other fields are zero
	Charset   string   `json:"charset"`
	Collation string   `json:"collation"`
	Comment   string   `json:"comment,omitempty"`
	Tables    []table  `json:"tables"`  // sorted by name
	Objects   []object `json:"objects"` // sorted by kind; triggers in the order of their actions, others by name
}

// table is a table or a sequence.
type table struct {
	Name     string   `json:"name"`
	Sequence bool     `json:"sequence,omitempty"`
	Engine   string   `json:"engine"`
	Create   string   `json:"create"`  // statement, as the server writes it
	Columns  []column `json:"columns"` // columns that are not generated
	Key      []string `json:"key"`     // columns of the primary key
	Rows     int64    `json:"rows"`
	Digest   string   `json:"digest"` // of the rows, in the order of the key or without an order
}

// column defines how a column is read and written without loss.
type column struct {
	Name string `json:"name"`
	Read string `json:"read,omitempty"` // expression with %s for the column; "" means the column itself
	Text bool   `json:"text,omitempty"` // it accepts text and not bytes
}

// object is a view, routine, trigger or event.
type object struct {
	Kind     string `json:"kind"` // as in SHOW CREATE
	Name     string `json:"name"`
	Table    string `json:"table,omitempty"`  // of a trigger
	Create   []byte `json:"create"`           // statement, as the server writes it, in the character set Client
	Broken   bool   `json:"broken,omitempty"` // the view refers to a missing object
	SQLMode  string `json:"sql_mode,omitempty"`
	TimeZone string `json:"time_zone,omitempty"`
	// The character set and the collations in force when the object was created.
	Client     string `json:"client"`
	Connection string `json:"connection"`
	Database   string `json:"database,omitempty"`
}

// hash returns the digest of the state.
func (s *state) hash() snap.Hash {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings, numbers and bytes always marshal
	}
	return blake3.Sum256(append([]byte(formatName), data...))
}

// shape returns the digest of the definitions, without the parts that change when clients write: the next numbers and the rows.
func (s *state) shape() string {
	c := *s
	c.Tables = nil
	for _, t := range s.Tables {
		t.Create = nextNumber.ReplaceAllString(t.Create, "")
		t.Rows, t.Digest = 0, ""
		c.Tables = append(c.Tables, t)
	}
	h := c.hash()
	return h.String()
}

func (s *state) table(name string) *table {
	for i := range s.Tables {
		if s.Tables[i].Name == name {
			return &s.Tables[i]
		}
	}
	return nil
}

// meta is the metadata in a snapshot's root.
type meta struct {
	Hash string `json:"hash"`
}

// stored is a snapshot in the store. The references of its node are the rows of the tables in order, each a list of lists of
// chunks.
type stored struct {
	state
	sum  snap.Hash // what reading the state gives now: an earlier version may have captured triggers with the database's name
	rows []cas.Hash
}

// load reads the node of a snapshot and checks its hash.
func (d *Driver) load(root cas.Root) (*stored, error) {
	const op = "read a snapshot"
	var m meta
	if err := json.Unmarshal(root.Meta, &m); err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	data, rows, err := d.cfg.Store.Node(root.Hash)
	if err != nil {
		return nil, database.Damaged(err)
	}
	s := &stored{rows: rows}
	if err := json.Unmarshal(data, &s.state); err != nil {
		return nil, errs.Wrap(errs.Corrupt, op, err)
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(m.Hash, "blake3:"))
	if err != nil || copy(s.sum[:], raw) != len(s.sum) || s.sum != s.hash() || len(rows) != len(s.Tables) {
		return nil, errs.New(errs.Corrupt, op, "the snapshot does not have the hash it was captured with").WithHint("use another checkpoint")
	}
	for i := range s.Objects {
		s.Objects[i].unqualify()
	}
	s.sum = s.hash()
	return s, nil
}

// chunks calls f for each chunk of a table's rows.
func (d *Driver) chunks(ctx context.Context, rows cas.Hash, f func([]byte) error) error {
	_, lists, err := d.cfg.Store.Node(rows)
	if err != nil {
		return database.Damaged(err)
	}
	for _, list := range lists {
		_, chunks, err := d.cfg.Store.Node(list)
		if err != nil {
			return database.Damaged(err)
		}
		for _, h := range chunks {
			if err := ctx.Err(); err != nil {
				return err
			}
			data, err := d.cfg.Store.Get(h)
			if err == nil {
				err = f(data)
			}
			if err != nil {
				return database.Damaged(err)
			}
		}
	}
	return nil
}

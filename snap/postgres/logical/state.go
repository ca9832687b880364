package logical

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// state is everything of a database that a restore brings back. Equal databases have equal states, wherever and whenever they
// are read. Lists are sorted by name.
type state struct {
	Absent    bool       `json:",omitempty"` // the database does not exist
	Props     props      // of the database as a whole
	Public    bool       // the schema "public" exists, as in every new database
	Plpgsql   bool       // the extension plpgsql exists, as in every new database
	Schema    string     // digest of the schema's text, in its canonical form
	Tables    []table    `json:",omitempty"`
	Sequences []sequence `json:",omitempty"`
	Objects   []object   `json:",omitempty"`
	Blobs     content    // of all large objects
}

// props are the properties of a database.
type props struct {
	Owner, Encoding, Collate, CType string
	Provider, Locale, Rules         string `json:",omitempty"`
	Tablespace, Comment             string `json:",omitempty"`
	Template                        bool   `json:",omitempty"`
	Limit                           int    // largest number of connections; -1: no limit
	Grants                          []grant
	Settings                        []setting `json:",omitempty"`
}

// grant is a privilege of one role, or of everybody if the role is "".
type grant struct {
	Role, Right string
	Grantable   bool `json:",omitempty"`
}

// setting is one setting of ALTER DATABASE … SET, for one role, or for all if the role is "".
type setting struct{ Role, Name, Value string }

// content is a digest of rows.
type content struct {
	Rows int64
	Sum  string
}

// table is a table and the digest of its rows.
type table struct {
	Schema, Name string
	Columns      []column
	Where        string `json:",omitempty"` // of an extension's table: the condition for the user's rows
	content
}

func (t table) id() string { return t.Schema + "." + t.Name }

// column is a column of a table, in terms of SQL.
type column struct {
	Name, Type string
	Generated  bool   `json:",omitempty"`
	Rest       string `json:",omitempty"` // NOT NULL, DEFAULT …
}

type sequence struct {
	Schema, Name string
	Last         int64
	Called       bool
}

// object is a large object without its content.
type object struct {
	OID            uint32
	Owner, Comment string
	Grants         []grant
}

// role is a role that owns something in the database or has a grant on it. Roles belong to the server: a restore creates only
// missing ones.
type role struct {
	Name       string
	Attributes string // "LOGIN NOSUPERUSER …", for CREATE ROLE
	Password   string `json:",omitempty"` // the password verifier, if the driver could read it
	MemberOf   []string
}

// hash returns the digest of the state.
func (s *state) hash() snap.Hash {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings, numbers and booleans always encode
	}
	return blake3.Sum256(append([]byte("mulligan postgres state 1\n"), data...))
}

// manifest is a stored state. It is the data of a node whose references are the schema's text, the archive for pg_restore, the
// rows of each table in order, and the large objects.
type manifest struct {
	State    state
	Identity identity
	Position string
	Server   int    // major version
	Tool     string // version of the pg_dump that wrote the schema
	Major    int    // major version of that pg_dump
	Roles    []role
	Notes    []string `json:",omitempty"` // contents that are not captured
	Form     int      `json:",omitempty"` // 0: State.Schema is the digest of the text as pg_dump wrote it; 1: of its canonical form

	plain         []byte // the schema's text, unless the manifest was loaded from the store
	asWritten     string // the digest of the text as pg_dump wrote it
	stamp         string // tells the schema from others of the same database, unless ""
	text, archive cas.Hash
	rows          []cas.Hash // one for each table
	blobs         cas.Hash
}

// warnings describes the contents that the snapshot lacks.
func (m *manifest) warnings() []string {
	if m.State.Absent {
		return []string{"The server has no database of this name: restoring this snapshot removes the database."}
	}
	return m.Notes
}

func (m *manifest) store(b *cas.Batch) (cas.Hash, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return cas.Hash{}, err
	}
	refs := append([]cas.Hash{m.text, m.archive, m.blobs}, m.rows...)
	return b.Node(data, refs)
}

func load(s *cas.Store, node cas.Hash) (*manifest, error) {
	data, refs, err := s.Node(node)
	if err != nil {
		return nil, database.Damaged(err)
	}
	m := &manifest{}
	if err := json.Unmarshal(data, m); err != nil || len(refs) != 3+len(m.State.Tables) {
		return nil, errs.New(errs.Corrupt, "read a snapshot", "node %v is not a manifest", node).WithHint("use another checkpoint")
	}
	m.text, m.archive, m.blobs, m.rows = refs[0], refs[1], refs[2], refs[3:]
	return m, nil
}

// digest returns a digest of a list.
func digest[T any](list T) string {
	data, err := json.Marshal(list)
	if err != nil {
		panic(err) // the types used here always encode
	}
	h := blake3.Sum256(data)
	return hex.EncodeToString(h[:])
}

// tidy removes the parts of pg_dump's text that differ between two dumps of the same database: the versions in its head, and
// the key of \restrict.
func tidy(text []byte) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	kept := lines[:0]
	for i, line := range lines {
		head, foot := i < 10, i > len(lines)-10
		if head && bytes.HasPrefix(line, []byte("-- Dumped ")) ||
			(head || foot) && (bytes.HasPrefix(line, []byte(`\restrict `)) || bytes.HasPrefix(line, []byte(`\unrestrict `))) {
			continue
		}
		kept = append(kept, line)
	}
	return bytes.Join(kept, nil)
}

func parseHash(s string) (h snap.Hash, err error) {
	raw, err := hex.DecodeString(strings.TrimPrefix(s, "blake3:"))
	if err != nil || len(raw) != len(h) {
		return h, errs.New(errs.Corrupt, "read a snapshot", "%q is not a hash", s)
	}
	return snap.Hash(raw), nil
}

// columnList returns the columns for COPY, or "" if there are none.
func (t table) columnList(q func(string) string) string {
	var names []string
	for _, c := range t.Columns {
		if !c.Generated {
			names = append(names, q(c.Name))
		}
	}
	return strings.Join(names, ", ")
}

// copyOut returns the COPY statement that reads the table's rows. copyIn returns the statement that writes them.
func (t table) copyOut(q func(string) string) string {
	name, cols := q(t.Schema)+"."+q(t.Name), t.columnList(q)
	switch {
	case t.Where != "":
		return fmt.Sprintf("COPY (SELECT %s FROM ONLY %s %s) TO STDOUT", cols, name, t.Where)
	case cols == "":
		return fmt.Sprintf("COPY %s TO STDOUT", name)
	}
	return fmt.Sprintf("COPY %s (%s) TO STDOUT", name, cols)
}

func (t table) copyIn(q func(string) string) string {
	name, cols := q(t.Schema)+"."+q(t.Name), t.columnList(q)
	if cols == "" {
		return fmt.Sprintf("COPY %s FROM STDIN", name)
	}
	return fmt.Sprintf("COPY %s (%s) FROM STDIN", name, cols)
}

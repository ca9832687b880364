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

// state is everything of a database that a restore brings back. Equal states
// are equal here, wherever and when they are stored; names are sorted.
type state struct {
	Absent    bool       `json:",omitempty"` // there is no such database
	Props     props      // of the database as a whole
	Public    bool       // there is a schema "public", which every new database begins with
	Plpgsql   bool       // likewise this extension
	Schema    string     // digest of the schema's text, in its canonical form
	Tables    []table    `json:",omitempty"`
	Sequences []sequence `json:",omitempty"`
	Objects   []object   `json:",omitempty"`
	Blobs     content    // of all large objects
}

// props are a database's own properties.
type props struct {
	Owner, Encoding, Collate, CType string
	Provider, Locale, Rules         string `json:",omitempty"`
	Tablespace, Comment             string `json:",omitempty"`
	Template                        bool   `json:",omitempty"`
	Limit                           int    // of connections; -1: none
	Grants                          []grant
	Settings                        []setting `json:",omitempty"`
}

// grant is one right of one role, "" for everybody.
type grant struct {
	Role, Right string
	Grantable   bool `json:",omitempty"`
}

// setting is one of ALTER DATABASE … SET, for one role or "" for all.
type setting struct{ Role, Name, Value string }

// content is a digest of rows.
type content struct {
	Rows int64
	Sum  string
}

// table is a table and what is in it.
type table struct {
	Schema, Name string
	Columns      []column
	Where        string `json:",omitempty"` // of an extension's table: the condition for what is the user's
	content
}

func (t table) id() string { return t.Schema + "." + t.Name }

// column is a column as a person would write it.
type column struct {
	Name, Type string
	Generated  bool   `json:",omitempty"`
	Rest       string `json:",omitempty"` // NOT NULL, DEFAULT …
}

// sequence is a sequence's value.
type sequence struct {
	Schema, Name string
	Last         int64
	Called       bool
}

// object is a large object but for its content.
type object struct {
	OID            uint32
	Owner, Comment string
	Grants         []grant
}

// role is a role that something in the database belongs to or is granted to. It
// is the server's, not the database's: a restore makes it only where it is missing.
type role struct {
	Name       string
	Attributes string // "LOGIN NOSUPERUSER …", for CREATE ROLE
	Password   string `json:",omitempty"` // the verifier, where it could be read
	MemberOf   []string
}

// hash proves the state.
func (s *state) hash() snap.Hash {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings, numbers and truths always can be encoded
	}
	return blake3.Sum256(append([]byte("mulligan postgres state 1\n"), data...))
}

// manifest is a stored state: it is the data of a node, whose references are
// the schema's text, the archive to restore it from, the rows of each table in
// order, and those of the large objects.
type manifest struct {
	State    state
	Identity identity
	Position string
	Server   int    // major version
	Tool     string // version of the pg_dump that wrote the schema
	Major    int    // of that pg_dump
	Roles    []role
	Notes    []string `json:",omitempty"` // what is not captured
	Form     int      `json:",omitempty"` // 0: State.Schema is the digest of the text as it was written; 1: of its canonical form

	plain         []byte // the schema's text, where it was just read
	asWritten     string // its digest as it was written
	text, archive cas.Hash
	rows          []cas.Hash // one for each table
	blobs         cas.Hash
}

// warnings say what the snapshot lacks.
func (m *manifest) warnings() []string {
	if m.State.Absent {
		return []string{"The server has no database of this name: restoring this snapshot takes the database away."}
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
		return nil, errs.New(errs.Corrupt, "read a snapshot", "the manifest %v is not one", node).WithHint("use another checkpoint")
	}
	m.text, m.archive, m.blobs, m.rows = refs[0], refs[1], refs[2], refs[3:]
	return m, nil
}

// digest is a digest of a list.
func digest[T any](list T) string {
	data, err := json.Marshal(list)
	if err != nil {
		panic(err) // the types here can be encoded
	}
	h := blake3.Sum256(data)
	return hex.EncodeToString(h[:])
}

// tidy takes out of pg_dump's text what differs between two dumps of the same:
// the versions at its head, and the key of \restrict.
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

// columnList is the columns for COPY, or "" for a table that has none.
func (t table) columnList(q func(string) string) string {
	var names []string
	for _, c := range t.Columns {
		if !c.Generated {
			names = append(names, q(c.Name))
		}
	}
	return strings.Join(names, ", ")
}

// copyOut is the statement that reads the table's rows, copyIn the one that writes them.
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

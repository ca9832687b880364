package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// side is one of the two compared states.
type side struct {
	state   state
	raw     *rawState // set if the state was kept as raw bytes
	chunks  []cas.Hash
	objects []object
	known   bool // the objects were read
}

// Diff describes in SQL how the tables changed, with numbers of rows. paths are names of tables. If
// the tables cannot be read, or none differs, Diff reports how much of the file differs.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare database snapshots"
	var sides [2]side
	err := d.Do(ctx, op, func() (err error) {
		if sides[0], err = d.side(ctx, from); err == nil {
			sides[1], err = d.side(ctx, to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	list := d.compare(sides[0], sides[1])
	if len(list) == 1 && list[0].Operation == snap.Modify && sides[0].known && sides[1].known {
		if tables := database.Compare(comparable(sides[0].objects), comparable(sides[1].objects), "ALTER COLUMN"); len(tables) > 0 {
			list = tables
		}
	}
	return slices.DeleteFunc(list, func(c snap.Change) bool { return len(paths) > 0 && !slices.Contains(paths, c.Path) }), nil
}

func (d *Driver) side(ctx context.Context, id snap.SnapshotID) (s side, err error) {
	if id != "" {
		root, err := d.records.Snapshot("", id)
		if err != nil {
			return s, err
		}
		if s, err = d.storedSide(root); err == nil && s.raw == nil {
			err = s.readObjects(ctx, s.stored(d.cfg.Store))
		}
		return s, err
	}
	err = d.withLive(ctx, false, func(l *live) (err error) {
		if s.state, s.chunks, err = l.readState(ctx); err == nil {
			err = s.readObjects(ctx, l.readAt)
		}
		return l.orMoved(err)
	})
	return s, err
}

func (s side) hash() snap.Hash { return record{State: s.state, Raw: s.raw}.hash() }

// readObjects reads the schema and rows of the side, if they can be read.
func (s *side) readObjects(ctx context.Context, read func([]byte, int64) (int, error)) (err error) {
	s.objects, err = readObjects(ctx, s.state.Size, read)
	s.known = err == nil
	if errors.Is(err, errBTree) {
		return nil
	}
	return err
}

// stored returns a reader of the content of a stored side.
func (s *side) stored(store *cas.Store) func([]byte, int64) (int, error) {
	return func(buf []byte, off int64) (int, error) {
		i := int(off / chunkSize)
		if off%chunkSize != 0 || i >= len(s.chunks) {
			return 0, errBTree
		}
		data, err := store.Get(s.chunks[i])
		return copy(buf, data), database.Damaged(err)
	}
}

func (d *Driver) storedSide(root cas.Root) (side, error) {
	s, err := load(d.cfg.Store, root.Hash)
	if err != nil {
		return side{}, database.Damaged(err)
	}
	chunks, err := s.chunks()
	return side{state: s.State, raw: s.Raw, chunks: chunks}, err
}

func (d *Driver) diffRoots(from, to cas.Root) ([]snap.Change, error) {
	a, err := d.storedSide(from)
	if err != nil {
		return nil, err
	}
	b, err := d.storedSide(to)
	if err != nil {
		return nil, err
	}
	return d.compare(a, b), nil
}

// compare describes the changes from a to b.
func (d *Driver) compare(a, b side) []snap.Change {
	c := snap.Change{Path: d.cfg.Name, Operation: snap.Modify}
	switch {
	case a.hash() == b.hash():
		return nil
	case a.raw != nil && b.raw != nil:
		c.Summary = b.raw.summary() + ", was " + a.raw.summary()
	case b.raw != nil:
		c.Summary = "the database can no longer be read: " + b.raw.summary()
	case a.raw != nil:
		c.Summary = "the database could not be read before: " + a.raw.summary()
	case a.state.Absent:
		c.Operation, c.Summary = snap.Create, size(b.state.Size)
	case b.state.Absent:
		c.Operation, c.Summary = snap.Delete, size(a.state.Size)
	default:
		c.Summary = strings.Join(a.differences(b), ", ")
	}
	return []snap.Change{c}
}

func (a side) differences(b side) (list []string) {
	changed := max(len(a.chunks), len(b.chunks))
	for i := range min(len(a.chunks), len(b.chunks)) {
		if a.chunks[i] == b.chunks[i] {
			changed--
		}
	}
	if changed > 0 {
		list = append(list, fmt.Sprintf("about %s of %s", size(min(int64(changed)*chunkSize, max(a.state.Size, b.state.Size))), size(b.state.Size)))
	}
	switch n := b.state.Size - a.state.Size; {
	case n > 0:
		list = append(list, size(n)+" larger")
	case n < 0:
		list = append(list, size(-n)+" smaller")
	}
	if a.state.Mode != b.state.Mode {
		list = append(list, "mode")
	}
	if a.state.UID != b.state.UID || a.state.GID != b.state.GID {
		list = append(list, "owner")
	}
	if !maps.EqualFunc(a.state.Xattrs, b.state.Xattrs, func(x, y []byte) bool { return slices.Equal(x, y) }) {
		list = append(list, "attributes")
	}
	return list
}

// size returns a number of bytes for people.
func size(n int64) string { return humanize.IBytes(uint64(n)) }

// comparable converts the objects of a schema for database.Compare, without SQLite's own.
func comparable(objects []object) (list []database.Object) {
	for _, o := range objects {
		if strings.HasPrefix(o.name, "sqlite_") {
			continue
		}
		c := database.Object{Path: o.name, Kind: strings.ToUpper(o.kind), Name: ident(o.name), Create: o.sql}
		if o.kind == "table" {
			c.Table = tableOf(o.sql)
			c.Rows = database.Rows{N: o.rows, Sum: string(o.sum[:])}
		}
		list = append(list, c)
	}
	return list
}

// ident quotes a name if SQL needs it.
func ident(name string) string {
	for i, c := range name {
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9') {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	return name
}

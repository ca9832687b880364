package redis

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/extsort"
)

// side is one of the two compared states: a stored one or the live one.
type side struct {
	root cas.Root
	live bool
	last *int64 // if not nil, a stored side's highest number of a database is written to it
}

func storedSide(root cas.Root) side { return side{root: root} }

// Diff counts the keys that differ, by type and by prefix, which is the part of their names up to the first colon. paths are
// prefixes, or databases (db0) with or without a prefix after a slash.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) (list []snap.Change, err error) {
	const op = "compare redis snapshots"
	var sides [2]side
	for i, id := range []snap.SnapshotID{from, to} {
		if id == "" {
			sides[i].live = true
			continue
		}
		root, err := d.records.Snapshot(op, id)
		if err != nil {
			return nil, err
		}
		sides[i].root = root
	}
	err = d.Do(ctx, op, func() error {
		list, err = d.diff(ctx, sides[0], sides[1], paths)
		return err
	})
	return list, err
}

// each calls f for every key of a side.
func (d *Driver) each(ctx context.Context, s side, f func(item) error) error {
	if !s.live {
		found, err := d.scanStored(ctx, s.root, f)
		if err == nil && s.last != nil {
			*s.last = found.last
		}
		found.close()
		return err
	}
	found, err := d.read(ctx, io.Discard, f)
	if err == nil {
		found.scanned.close()
	}
	return err
}

// tally counts keys by their type.
type tally map[string]int

// counts are the changes of the keys with one prefix.
type counts struct {
	added, removed, changed tally
	kept                    int
}

// known is the record of a key: its digest, the type of its value, and its group.
type known struct {
	sum  [32]byte
	kind string
	path string
}

// record encodes k as the value of a Sorter's record.
func (k known) record() []byte {
	return append(append(append(append([]byte(nil), k.sum[:]...), byte(len(k.kind))), k.kind...), k.path...)
}

func knownOf(record []byte) (k known) {
	n := 33 + int(record[32])
	return known{sum: [32]byte(record[:32]), kind: string(record[33:n]), path: string(record[n:])}
}

// keys returns the keys of a side, sorted by a digest of their names.
func (d *Driver) keys(ctx context.Context, s side) (*extsort.Sorter, error) {
	sorted := extsort.New(d.cfg.StateDir)
	err := d.each(ctx, s, func(i item) error {
		name := blake3.Sum256(append(binary.LittleEndian.AppendUint64(nil, uint64(i.db)), i.key...))
		return sorted.Add(name[:], known{i.sum, i.kind, pathOf(i.db, i.key)}.record())
	})
	if err != nil {
		sorted.Close()
		return nil, err
	}
	return sorted, nil
}

// diff compares the keys of both sides.
func (d *Driver) diff(ctx context.Context, from, to side, paths []string) ([]snap.Change, error) {
	a, err := d.keys(ctx, from)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := d.keys(ctx, to)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	found := groups{}
	if err := join(a, b, found.count); err != nil {
		return nil, err
	}
	return changes(found, paths), nil
}

// join calls f with the records of every key of either side; nil stands for a missing key.
func join(a, b *extsort.Sorter, f func(old, now []byte)) error {
	x, err := cursorOf(a)
	if err != nil {
		return err
	}
	y, err := cursorOf(b)
	if err != nil {
		return err
	}
	for !x.end || !y.end {
		order := bytes.Compare(x.key, y.key)
		switch {
		case y.end || !x.end && order < 0:
			f(x.value, nil)
			err = x.next()
		case x.end || order > 0:
			f(nil, y.value)
			err = y.next()
		default:
			f(x.value, y.value)
			err = errors.Join(x.next(), y.next())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cursor is the position of join in one side.
type cursor struct {
	*extsort.Cursor
	key, value []byte
	end        bool
}

func cursorOf(s *extsort.Sorter) (*cursor, error) {
	in, err := s.Cursor()
	if err != nil {
		return nil, err
	}
	c := &cursor{Cursor: in}
	return c, c.next()
}

func (c *cursor) next() (err error) {
	c.key, c.value, err = c.Next()
	if c.end = errors.Is(err, io.EOF); c.end {
		return nil
	}
	return err
}

// groups maps the names of groups of keys to their counts.
type groups map[string]*counts

// count counts a key, given its records in the two sides; nil stands for a missing key.
func (g groups) count(old, now []byte) {
	var was, is known
	if old != nil {
		was = knownOf(old)
	}
	if now != nil {
		is = knownOf(now)
	}
	c := g.at(cmp.Or(is.path, was.path))
	switch {
	case old == nil:
		c.added[is.kind]++
	case now == nil:
		c.removed[was.kind]++
	case was.sum != is.sum:
		c.changed[is.kind]++
	default:
		c.kept++
	}
}

// at returns the counts of a group. Groups beyond maxGroups are counted together.
func (g groups) at(path string) *counts {
	if g[path] == nil && len(g) >= maxGroups {
		path, _, _ = strings.Cut(path, "/")
		path += "/" + others
	}
	if g[path] == nil {
		g[path] = &counts{added: tally{}, removed: tally{}, changed: tally{}}
	}
	return g[path]
}

const (
	others    = "(others)"
	maxGroups = 10_000
	maxPrefix = 256 // bytes of a group's name
)

// pathOf returns the group of a key, such as db0/session for session:12. A library of functions is a group of its own.
func pathOf(db int64, key []byte) string {
	if db < 0 {
		return "functions/" + string(key)
	}
	prefix, _, _ := bytes.Cut(key, []byte(":"))
	if len(prefix) == len(key) && len(key) > 24 || len(prefix) > maxPrefix || bytes.IndexByte(prefix, 0) >= 0 {
		prefix = []byte(others)
	}
	return "db" + strconv.FormatInt(db, 10) + "/" + string(prefix)
}

func changes(found map[string]*counts, paths []string) (list []snap.Change) {
	for _, name := range slices.Sorted(maps.Keys(found)) {
		c := found[name]
		added, removed, changed := c.added.sum(), c.removed.sum(), c.changed.sum()
		if added+removed+changed == 0 || !asked(name, paths) {
			continue
		}
		op := snap.Modify
		switch {
		case removed+changed+c.kept == 0:
			op = snap.Create
		case added+changed+c.kept == 0:
			op = snap.Delete
		}
		list = append(list, snap.Change{Path: name, Operation: op, Summary: c.String()})
	}
	return list
}

func (c *counts) String() string {
	var parts []string
	for _, p := range []struct {
		n    tally
		what string
	}{{c.added, "added"}, {c.removed, "removed"}, {c.changed, "changed"}} {
		if p.n.sum() > 0 {
			parts = append(parts, p.n.String()+" "+p.what)
		}
	}
	return strings.Join(parts, ", ")
}

func (t tally) sum() (n int) {
	for _, c := range t {
		n += c
	}
	return n
}

// String returns text such as "1 hash, 2 strings".
func (t tally) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(t)) {
		word := cmp.Or(kind, "library")
		if t[kind] != 1 {
			word = map[string]string{"library": "libraries", "hash": "hashes"}[word]
			word = cmp.Or(word, kind+"s")
		}
		parts = append(parts, fmt.Sprintf("%d %s", t[kind], word))
	}
	return strings.Join(parts, ", ")
}

func asked(name string, paths []string) bool {
	_, prefix, _ := strings.Cut(name, "/")
	return len(paths) == 0 || slices.ContainsFunc(paths, func(p string) bool {
		return p == name || p == prefix || strings.HasPrefix(name, p+"/")
	})
}

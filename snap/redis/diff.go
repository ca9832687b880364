package redis

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mulligan/snap"
	"mulligan/snap/cas"
)

// side is one of two states that are compared: a stored one, or the live one.
type side struct {
	root cas.Root
	live bool
}

func storedSide(root cas.Root) side { return side{root: root} }

// Diff counts the keys that differ, by type and by prefix: the part of their names
// up to the first colon. paths are prefixes, or a database (db0) and a prefix below it.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare redis snapshots"
	d.mu.Lock()
	defer d.mu.Unlock()
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
	list, err := d.diff(ctx, sides[0], sides[1], paths)
	return list, d.classify(op, err)
}

// each calls f for every key of a side.
func (d *Driver) each(ctx context.Context, s side, f func(item)) error {
	if !s.live {
		_, err := d.scanStored(ctx, s.root, f)
		return err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := scan(r, f)
		done <- err
		_, _ = io.Copy(io.Discard, r) // what is behind an error
	}()
	_, err := d.read(ctx, w)
	_ = w.CloseWithError(cmp.Or(err, io.EOF)) // never fails
	if e := <-done; err == nil {
		err = e
	}
	return err
}

// where is a key's name among all databases.
type where struct {
	db  int64
	key string
}

// tally counts keys by their type.
type tally map[string]int

// counts is what happened to the keys of a prefix.
type counts struct {
	added, removed, changed tally
	kept                    int
}

// before is what is remembered of a key of the first side.
type before struct {
	sum  [32]byte
	kind string
}

// diff keeps the digests of all keys of one side in memory.
func (d *Driver) diff(ctx context.Context, from, to side, paths []string) ([]snap.Change, error) {
	old := map[where]before{}
	if err := d.each(ctx, from, func(i item) { old[where{i.db, string(i.key)}] = before{i.sum, i.kind} }); err != nil {
		return nil, err
	}
	found := map[string]*counts{}
	at := func(db int64, key []byte) *counts {
		name := pathOf(db, key)
		if found[name] == nil {
			found[name] = &counts{added: tally{}, removed: tally{}, changed: tally{}}
		}
		return found[name]
	}
	err := d.each(ctx, to, func(i item) {
		w := where{i.db, string(i.key)}
		was, there := old[w]
		delete(old, w)
		switch c := at(i.db, i.key); {
		case !there:
			c.added[i.kind]++
		case was.sum != i.sum:
			c.changed[i.kind]++
		default:
			c.kept++
		}
	})
	if err != nil {
		return nil, err
	}
	for w, was := range old {
		at(w.db, []byte(w.key)).removed[was.kind]++
	}
	return changes(found, paths), nil
}

// pathOf names the group of a key: db0/session for session:12.
func pathOf(db int64, key []byte) string {
	if db < 0 {
		return "functions"
	}
	prefix, _, _ := bytes.Cut(key, []byte(":"))
	if len(prefix) == len(key) && len(key) > 24 || bytes.IndexByte(prefix, 0) >= 0 {
		prefix = []byte("(others)")
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

// String is "1 hash, 2 strings".
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

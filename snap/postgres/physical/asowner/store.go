package asowner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
)

// Claim names a store and the app that claims it.
type Claim struct {
	Store string
	Mine  string // the content of the claim file
}

// TakeClaim makes the store, unless it exists, and claims it for an app. made reports whether the store is new. The error is of
// kind errs.Conflict if another app has claimed the store.
var TakeClaim = privsep.Define("physical.claim", func(_ context.Context, c Claim) (made bool, err error) {
	err = os.Mkdir(c.Store, 0o700)
	made = err == nil
	if errors.Is(err, fs.ErrPermission) {
		return false, unwritable(filepath.Dir(c.Store))
	}
	if !made && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	for _, dir := range []string{"archive", "bases", "forks"} {
		if err := os.MkdirAll(filepath.Join(c.Store, dir), 0o700); err != nil {
			return made, err
		}
	}
	file := filepath.Join(c.Store, "claim")
	switch data, err := readBounded(file, maxClaim, unix.O_NOFOLLOW); {
	case errors.Is(err, fs.ErrNotExist):
		if err := durable.WriteFile(file, []byte(c.Mine), 0o600); err != nil {
			return made, err
		}
		return made, durable.Sync(filepath.Dir(c.Store))
	case err != nil:
		return made, err
	case string(data) != c.Mine:
		return made, errs.New(errs.Conflict, "", "the cluster already belongs to %s", strings.TrimSpace(string(data))).
			WithHint("in physical mode a cluster belongs to one app alone; use mode = logical for the other")
	}
	return made, nil
})

// maxClaim is the largest size in bytes of a claim file.
const maxClaim = 4 << 10

// Clones reports whether the file system of a folder can share extents between files.
var Clones = privsep.Define("physical.clones", func(_ context.Context, store string) (bool, error) {
	in, err := os.CreateTemp(store, "probe-")
	if err != nil {
		return false, err
	}
	defer os.Remove(in.Name()) // if this fails, the next Sweep does it
	defer in.Close()
	if _, err := in.WriteString("probe"); err != nil {
		return false, err
	}
	out, err := os.CreateTemp(store, "probe-")
	if err != nil {
		return false, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	return unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil, nil
})

// SpaceQuery asks for the space that a copy of a folder takes, and for the free space.
type SpaceQuery struct {
	Store string
	Dir   string // "" if the copy takes no space
}

// space has sizes in bytes.
type space struct{ Free, Taken int64 }

// Space returns the free bytes on the store's file system, and the bytes that Dir takes.
var Space = privsep.Define("physical.space", func(_ context.Context, q SpaceQuery) (s space, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(q.Store, &st); err != nil {
		return s, &os.PathError{Op: "statfs", Path: q.Store, Err: err}
	}
	s.Free = int64(st.Bavail) * st.Bsize
	if q.Dir != "" {
		s.Taken, err = occupied(q.Dir)
	}
	return s, err
})

// Measurement names the parts of a store to be removed.
type Measurement struct {
	Home   Home
	Gone   []string // files and folders of the store
	Shared bool     // files share extents
}

// Measure returns the number of bytes that become free without Gone.
var Measure = privsep.Define("physical.measure", func(_ context.Context, m Measurement) (total int64, err error) {
	if !m.Shared {
		for _, p := range m.Gone {
			n, err := occupied(p)
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	}
	stay := []string{m.Home.Data}
	for _, dir := range []string{"bases", "forks", "archive", "raws", "served"} {
		dir = filepath.Join(m.Home.Store, dir)
		list, err := names(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		for _, name := range list {
			if p := filepath.Join(dir, name); !slices.Contains(m.Gone, p) {
				stay = append(stay, p)
			}
		}
	}
	return freedBy(m.Gone, stay)
})

// Sweeping names the parts of a store to be kept.
type Sweeping struct {
	Store string
	Known []string // folders of base backups, forks and raw snapshots, relative to Store
}

// leftovers are the files and folders of the store that Sweep may remove, by folder and by prefix of the name.
var leftovers = []struct{ dir, prefix string }{{"bases", ""}, {"forks", ""}, {"raws", ""}, {".", "log-"}, {".", "probe-"}, {"archive", ".copy."}, {"sock", ".s.PGSQL."}}

// Sweep removes the leftovers that are not in Known.
var Sweep = privsep.Define("physical.sweep", func(_ context.Context, s Sweeping) (none, error) {
	for _, l := range leftovers {
		list, err := names(filepath.Join(s.Store, l.dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return none{}, err
		}
		for _, name := range list {
			rel := filepath.Join(l.dir, name)
			if !strings.HasPrefix(name, l.prefix) || slices.Contains(s.Known, rel) {
				continue
			}
			if err := removeAll(filepath.Join(s.Store, rel)); err != nil {
				return none{}, err
			}
		}
	}
	return none{}, nil
})

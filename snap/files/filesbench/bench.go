package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"mulligan/snap"
)

// bench measures one site.
type bench struct {
	*site
	tree  *tree
	table *table
	runs  int
	rows  string // keys of the rows to measure; "": all
}

// wants reports whether the row with the key is to be measured.
func (b *bench) wants(key string) bool { return b.rows == "" || strings.Contains(b.rows, key) }

// timed returns the duration of f.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

func median(times []time.Duration) time.Duration { return quantile(times, 0.5) }

// quantile returns the quantile q of times, or 0 if there are none. It sorts times.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[int(q*float64(len(times)))]
}

// rounds measures git, git with core.fsync=all and mulligan in turn, b.runs times. Before each measurement, it waits until
// neither side has work left, calls ready, syncs the disk, and calls change. Nothing waits between change and the measurement,
// so the journal has not read the changes yet.
func (b *bench) rounds(ctx context.Context, name, key string, least float64, ready, change func() error, git func(options ...string) error, ours func() error) error {
	if !b.wants(key) {
		return nil
	}
	var plain, synced, mine []time.Duration
	for range b.runs {
		for _, side := range []struct {
			name  string
			times *[]time.Duration
			do    func() error
		}{
			{"git", &plain, func() error { return git() }},
			{"git with fsync", &synced, func() error { return git(fsyncAll...) }},
			{"mulligan", &mine, ours},
		} {
			if err := errors.Join(b.git.checkpoint(ctx), b.awaitIdle(ctx), ready()); err != nil {
				return err
			}
			syscall.Sync() // so that no side waits for the writes of another
			if err := change(); err != nil {
				return err
			}
			took, err := timed(side.do)
			if err == nil {
				err = b.tree.whole()
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, side.name, err)
			}
			*side.times = append(*side.times, took)
		}
	}
	b.table.add(row{key: key, name: name, git: ms(median(plain)), synced: ms(median(synced)), ours: ms(median(mine)), least: least})
	return nil
}

// first measures the first capture of a tree, and its size on disk. It leaves out git with core.fsync=all, which takes minutes
// to sync each of 100,000 objects.
func (b *bench) first(ctx context.Context) error {
	runs := 1
	if b.wants("f") {
		runs = min(b.runs, max(1, 50_000/b.table.files))
	}
	var plain, mine []time.Duration
	for range runs {
		if err := b.git.init(ctx); err != nil {
			return err
		}
		syscall.Sync()
		took, err := timed(func() error { return b.git.checkpoint(ctx) })
		if err != nil {
			return err
		}
		plain = append(plain, took)
		if err := errors.Join(b.close(), b.open(true)); err != nil {
			return err
		}
		syscall.Sync()
		took, err = timed(func() error {
			_, err := b.captureWalking(ctx)
			return err
		})
		if err != nil {
			return err
		}
		mine = append(mine, took)
	}
	if !b.wants("f") {
		return nil
	}
	b.table.add(row{key: "f", name: "first capture", git: ms(median(plain)), ours: ms(median(mine)), least: 8})
	git, err := disk(b.git.dir)
	ours, err2 := disk(b.storeDir())
	b.table.add(row{key: "g", name: "on disk after it", unit: "MB", git: float64(git) / 1e6, ours: float64(ours) / 1e6, least: 1 / 0.6})
	return errors.Join(err, err2)
}

// start starts the journal and measures the time until it is current.
func (b *bench) start(ctx context.Context) error {
	took, err := timed(func() error { return b.follow(ctx) })
	b.table.add(row{name: "until the journal is current", ours: ms(took)})
	return err
}

func nothing() error { return nil }

// unchanged measures the automatic checkpoint at a turn's first write.
func (b *bench) unchanged(ctx context.Context) error {
	return b.rounds(ctx, "checkpoint, nothing changed (a turn's first write)", "a", 300, nothing, nothing,
		func(options ...string) error { return b.git.checkpoint(ctx, options...) },
		func() error {
			_, err := b.checkpoint(ctx)
			return err
		})
}

func (b *bench) barrier(ctx context.Context) error {
	if b.journal == nil || !b.wants("k") {
		return nil
	}
	var times []time.Duration
	for range 200 {
		took, err := timed(func() error { return b.awaitIdle(ctx) })
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	b.table.add(row{key: "k", name: "barrier, nothing changed", ours: ms(median(times)), most: 3})
	return nil
}

func (b *bench) edits(ctx context.Context) error {
	for _, c := range []struct {
		n     int
		key   string
		least float64
	}{{10, "b", 40}, {1000, "c", 0}} {
		if c.n > len(b.tree.files)/2 {
			continue
		}
		err := b.rounds(ctx, fmt.Sprintf("durable checkpoint, %d files just changed", c.n), c.key, c.least,
			nothing, func() error { return b.tree.edit(c.n) },
			func(options ...string) error { return b.git.checkpoint(ctx, options...) },
			func() error {
				_, err := b.checkpoint(ctx)
				return err
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) restores(ctx context.Context) error {
	for _, c := range []struct {
		n     int
		key   string
		least float64
	}{{10, "d", 40}, {1000, "e", 4}} {
		if c.n > len(b.tree.files)/2 {
			continue
		}
		var commit string
		var target, base snap.SnapshotID
		ready := func() (err error) {
			if commit, err = b.git.head(ctx); err != nil {
				return err
			}
			if target, err = b.checkpoint(ctx); err == nil {
				err = b.tree.edit(c.n)
			}
			if err == nil { // both sides store the present state before they restore
				err = b.git.checkpoint(ctx)
			}
			if err == nil {
				base, err = b.checkpoint(ctx)
			}
			return err
		}
		err := b.rounds(ctx, fmt.Sprintf("restore of %d files (ours: verified)", c.n), c.key, c.least, ready, nothing,
			func(options ...string) error { return b.git.restore(ctx, commit, options...) },
			func() error { return b.restore(ctx, target, base) })
		if err != nil {
			return err
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// measureOthers measures two special cases: one large file, and a small tree of which git ignores the largest part.
func measureOthers(ctx context.Context, dir string, from sources, runs int, rows string) (*table, error) {
	t := &table{title: "special cases"}
	want := (&bench{rows: rows}).wants
	var err error
	if want("h") {
		err = large(ctx, filepath.Join(dir, "large"), t)
	}
	if err == nil && want("j") {
		err = ignoring(ctx, filepath.Join(dir, "ignoring"), from, t, runs)
	}
	return t, err
}

// large measures a checkpoint after 4 KB of a file of 512 MB have changed.
func large(ctx context.Context, dir string, t *table) error {
	const size = 512 << 20
	s, err := newSite(dir)
	if err != nil {
		return err
	}
	b := &bench{site: s, tree: &tree{dir: s.tree}, table: t, runs: 1}
	change := func(at int64) error {
		f, err := os.OpenFile(filepath.Join(s.tree, "image"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 4096), at)
		return errors.Join(err, f.Close())
	}
	err = errors.Join(b.tree.random("image", size), s.git.init(ctx), s.git.checkpoint(ctx), s.open(true))
	if err == nil {
		_, err = s.captureWalking(ctx)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(s.follow(ctx), change(100<<20)); err != nil {
		return err
	}
	r := row{key: "h", name: "512 MB file, 4 KB changed", least: 40}
	d := row{key: "h", name: "added on disk by it", unit: "MB", most: 2}
	r.ours, d.ours, err = grown(s.storeDir(), func() error {
		_, err := s.checkpoint(ctx)
		return err
	})
	if err != nil {
		return err
	}
	r.git, d.git, err = grown(s.git.dir, func() error { return s.git.checkpoint(ctx) })
	t.add(r)
	t.add(d)
	return errors.Join(err, s.close())
}

// grown returns the duration of f in ms, and the number of MB by which f makes dir grow.
func grown(dir string, f func() error) (took, megabytes float64, err error) {
	before, err := disk(dir)
	if err != nil {
		return 0, 0, err
	}
	syscall.Sync()
	t, err := timed(f)
	after, err2 := disk(dir)
	return ms(t), float64(after-before) / 1e6, errors.Join(err, err2)
}

// ignoring measures the best case for git: 300 files, and a node_modules that git ignores. mulligan captures all of it.
func ignoring(ctx context.Context, dir string, from sources, t *table, runs int) error {
	s, err := newSite(dir)
	if err != nil {
		return err
	}
	s.git.all = false
	b := &bench{site: s, table: t, runs: runs}
	if b.tree, err = plant(ctx, s.tree, from, 300); err != nil {
		return err
	}
	if from.modules != "" {
		skipped := &tree{dir: filepath.Join(s.tree, "node_modules")}
		if err := skipped.graft(ctx, from.modules, "", 0, 1<<30); err != nil {
			return err
		}
	}
	err = errors.Join(os.WriteFile(filepath.Join(s.tree, ".gitignore"), []byte("node_modules\n"), 0o644), s.git.init(ctx), s.git.checkpoint(ctx), s.open(true))
	if err == nil {
		_, err = s.captureWalking(ctx)
	}
	if err == nil {
		err = s.follow(ctx)
	}
	if err == nil {
		err = b.rounds(ctx, "300 files and an ignored node_modules, 10 changed", "j", 0, nothing, func() error { return b.tree.edit(10) },
			func(options ...string) error { return s.git.checkpoint(ctx, options...) },
			func() error {
				_, err := s.checkpoint(ctx)
				return err
			})
	}
	return errors.Join(err, s.close())
}

func occupied(path string) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit/benchtable"
)

// bench measures one site.
type bench struct {
	*site
	tree   *tree
	table  *table
	runs   int
	rows   string  // keys of the rows to measure; "": all
	restic *restic // which has a checkpoint of the tree, if rows need one
}

// wants reports whether a row with one of the keys is to be measured.
func (b *bench) wants(keys string) bool { return b.rows == "" || strings.ContainsAny(b.rows, keys) }

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

// side is one of those that do the same work.
type side struct {
	name string
	do   func() error
	once bool // it takes so long that it is measured once
}

// gits are git with its defaults, and with core.fsync=all.
func gits(do func(options ...string) error) []side {
	return []side{{name: "git", do: func() error { return do() }}, {name: "git fsync=all", do: func() error { return do(fsyncAll...) }}}
}

// work is what is measured for one row.
type work struct {
	key, what     string
	times, below  float64 // the goals, see [benchtable.Row]
	ready, change func() error
	mulligan      func() error
	others        []side
	runs          int // 0: as many as for most rows
}

// rounds measures the others and mulligan in turn. Before each measurement, it waits until neither git nor mulligan has work left, calls ready, syncs the
// disk, and calls change. Nothing waits between change and the measurement, so the journal has not read the changes yet.
func (b *bench) rounds(ctx context.Context, w work) error {
	if !b.wants(w.key) {
		return nil
	}
	took := map[string][]time.Duration{}
	sides := append(slices.Clone(w.others), side{name: "mulligan", do: w.mulligan})
	if w.runs == 0 {
		w.runs = b.runs
	}
	for i := range w.runs {
		for _, s := range sides {
			if s.once && i > 0 {
				continue
			}
			if err := errors.Join(b.git.checkpoint(ctx), b.awaitIdle(ctx), call(w.ready)); err != nil {
				return err
			}
			syscall.Sync() // so that no side waits for the writes of another
			if err := call(w.change); err != nil {
				return err
			}
			t, err := timed(s.do)
			if err == nil {
				err = b.tree.whole()
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.what, s.name, err)
			}
			took[s.name] = append(took[s.name], t)
		}
	}
	r := benchtable.Row{What: w.what, Mulligan: ms(median(took["mulligan"])), Times: w.times, Below: w.below}
	for _, s := range w.others {
		r.Others = append(r.Others, benchtable.Other{Name: s.name, Value: ms(median(took[s.name]))})
	}
	return b.table.add(w.key, r)
}

// call calls f, unless it is nil.
func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

// first measures the first capture of a tree, and its size on disk. It leaves out git with core.fsync=all, which takes minutes
// to sync each of 100,000 objects.
func (b *bench) first(ctx context.Context) (err error) {
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
	if !b.wants("fgmn") {
		return nil
	}
	if b.restic, err = newRestic(ctx, filepath.Join(b.dir, "restic"), b.tree.dir); err != nil {
		return err
	}
	syscall.Sync()
	theirs, err := timed(func() error { return b.restic.checkpoint(ctx, "first") })
	if err != nil || !b.wants("fg") {
		return err
	}
	const what = "first capture"
	return errors.Join(
		b.table.add("f", benchtable.Row{What: what, Mulligan: ms(median(mine)), Others: []benchtable.Other{{Name: "git", Value: ms(median(plain))}}, Times: 8}),
		b.table.add("f", benchtable.Row{What: what + ", beside restic", Mulligan: ms(median(mine)), Others: []benchtable.Other{{Name: "restic", Value: ms(theirs)}}}),
		b.sizes(ctx))
}

// sizes measures what the stores occupy after the first capture, and what is left of that when each has packed it: git and restic when their users ask for that,
// mulligan within some minutes, by itself. The packing is done to copies, so that what follows is measured with stores as they are just after a capture.
func (b *bench) sizes(ctx context.Context) error {
	at, err := disk(b.storeDir())
	plain, err2 := disk(b.git.dir)
	packed, took, err3 := b.packed(ctx)
	gits, gitsTook, err4 := b.git.packed(ctx)
	restics, err5 := disk(b.restic.dir)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return err
	}
	const unit, what = "MB", "on disk after it"
	git := benchtable.Other{Name: "git", Value: mb(plain)}
	return errors.Join(
		b.table.add("g", benchtable.Row{What: what, Unit: unit, Mulligan: mb(at), Others: []benchtable.Other{git}}),
		b.table.add("g", benchtable.Row{What: what + ", some minutes later", Unit: unit, Mulligan: mb(packed), Others: []benchtable.Other{git}, Times: 1.8}),
		b.table.add("g", benchtable.Row{What: what + ", some minutes later, beside packs", Unit: unit, Mulligan: mb(packed),
			Others: []benchtable.Other{{Name: "git gc", Value: mb(gits)}, {Name: "restic", Value: mb(restics)}}}),
		b.table.add("g", benchtable.Row{What: "how long that packing takes", Mulligan: ms(took), Others: []benchtable.Other{{Name: "git gc", Value: ms(gitsTook)}}}))
}

// copied calls f with a copy of the folder dir, which is removed after that.
func copied(ctx context.Context, dir string, f func(dir string) error) error {
	to := dir + ".packed"
	if out, err := exec.CommandContext(ctx, "cp", "-a", dir, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return errors.Join(f(to), os.RemoveAll(to))
}

// packed returns the size of the store once it is packed, and how long that takes.
func (b *bench) packed(ctx context.Context) (size int64, took time.Duration, err error) {
	err = copied(ctx, b.storeDir(), func(dir string) error {
		s, err := cas.Open(dir, cas.Options{})
		if err != nil {
			return err
		}
		took, err = timed(func() error {
			_, err := s.Pack(ctx)
			return err
		})
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
		size, err = disk(dir)
		return err
	})
	return size, took, err
}

// packed returns the size of the repository once it is packed, and how long that takes.
func (g *shadow) packed(ctx context.Context) (size int64, took time.Duration, err error) {
	err = copied(ctx, g.dir, func(dir string) error {
		c := *g
		c.dir = dir
		took, err = timed(func() error {
			_, err := c.run(ctx, "gc", "-q")
			return err
		})
		if err != nil {
			return err
		}
		size, err = disk(dir)
		return err
	})
	return size, took, err
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// start starts the journal and measures the time until it is current.
func (b *bench) start(ctx context.Context) error {
	took, err := timed(func() error { return b.follow(ctx) })
	if err != nil {
		return err
	}
	return b.table.add("s", benchtable.Row{What: "until the journal is current", Mulligan: ms(took)})
}

// checkpoints are the sides that make a checkpoint.
func (b *bench) checkpoints(ctx context.Context) (others []side, mulligan func() error) {
	return gits(func(options ...string) error { return b.git.checkpoint(ctx, options...) }), func() error {
		_, err := b.checkpoint(ctx)
		return err
	}
}

// unchanged measures the automatic checkpoint at a turn's first write.
func (b *bench) unchanged(ctx context.Context) error {
	w := work{key: "a", what: "checkpoint, nothing changed (a turn's first write)", times: 300}
	w.others, w.mulligan = b.checkpoints(ctx)
	return b.rounds(ctx, w)
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
	return b.table.add("k", benchtable.Row{What: "barrier, nothing changed", Mulligan: ms(median(times)), Below: 3})
}

func (b *bench) edits(ctx context.Context) error {
	for _, c := range []struct {
		n     int
		key   string
		times float64
	}{{10, "b", 40}, {1000, "c", 0}} {
		if c.n > len(b.tree.files)/2 {
			continue
		}
		w := work{key: c.key, what: fmt.Sprintf("durable checkpoint, %d files just changed", c.n), times: c.times, change: func() error { return b.tree.edit(c.n) }}
		if w.others, w.mulligan = b.checkpoints(ctx); c.n > 10 {
			w.others = w.others[:1] // the other takes twice as long
		}
		if err := b.rounds(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) restores(ctx context.Context) error {
	half := len(b.tree.files) / 2
	for _, c := range []struct {
		n            int
		key          string
		times, below float64
		runs         int
	}{{10, "d", 100, 10, 0}, {1000, "e", 4, 0, 0}, {half, "q", 3, 0, 1}} {
		if c.n > half {
			continue
		}
		var commit string
		var target, base snap.SnapshotID
		w := work{key: c.key, what: fmt.Sprintf("restore of %d files (mulligan's is checked)", c.n), times: c.times, below: c.below, runs: c.runs}
		w.ready = func() (err error) {
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
		w.others = []side{{name: "git", do: func() error { return b.git.restore(ctx, commit) }}} // which syncs no file, with core.fsync or without
		w.mulligan = func() error { return b.restore(ctx, target, base) }
		if err := b.rounds(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// measureOthers measures special cases: one large file, and a small tree of which git ignores the largest part.
func measureOthers(ctx context.Context, dir string, from sources, runs int, rows string) (*table, error) {
	t := &table{title: "special cases"}
	want := (&bench{rows: rows}).wants
	var err error
	if want("h") {
		err = large(ctx, filepath.Join(dir, "large"), t)
	}
	if err == nil && want("x") {
		err = largeOnXFS(ctx, filepath.Join(dir, "xfs"), t)
	}
	if err == nil && want("j") {
		err = ignoring(ctx, filepath.Join(dir, "ignoring"), from, t, runs)
	}
	return t, err
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
		w := work{key: "j", what: "300 files and an ignored node_modules, 10 changed", change: func() error { return b.tree.edit(10) }}
		w.others, w.mulligan = b.checkpoints(ctx)
		err = b.rounds(ctx, w)
	}
	return errors.Join(err, s.close())
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"mulligan/testkit/benchtable"
)

// commands measures what a user types for an app whose settings are the defaults.
func (b *bench) commands(ctx context.Context) error {
	if !b.wants("mn") {
		return nil
	}
	if err := b.close(); err != nil {
		return err
	}
	b.journal = nil
	d, err := startDaemon(ctx, filepath.Join(b.dir, "defaults"))
	if err != nil {
		return err
	}
	err = d.addByDefault(ctx, "bench", b.tree.dir)
	if err == nil {
		w := work{key: "m", what: "`mulligan create` by default, 10 files just changed", times: 1, change: func() error { return b.tree.edit(10) }}
		w.others, _ = b.checkpoints(ctx)
		w.others = append(w.others[:1], side{name: "restic", do: func() error { return b.restic.checkpoint(ctx, "changed") }, once: true})
		w.mulligan = func() error { return d.command(ctx, nil, "--app", "bench", "create") }
		err = b.rounds(ctx, w)
	}
	if err == nil {
		err = b.rollback(ctx, d, "n", "`mulligan rollback` by default, 10 files just changed", 0, b.restic)
	}
	return errors.Join(err, d.stop())
}

// rollback measures `mulligan rollback`, with the safety checkpoint before it and the proof after it. The others make a checkpoint before they restore, too.
func (b *bench) rollback(ctx context.Context, d *daemon, key, what string, below float64, restic *restic) error {
	var commit string
	var target struct {
		ID string `json:"checkpoint_id"`
	}
	backedUp := false // all rollbacks but restic's lead to the same state
	w := work{key: key, what: what, times: 1, below: below, change: func() error { return b.tree.edit(10) }}
	w.ready = func() (err error) {
		if commit, err = b.git.head(ctx); err == nil {
			err = d.command(ctx, &target, "--app", "bench", "create")
		}
		if err == nil && restic != nil && !backedUp {
			backedUp = true
			err = restic.checkpoint(ctx, "before")
		}
		return err
	}
	w.others = []side{{name: "git", do: func() error { return errors.Join(b.git.checkpoint(ctx), b.git.restore(ctx, commit)) }}}
	if restic != nil {
		w.others = append(w.others, side{name: "restic", do: func() error {
			return errors.Join(restic.checkpoint(ctx, "safety"), restic.restore(ctx, "before"))
		}, once: true})
	}
	w.mulligan = func() error { return d.command(ctx, nil, "--app", "bench", "rollback", target.ID) }
	return b.rounds(ctx, w)
}

// addByDefault registers an app with the default settings, and waits until the daemon follows its files, which it does after the first checkpoint.
func (d *daemon) addByDefault(ctx context.Context, slug, tree string) error {
	if err := d.add(ctx, slug, tree, false); err != nil {
		return err
	}
	if err := d.checkpoint(ctx, slug); err != nil {
		return err
	}
	return d.awaitFollowing(ctx, slug, "noting")
}

// The apps of a daemon at rest, and the files of each, for which the targets are defined.
const idleApps, idleFiles = 10, 50_000

// packed is the time from the start of a daemon after which it has begun to pack its store, as it does each minute.
const packed = 65 * time.Second

// measureIdle measures a daemon whose apps nobody changes, with the default settings.
func measureIdle(ctx context.Context, dir string, from sources, files int, rows string) (*table, error) {
	t := &table{title: fmt.Sprintf("a daemon at rest that follows %d apps of %d files, as is its default", idleApps, files), files: files * targetFiles / idleFiles}
	if !(&bench{rows: rows}).wants("o") {
		return t, nil
	}
	from.most = 512 // what the files hold matters to nobody at rest
	planted := make([]*tree, idleApps)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range planted {
		g.Go(func() (err error) {
			planted[i], err = plant(ctx, filepath.Join(dir, fmt.Sprint("app", i)), from, files)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return t, err
	}
	d, err := startDaemon(ctx, filepath.Join(dir, "daemon"))
	if err != nil {
		return t, err
	}
	began, folders := time.Now(), 0
	for i := 0; i < idleApps && err == nil; i++ {
		folders += planted[i].folders
		err = d.addByDefault(ctx, fmt.Sprint("app", i), planted[i].dir)
	}
	if err == nil {
		err = pause(ctx, time.Until(began.Add(packed)))
	}
	if err == nil {
		err = d.rest(ctx, t, folders)
	}
	return t, errors.Join(err, d.stop())
}

// rest measures for a while what the daemon takes without being asked for anything.
func (d *daemon) rest(ctx context.Context, t *table, folders int) error {
	const observed = 20 * time.Second
	before, err := d.settled(ctx)
	if err == nil {
		err = pause(ctx, observed)
	}
	after, err2 := d.processor()
	now, _, err3 := d.memory()
	watches, err4 := d.watches()
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	return errors.Join(t.add("o", benchtable.Row{What: "of one processor", Unit: "%", Mulligan: 100 * (after - before).Seconds() / observed.Seconds(), Below: 1}),
		t.add("o", benchtable.Row{What: "memory (RSS)", Unit: "MB", Mulligan: now, Below: 150}),
		t.add("o", benchtable.Row{What: fmt.Sprintf("inotify watches, for %d folders", folders), Unit: "watches", Mulligan: float64(watches)}))
}

// settled waits until the daemon has dealt with what the first captures left, such as packing the store, and returns how much processor time it has taken then.
func (d *daemon) settled(ctx context.Context) (took time.Duration, err error) {
	const look, little = 10 * time.Second, 100 * time.Millisecond
	for range 18 { // three minutes
		before, err := d.processor()
		if err == nil {
			err = pause(ctx, look)
		}
		if err == nil {
			took, err = d.processor()
		}
		if err != nil || took-before <= little {
			return took, err
		}
	}
	return took, nil // it is still at work, and what is measured shows that
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// processor returns how much processor time the daemon has taken, with its programs that have ended.
func (d *daemon) processor() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const first, last, tick = 11, 14, 10 * time.Millisecond // utime to cstime, see proc(5)
	if len(fields) <= last {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", d.cmd.Process.Pid, len(fields))
	}
	var sum time.Duration
	for _, f := range fields[first : last+1] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// watches returns how many folders the daemon has the kernel watch.
func (d *daemon) watches() (n int, err error) {
	dir := fmt.Sprintf("/proc/%d/fdinfo", d.cmd.Process.Pid)
	all, err := os.ReadDir(dir)
	for _, e := range all {
		info, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it was closed meanwhile
		}
		if err != nil {
			return 0, err
		}
		n += strings.Count("\n"+string(info), "\ninotify wd:")
	}
	return n, err
}

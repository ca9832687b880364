// Command filesbench compares the files driver, and the commands of a user, with a shadow git repository, in which other tools keep a workspace's checkpoints,
// and with restic. It measures all in turn, in one run, on the same tree and with the same edits, so that the ratios hold on a busy machine. It prints each
// row as it is measured, and all of them at its end, and leaves nothing behind except npm packages and restic in the cache for tests.
//
//	go run -tags libvirt_dlopen ./snap/files/filesbench        # 1,000 and 100,000 files
//	BENCH_FILES=1000,20000,300000 …                            # others
//	BENCH_DIR=/srv/scratch BENCH_RUNS=9 …
//	BENCH_ROWS=ade …                                           # only these rows, and what they need
//
// The git side has its GIT_DIR outside of the tree, gc.auto=0 and the untracked cache. A checkpoint is `git add -A -f .` and a
// commit (-f, so that it has everything that mulligan's has), and a restore is `git reset --hard` and `git clean -fdx`. Git is
// measured twice: with its defaults, and with core.fsync=all, because mulligan reports a checkpoint as stored only after
// fdatasync.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"mulligan/testkit/benchtable"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "filesbench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	if len(os.Args) > 1 {
		return errors.New("takes no arguments; BENCH_FILES, BENCH_RUNS, BENCH_ROWS and BENCH_DIR in the environment say what to measure, and where")
	}
	sizes, err := numbers("BENCH_FILES", "1000,100000")
	if err != nil {
		return err
	}
	runs, err := numbers("BENCH_RUNS", "3")
	if err != nil {
		return err
	}
	top, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "filesbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(top)) }()
	programs = filepath.Join(top, "programs")
	from, err := findSources(ctx)
	if err != nil {
		return err
	}
	rows := os.Getenv("BENCH_ROWS")
	var all []*table
	defer func() { // also after an error: what was measured before it is worth reading
		if os.Getenv("BENCH_TABLE") == "" {
			err = errors.Join(err, printed(all))
		}
	}()
	for _, n := range sizes {
		dir := filepath.Join(top, strconv.Itoa(n))
		t, err := measure(ctx, dir, from, n, runs[0], rows)
		if t != nil {
			all = append(all, t)
		}
		if err == nil {
			err = removeAll(dir)
		}
		if err != nil {
			return err
		}
	}
	for _, last := range []func() (*table, error){
		func() (*table, error) { return growth(all[:len(sizes)]) },
		func() (*table, error) { return measureOthers(ctx, filepath.Join(top, "others"), from, runs[0], rows) },
		func() (*table, error) {
			return measureIdle(ctx, filepath.Join(top, "idle"), from, min(idleFiles, slices.Max(sizes)), rows)
		},
	} {
		t, err := last()
		all = append(all, t)
		if err != nil {
			return err
		}
	}
	return nil
}

// removeAll removes a folder of trees and stores with all processors: that takes a good part of a run.
func removeAll(dir string) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, pattern := range []string{"*/*/*", "*/*", "*"} {
		below, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range below {
			g.Go(func() error { return os.RemoveAll(path) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func printed(tables []*table) error {
	var rows []benchtable.Row
	for _, t := range tables {
		for _, r := range t.rows {
			rows = append(rows, r.Row)
		}
	}
	return benchtable.Print(os.Stdout, rows)
}

// numbers reads a list of numbers from the environment.
func numbers(name, byDefault string) ([]int, error) {
	list := os.Getenv(name)
	if list == "" {
		list = byDefault
	}
	var out []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s=%s: want numbers above 0 with commas between", name, list)
		}
		out = append(out, n)
	}
	return out, nil
}

// measure measures a tree of the given number of files.
func measure(ctx context.Context, dir string, from sources, files, runs int, rows string) (*table, error) {
	s, err := newSite(dir)
	if err != nil {
		return nil, err
	}
	tree, err := plant(ctx, s.tree, from, files)
	if err != nil {
		return nil, err
	}
	t := &table{title: tree.String(), files: files}
	b := &bench{site: s, tree: tree, table: t, runs: runs, rows: rows}
	for _, step := range []func(context.Context) error{b.first, b.start, b.unchanged, b.barrier, b.edits, b.restores, b.daemon, b.commands} {
		err := step(ctx)
		if err == nil {
			err = tree.whole()
		}
		if err != nil {
			return t, errors.Join(err, s.close())
		}
	}
	return t, s.close()
}

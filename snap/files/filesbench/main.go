// Command filesbench compares the files driver with a shadow git repository, in which other tools keep a workspace's
// checkpoints. It measures both in turn, in one run, on the same tree and with the same edits, so that the ratios hold on a
// busy machine. It prints a table for each size, and leaves nothing behind except a cache of npm packages.
//
//	make bench                                   # 1,000, 20,000 and 100,000 files
//	BENCH_FILES=1000 make bench                  # quickly
//	BENCH_DIR=/srv/scratch BENCH_RUNS=9 make bench
//	BENCH_ROWS=ade make bench                    # only these rows, and what they need
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
	"slices"
	"strconv"
	"strings"
	"syscall"
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

func run(ctx context.Context) error {
	if len(os.Args) > 1 {
		return errors.New("takes no arguments; BENCH_FILES, BENCH_RUNS, BENCH_ROWS and BENCH_DIR in the environment say what to measure, and where")
	}
	sizes, err := numbers("BENCH_FILES", "1000,20000,100000")
	if err != nil {
		return err
	}
	runs, err := numbers("BENCH_RUNS", "5")
	if err != nil {
		return err
	}
	top, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "filesbench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	from, err := findSources(ctx)
	if err != nil {
		return err
	}
	rows := os.Getenv("BENCH_ROWS")
	var growth growth
	for _, n := range sizes {
		t, err := measure(ctx, filepath.Join(top, strconv.Itoa(n)), from, n, runs[0], rows)
		if t != nil { // after an error, t has the rows that were measured before
			t.print(os.Stdout)
		}
		if err != nil {
			return err
		}
		growth.add(t)
		if err := os.RemoveAll(filepath.Join(top, strconv.Itoa(n))); err != nil {
			return err
		}
	}
	growth.print(os.Stdout)
	t, err := measureOthers(ctx, filepath.Join(top, "others"), from, runs[0], rows)
	if err != nil {
		return err
	}
	t.print(os.Stdout)
	t, err = measureIdle(ctx, filepath.Join(top, "idle"), from, min(idleFiles, slices.Max(sizes)), rows)
	t.print(os.Stdout)
	return err
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

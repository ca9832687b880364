package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// shadow is a git repository outside of the tree, which keeps the tree's checkpoints.
type shadow struct {
	dir, tree string
	all       bool // add ignored files too
}

// fsyncAll are the options that make git sync everything it writes.
var fsyncAll = []string{"-c", "core.fsync=all"}

func (g *shadow) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = g.tree
	cmd.Env = append(os.Environ(), "GIT_DIR="+g.dir, "GIT_WORK_TREE="+g.tree, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=bench", "GIT_AUTHOR_EMAIL=bench@localhost", "GIT_COMMITTER_NAME=bench", "GIT_COMMITTER_EMAIL=bench@localhost")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// init creates the repository again, empty.
func (g *shadow) init(ctx context.Context) error {
	err := os.RemoveAll(g.dir)
	for _, args := range [][]string{{"init", "-q"}, {"config", "gc.auto", "0"}, {"config", "core.untrackedCache", "true"}} {
		if err == nil {
			_, err = g.run(ctx, args...)
		}
	}
	return err
}

// checkpoint makes git's checkpoint: it adds and commits everything.
func (g *shadow) checkpoint(ctx context.Context, options ...string) error {
	add := append(options[:len(options):len(options)], "add", "-A")
	if g.all {
		add = append(add, "-f")
	}
	_, err := g.run(ctx, append(add, ".")...)
	if err != nil {
		return err
	}
	_, err = g.run(ctx, append(options[:len(options):len(options)], "commit", "-q", "--no-verify", "--allow-empty", "-m", "checkpoint")...)
	return err
}

// restore makes the tree that of a commit, and removes everything else from it.
func (g *shadow) restore(ctx context.Context, commit string, options ...string) error {
	_, err := g.run(ctx, append(options[:len(options):len(options)], "reset", "-q", "--hard", commit)...)
	_, err2 := g.run(ctx, "clean", "-fdxq")
	return errors.Join(err, err2)
}

func (g *shadow) head(ctx context.Context) (string, error) { return g.run(ctx, "rev-parse", "HEAD") }

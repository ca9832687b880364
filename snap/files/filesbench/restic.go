package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"mulligan/testkit"
)

// restic is a repository of restic's on the same disk.
type restic struct{ program, dir, tree string }

// newRestic builds restic once, and makes a repository.
func newRestic(ctx context.Context, dir, tree string) (r *restic, err error) {
	r = &restic{dir: dir, tree: tree}
	if err = os.RemoveAll(dir); err == nil {
		r.program, err = testkit.BuildGoTool(ctx, "github.com/restic/restic", "cmd/restic", "v0.18.1")
	}
	if err == nil {
		err = r.run(ctx, "init")
	}
	return r, err
}

func (r *restic) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.program, append([]string{"--quiet"}, args...)...)
	cmd.Env = append(os.Environ(), "RESTIC_PASSWORD=bench", "RESTIC_REPOSITORY="+r.dir, "RESTIC_CACHE_DIR="+r.dir+".cache")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("restic %q: %w: %s", args, err, out)
	}
	return nil
}

// checkpoint backs the tree up.
func (r *restic) checkpoint(ctx context.Context, tag string) error {
	return r.run(ctx, "backup", "--tag", tag, r.tree)
}

// restore makes the tree that of the last checkpoint with a tag, and removes everything else from it.
func (r *restic) restore(ctx context.Context, tag string) error {
	return r.run(ctx, "restore", "latest:"+r.tree, "--tag", tag, "--target", r.tree, "--delete", "--overwrite", "if-changed")
}

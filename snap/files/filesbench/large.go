package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit/benchtable"
)

const largeMB = 512

// large measures one large file of random bytes: of which 4 KB have changed, and which was written anew.
func large(ctx context.Context, dir string, t *table) error {
	return withLarge(ctx, dir, t, func(l *largeFile) error {
		err := l.part(ctx)
		if err == nil {
			err = l.whole(ctx)
		}
		return err
	})
}

// withLarge calls do with a large file that was captured once.
func withLarge(ctx context.Context, dir string, t *table, do func(*largeFile) error) error {
	s, err := newSite(dir)
	if err != nil {
		return err
	}
	err = errors.Join((&tree{dir: s.tree}).random("image", largeMB<<20), s.git.init(ctx), s.git.checkpoint(ctx), s.open(true))
	if err == nil {
		_, err = s.captureWalking(ctx)
	}
	if err == nil {
		err = s.follow(ctx)
	}
	if err == nil {
		err = do(&largeFile{site: s, table: t, path: filepath.Join(s.tree, "image")})
	}
	return errors.Join(err, s.close())
}

// largeOnXFS measures the same on a filesystem whose files share blocks, of which one is made and mounted. Only root can do that.
func largeOnXFS(ctx context.Context, dir string, t *table) (err error) {
	image, top := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	if err := os.MkdirAll(top, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{{"truncate", "-s", "6G", image}, {"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, top}} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "filesbench: nothing is measured on XFS: %s: %v: %s\n", args[0], err, out)
			return nil
		}
	}
	defer func() { err = errors.Join(err, unix.Unmount(top, unix.MNT_DETACH)) }() // the copies that the driver has of the file go with the process
	return withLarge(ctx, filepath.Join(top, "large"), t, func(l *largeFile) error {
		for n := range int64(3) { // what changes for the first time is read whole, to make a copy
			if err := l.change(n << 20); err != nil {
				return err
			}
			if _, err := l.checkpoint(ctx); err != nil {
				return err
			}
		}
		return l.partOnXFS(ctx)
	})
}

// partOnXFS measures a checkpoint after 4 KB have changed, and the way back.
func (l *largeFile) partOnXFS(ctx context.Context) error {
	target, err := l.checkpoint(ctx)
	if err != nil {
		return err
	}
	syscall.Sync()
	var base snap.SnapshotID
	took, err := timed(func() (err error) {
		if err = l.change(100 << 20); err == nil {
			base, err = l.checkpoint(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	gits, err := timed(func() error { return l.git.checkpoint(ctx) })
	if err != nil {
		return err
	}
	syscall.Sync()
	cloned, err := timed(func() error {
		return exec.CommandContext(ctx, "cp", "--reflink=always", l.path, filepath.Join(l.dir, "copy")).Run()
	})
	if err != nil {
		return err
	}
	back, err := timed(func() error { return l.restore(ctx, target, base) })
	if err != nil {
		return err
	}
	return errors.Join(
		l.table.add("x", benchtable.Row{What: fmt.Sprintf("%d MB file on XFS, 4 KB changed, not for the first time", largeMB), Mulligan: ms(took),
			Others: []benchtable.Other{{Name: "git", Value: ms(gits)}}, Times: 40, Below: 300}),
		l.table.add("x", benchtable.Row{What: "the way back on XFS", Mulligan: ms(back),
			Others: []benchtable.Other{{Name: "cp --reflink", Value: ms(cloned)}}, Below: 1000}))
}

type largeFile struct {
	*site
	table *table
	path  string
}

// part measures a checkpoint after 4 KB have changed, and the way back.
func (l *largeFile) part(ctx context.Context) error {
	target, err := l.checkpoint(ctx)
	if err != nil {
		return err
	}
	if _, _, err = l.copied(); err != nil { // a virtual machine is slow to read into memory that it has not used yet
		return err
	}
	read, copied, err := l.copied()
	if err != nil {
		return err
	}
	var base snap.SnapshotID
	if err := l.forget(); err != nil {
		return err
	}
	// Nothing comes between the change and the checkpoint, so the journal has not read the file yet.
	took, added, err := grown(l.storeDir(), func() (err error) {
		if err = l.change(100 << 20); err == nil {
			base, err = l.checkpoint(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := l.forget(); err != nil {
		return err
	}
	gits, gitsAdded, err := grown(l.git.dir, func() error { return l.git.checkpoint(ctx) })
	if err != nil {
		return err
	}
	if err := l.forget(); err != nil {
		return err
	}
	back, err := timed(func() error { return l.restore(ctx, target, base) })
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d MB file, 4 KB changed", largeMB)
	for _, r := range []benchtable.Row{
		{What: what, Mulligan: took, Others: []benchtable.Other{{Name: "git", Value: gits}}, Times: 40},
		{What: what + ", beside reading the file once", Mulligan: took, Others: []benchtable.Other{{Name: "read", Value: read}}, Times: 1},
		{What: "added on disk by it", Unit: "MB", Mulligan: added, Others: []benchtable.Other{{Name: "git", Value: gitsAdded}}, Below: 2},
		{What: "the way back", Mulligan: ms(back), Others: []benchtable.Other{{Name: "read", Value: read}}, Times: 0.5},
		{What: "the way back, beside a copy", Mulligan: ms(back), Others: []benchtable.Other{{Name: "cp", Value: copied}}},
	} {
		if err := l.table.add("h", r); err != nil {
			return err
		}
	}
	return nil
}

// whole measures the way back after all of the file was written anew.
func (l *largeFile) whole(ctx context.Context) error {
	target, err := l.checkpoint(ctx)
	if err != nil {
		return err
	}
	for at := int64(0); at < largeMB<<20; at += 64 << 10 { // each chunk has another content
		if err := l.change(at); err != nil {
			return err
		}
	}
	base, err := l.checkpoint(ctx)
	if err != nil {
		return err
	}
	_, copied, err := l.copied()
	if err != nil {
		return err
	}
	back, err := timed(func() error { return l.restore(ctx, target, base) })
	if err != nil {
		return err
	}
	return l.table.add("h", benchtable.Row{What: fmt.Sprintf("the way back of %d MB of random bytes, all changed", largeMB), Mulligan: ms(back),
		Others: []benchtable.Other{{Name: "cp", Value: copied}}, Times: 1 / 1.5})
}

func (l *largeFile) change(at int64) error {
	f, err := os.OpenFile(l.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 4096), at)
	return errors.Join(err, f.Close())
}

// forget makes the kernel forget what it knows of the file, so that it is read from the disk again.
func (l *largeFile) forget() error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// copied returns how long, in ms, it takes to read the file from the disk, and to copy it durably.
func (l *largeFile) copied() (read, copied float64, err error) {
	if err := l.forget(); err != nil {
		return 0, 0, err
	}
	took, err := timed(func() error {
		f, err := os.Open(l.path)
		if err != nil {
			return err
		}
		_, err = io.Copy(struct{ io.Writer }{io.Discard}, f)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return 0, 0, err
	}
	syscall.Sync()
	to := filepath.Join(l.dir, "copy")
	again, err := timed(func() error {
		from, err := os.Open(l.path)
		if err != nil {
			return err
		}
		defer from.Close() // it is only read
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, from)
		return errors.Join(err, f.Sync(), f.Close())
	})
	return ms(took), ms(again), errors.Join(err, os.Remove(to))
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

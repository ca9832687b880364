package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files"
)

// site is a workspace, with the two stores of its checkpoints: git's and mulligan's.
type site struct {
	dir, tree string
	git       *shadow
	store     *cas.Store
	driver    snap.Driver
	journal   snap.Journal // nil if the driver has none
	unfollow  func() error
	last      int // the last number in a snapshot's or restore's name
}

func newSite(dir string) (*site, error) {
	dir, err := filepath.Abs(dir)
	s := &site{dir: dir, tree: filepath.Join(dir, "tree")}
	s.git = &shadow{filepath.Join(dir, "shadow.git"), s.tree, true}
	return s, errors.Join(err, os.MkdirAll(s.tree, 0o755))
}

func (s *site) storeDir() string { return filepath.Join(s.dir, "store") }
func (s *site) stateDir() string { return filepath.Join(s.dir, "state") }

// open opens the store and the driver. With fresh, it first removes everything in them.
func (s *site) open(fresh bool) (err error) {
	if fresh {
		if err := errors.Join(os.RemoveAll(s.storeDir()), os.RemoveAll(s.stateDir())); err != nil {
			return err
		}
	}
	if s.store, err = cas.Open(s.storeDir(), cas.Options{}); err != nil {
		return err
	}
	d, err := files.New(files.Config{App: "bench", Dir: s.tree, StateDir: s.stateDir(), Store: s.store, Owner: -1})
	if err != nil {
		return err
	}
	s.driver = d
	s.journal, _ = any(d).(snap.Journal)
	return nil
}

// follow starts the journal and waits until it is current.
func (s *site) follow(ctx context.Context) error {
	if s.journal == nil {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	j := s.journal
	go func() { done <- j.Follow(ctx, func(snap.Batch) {}) }()
	s.unfollow = func() error {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	for j.Following().State != snap.Watching {
		select {
		case err := <-done:
			done <- err
			return fmt.Errorf("the journal ended: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return s.awaitIdle(ctx)
}

// awaitIdle waits until the journal has no work left.
func (s *site) awaitIdle(ctx context.Context) error {
	if s.journal == nil {
		return nil
	}
	_, err := s.journal.Flush(ctx)
	return err
}

func (s *site) close() error {
	var err error
	if s.unfollow != nil {
		err, s.unfollow = s.unfollow(), nil
	}
	if s.store != nil {
		err, s.store = errors.Join(err, s.store.Close()), nil
	}
	return err
}

func (s *site) number() int {
	s.last++
	return s.last
}

// checkpoint makes mulligan's checkpoint: a barrier, and a marker of the journal's position.
func (s *site) checkpoint(ctx context.Context) (snap.SnapshotID, error) {
	req := snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprintf("fs-%d", s.number()))}
	if s.journal != nil {
		m, err := s.journal.Flush(ctx)
		if err != nil {
			return "", err
		}
		req.At = m
	}
	_, err := s.driver.Capture(ctx, req)
	return req.ID, err
}

// restore makes mulligan's restore: it prepares, checks that the base is not stale, commits, and compares the hashes.
func (s *site) restore(ctx context.Context, target, base snap.SnapshotID) error {
	sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: snap.RestoreID(fmt.Sprintf("op-%d", s.number())), Target: target, Base: base})
	if err != nil {
		return err
	}
	if stale, err := sw.Stale(ctx); err != nil || stale {
		return fmt.Errorf("stale: %v, %w", stale, err)
	}
	if err := sw.Commit(ctx); err != nil {
		return err
	}
	proof, err := sw.Check(ctx)
	if err == nil && !proof.Match {
		err = errors.New("what was restored is not what was asked for")
	}
	return errors.Join(err, sw.Finish(ctx))
}

// disk returns the number of bytes that the files below dir occupy.
func disk(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		n, err := occupied(path)
		bytes += n
		return err
	})
	return bytes, err
}

// captureWalking makes a capture by a walk, without the journal.
func (s *site) captureWalking(ctx context.Context) (snap.SnapshotID, error) {
	id := snap.SnapshotID(fmt.Sprintf("fs-%d", s.number()))
	_, err := s.driver.Capture(ctx, snap.CaptureRequest{ID: id})
	return id, err
}

func occupied(path string) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}

package physical

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/asroot"
	"mulligan/snap/postgres/physical/pgserver"
)

// store is the folder beside the data folder with the archive, base backups, forks and raw snapshots. It belongs to the
// cluster's owner, as the data folder does, so all work in the two is done in processes of the owner.
type store struct {
	asowner.Home
	owner    privsep.User
	root     *asroot.Home // nil if the owner may make and exchange folders beside the data folder
	tools    pgserver.Tools
	claimant string // the app and the cluster of the store

	clones struct { // whether the file system can share extents
		sync.Mutex
		known, yes bool
	}
}

// arrange removes and writes small files in a data folder of the store.
func (s *store) arrange(ctx context.Context, a asowner.Arrangement) error {
	_, err := asowner.Arrange.Call(ctx, s.owner, a)
	return err
}

// exchangeTimeout bounds an exchange of folders.
const exchangeTimeout = 10 * time.Minute

// exchange exchanges the data folder and a fork. It ignores the end of ctx, because the server is down meanwhile.
func (s *store) exchange(ctx context.Context, fork string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	if s.root != nil {
		if s.root.Data == s.root.Volume && s.root.Seen() == s.root.Volume { // programs in a container of their own would go on seeing the old folder
			if err := s.tools.Leave(ctx); err != nil {
				return err
			}
		}
		return s.root.Exchange(fork)
	}
	_, err := asowner.Exchange.Call(ctx, s.owner, asowner.Pair{A: s.Data, B: fork})
	return err
}

// sums returns a list of the files of a data folder with their checksums.
func (s *store) sums(ctx context.Context, dir string) ([]byte, error) {
	l, err := asowner.Sums.Call(ctx, s.owner, dir)
	if err != nil {
		return nil, err
	}
	defer l.File.Close() // it was only read
	data, err := io.ReadAll(io.NewSectionReader(l.File, 0, asowner.MaxSums+1))
	if err == nil && len(data) > asowner.MaxSums {
		err = asowner.TooManyFiles()
	}
	return data, err
}

// cleanTimeout bounds a removal after the caller's ctx has ended.
const cleanTimeout = 10 * time.Minute

// remove removes files and folders of the store, even if ctx has ended.
func (s *store) remove(ctx context.Context, paths ...string) error {
	if len(paths) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	_, err := asowner.Remove.Call(ctx, s.owner, paths)
	return err
}

// cloning reports whether the store's file system can share extents between files.
func (s *store) cloning(ctx context.Context) bool {
	s.clones.Lock()
	defer s.clones.Unlock()
	if !s.clones.known {
		yes, err := asowner.Clones.Call(ctx, s.owner, s.Store)
		if err != nil {
			return false // copying is always possible; the next call tries again
		}
		s.clones.known, s.clones.yes = true, yes
	}
	return s.clones.yes
}

// room returns an error unless a copy of dir fits on the store's file system. It keeps a reserve free, so that the server does
// not run out of space.
func (s *store) room(ctx context.Context, dir string) error {
	q := asowner.SpaceQuery{Store: s.Store}
	if !s.cloning(ctx) {
		q.Dir = dir
	}
	found, err := asowner.Space.Call(ctx, s.owner, q)
	if err != nil {
		return err
	}
	if need := 64<<20 + found.Taken + found.Taken/16; found.Free < need {
		return errs.New(errs.Failed, "", "%s has %d MB free, and %d MB are needed for a copy of the cluster", s.Store, found.Free>>20, need>>20).
			WithHint("free some space, or delete checkpoints")
	}
	return nil
}

// claim makes the store, and marks it as this app's. Two apps must not use the same cluster, because each would also restore
// the other.
func (s *store) claim(ctx context.Context) (made bool, err error) {
	if s.root != nil {
		if made, err = s.root.Make(); err != nil {
			return false, err
		}
	}
	new, err := asowner.TakeClaim.Call(ctx, s.owner, asowner.Claim{Store: s.Store, Mine: s.claimant + "\n"})
	return made || new, err
}

// dropStore removes a store with all that is in it. If apart is true, its owner sees it, and not the folder in which it is.
func dropStore(ctx context.Context, owner privsep.User, store string, apart bool) error {
	all := []string{store}
	if apart {
		owner.Folders = []string{store}
		names, err := asowner.Names.Call(ctx, owner, store)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all = nil
		for _, name := range names {
			all = append(all, filepath.Join(store, name))
		}
	}
	_, err := asowner.Remove.Call(ctx, owner, all)
	if err == nil && apart {
		err = asroot.Drop(store)
	}
	return err
}

// layout returns an error unless physical mode can handle the layout of the data folder.
func (s *store) layout(ctx context.Context) error {
	if s.root != nil {
		if err := s.root.Fits(); err != nil {
			return err
		}
	}
	_, err := asowner.Layout.Call(ctx, s.owner, asowner.LayoutQuery{Home: s.Home, Apart: s.root != nil})
	return err
}

// measure returns how many bytes would become free without the files and folders in gone.
func (s *store) measure(ctx context.Context, gone []string) (int64, error) {
	return asowner.Measure.Call(ctx, s.owner, asowner.Measurement{Home: s.Home, Gone: gone, Shared: s.cloning(ctx)})
}

// path returns a path in the store.
func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.Store}, parts...)...)
}

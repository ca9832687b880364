package physical

import (
	"context"
	"io"
	"time"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
)

func (d *Driver) arrange(ctx context.Context, a asowner.Arrangement) error {
	_, err := asowner.Arrange.Call(ctx, d.owner, a)
	return err
}

// exchangeTimeout bounds an exchange of folders that are on the same file system.
const exchangeTimeout = 10 * time.Minute

// exchange makes the data folder and a fork change places. It is done, or not done,
// whatever becomes of ctx: the server is down meanwhile.
func (d *Driver) exchange(ctx context.Context, fork string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	_, err := asowner.Exchange.Call(ctx, d.owner, asowner.Pair{A: d.cfg.DataDir, B: fork})
	return err
}

func (d *Driver) sums(ctx context.Context, dir string) ([]byte, error) {
	l, err := asowner.Sums.Call(ctx, d.owner, dir)
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

// cleanTimeout bounds how long something is removed after the caller has gone.
const cleanTimeout = 10 * time.Minute

// remove removes files and folders of the store, also when ctx has ended.
func (d *Driver) remove(ctx context.Context, paths ...string) error {
	if len(paths) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	_, err := asowner.Remove.Call(ctx, d.owner, paths)
	return err
}

func (d *Driver) home() asowner.Home { return asowner.Home{Data: d.cfg.DataDir, Store: d.cfg.Store} }

// cloning reports whether the store's file system can share extents between files.
func (d *Driver) cloning(ctx context.Context) bool {
	d.clones.Lock()
	defer d.clones.Unlock()
	if !d.clones.known {
		yes, err := asowner.Clones.Call(ctx, d.owner, d.cfg.Store)
		if err != nil {
			return false // copying is always possible; it is asked again
		}
		d.clones.known, d.clones.yes = true, yes
	}
	return d.clones.yes
}

// room makes sure that a copy of dir fits on the store's file system, with a
// reserve: the server must not run out of space because of us.
func (d *Driver) room(ctx context.Context, dir string) error {
	q := asowner.SpaceQuery{Store: d.cfg.Store}
	if !d.cloning(ctx) {
		q.Dir = dir
	}
	s, err := asowner.Space.Call(ctx, d.owner, q)
	if err != nil {
		return err
	}
	if need := 64<<20 + s.Taken + s.Taken/16; s.Free < need {
		return errs.New(errs.Failed, "", "%s has %d MB free, and %d MB are needed for a copy of the cluster", d.cfg.Store, s.Free>>20, need>>20).
			WithHint("free some space, or delete checkpoints")
	}
	return nil
}

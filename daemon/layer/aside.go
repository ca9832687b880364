package layer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres"
)

// aside is the copy of the data of a fork's own server that was made before the server was first started. A server of its own runs on the
// copy while a database is dumped from it.
type aside struct {
	b    *Binder
	rec  store.App
	db   ipc.Database // the database that is dumped
	live ownServer
}

var _ postgres.Aside = aside{}

// aside is the server for the copy of the data that o began with.
func (o ownServer) aside() ownServer {
	o.first, o.dir = true, filepath.Join(filepath.Dir(o.dir), asidePrefix+strings.TrimPrefix(filepath.Base(o.dir), serverPrefix))
	return o
}

// The prefixes of the folders of a fork's own servers. They are of one length, as the paths of sockets are limited.
const (
	serverPrefix = "srv-"
	asidePrefix  = "was-"
)

// lockAside lets one at a time work on the copy of a server's data.
func (b *Binder) lockAside(o ownServer) (unlock func()) {
	l, _ := b.asides.LoadOrStore(o.dir, &sync.Mutex{})
	mu := l.(*sync.Mutex)
	mu.Lock()
	return mu.Unlock
}

func (a aside) Has() (bool, error) {
	_, err := os.Stat(a.live.aside().data())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (a aside) With(ctx context.Context, use func(dsn string, alive func() bool) error) (err error) {
	defer a.b.lockAside(a.live)()
	o := a.live.aside()
	if has, err := a.Has(); err != nil || !has {
		return errs.Also(errs.New(errs.Corrupt, "", "the copy of the data that the fork began with, %s, is gone", o.data()).WithHint("use another checkpoint"), err)
	}
	if err := os.MkdirAll(o.dir, 0o711); err != nil {
		return err
	}
	dsn, err := served[o.driver].dsn(parentOf(a.rec, a.db), o.socket())
	if err != nil {
		return err
	}
	p, err := o.supervised(a.b.opt.StopTimeout)
	if err != nil {
		return err
	}
	defer func() {
		ended := errs.Also(p.Stop(context.WithoutCancel(ctx)), p.Close())
		if ended == nil {
			ended = os.RemoveAll(o.dir)
		}
		err = errs.Also(err, ended)
	}()
	if err := p.Start(ctx); err != nil {
		return err
	}
	return use(dsn, func() bool {
		st, err := p.State(ctx)
		return err == nil && st.Active != "failed"
	})
}

func (a aside) Drop(ctx context.Context) error {
	defer a.b.lockAside(a.live)()
	for _, name := range a.live.dbs {
		if name == a.db.Name {
			continue
		}
		if needed, err := postgres.HasAside(a.b.databaseDir(a.rec.ID, name)); err != nil || needed {
			return err
		}
	}
	return served[a.live.driver].drop(ctx, *a.live.Seeded, a.live.aside().seed())
}

func (a aside) Size(ctx context.Context) (int64, error) {
	return postgres.MeasureServer(ctx, *a.live.Seeded, a.live.aside().seed())
}

// stopAside stops the server of a copy that an earlier daemon started.
func (b *Binder) stopAside(ctx context.Context, of ownServer) error {
	o := of.aside()
	if _, err := os.Stat(o.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	defer b.lockAside(of)()
	p, err := o.supervised(b.opt.StopTimeout)
	if err != nil {
		return err
	}
	if err := errs.Also(p.Stop(ctx), p.Close()); err != nil {
		return err
	}
	return os.RemoveAll(o.dir)
}

// endAside ends what a crash left of the work on a copy, of a fork that is whole. What cannot be ended is tried again at the next start.
func (b *Binder) endAside(ctx context.Context, rec store.App, of ownServer) {
	if of.Seeded == nil || rec.Fork.Making {
		return
	}
	a := aside{b, rec, ipc.Database{}, of}
	err := b.stopAside(ctx, of)
	if left, e := a.Has(); err == nil && left {
		err = a.Drop(ctx) // unless a snapshot needs it
	} else {
		err = errs.Also(err, e)
	}
	if err != nil {
		b.opt.Log.Error("the copy of the data that a fork began with could not be removed", "app", rec.Slug, "database", of.name, "err", err)
	}
}

package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"mulligan/daemon/accounts"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// Contents are the stores of what is captured: one for each owner of apps, so
// that what one has stored is never shared with another. A store keeps equal
// contents once; shared between owners, the sizes that it reports, and the time
// that a capture takes, would tell one whether another has a content that he guesses.
//
// Root's, and that of a user's own daemon, is the folder store; others' are
// store-UID, and guests' store-guest- with a hash of the guest's id. An app that has contents in the first one, from before there were
// others, stays with it.
type Contents struct {
	opt *settings.Options

	mu   sync.Mutex
	main *cas.Store
	of   map[string]*cas.Store // by owner; not the first one
}

func openContents(opt *settings.Options) (*Contents, error) {
	first, err := cas.Open(filepath.Join(opt.StateDir, "store"), cas.Options{Failpoint: opt.Failpoint})
	if err != nil {
		return nil, err
	}
	return &Contents{opt: opt, main: first, of: map[string]*cas.Store{}}, nil
}

// OfApp is the store of an app's contents.
func (c *Contents) OfApp(rec store.App) (*cas.Store, error) {
	guest, _ := accounts.GuestOf(rec)
	owner := c.ownerKey(rec.OwnerUID, guest)
	if owner == "" || len(c.main.Roots("files/"+string(rec.ID)+"/")) > 0 {
		return c.main, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.of[owner]; s != nil {
		return s, nil
	}
	s, err := cas.Open(filepath.Join(c.opt.StateDir, "store-"+owner), cas.Options{Failpoint: c.opt.Failpoint})
	if err == nil {
		c.of[owner] = s
	}
	return s, err
}

// ownerKey names an owner's store; "" is the first one.
func (c *Contents) ownerKey(uid int, guest string) string {
	switch {
	case guest != "":
		sum := sha256.Sum256([]byte(guest))
		return "guest-" + hex.EncodeToString(sum[:16])
	case c.opt.User || uid <= 0:
		return ""
	}
	return strconv.Itoa(uid)
}

// all lists the stores that are open.
func (c *Contents) all() []*cas.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*cas.Store{c.main}, slices.Collect(maps.Values(c.of))...)
}

// each calls f for every store and adds up what it says; the first error ends it.
func (c *Contents) each(ctx context.Context, f func(*cas.Store, context.Context) (int64, error)) (sum int64, err error) {
	for _, s := range c.all() {
		n, err := f(s, ctx)
		if sum += n; err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// Visible is how many bytes the caller may know of: of all stores, or of his own.
func (c *Contents) Visible(who ipc.Caller) (sum int64) {
	owner := c.ownerKey(who.UID, who.Guest)
	if owner == "" {
		for _, s := range c.all() {
			sum += s.DiskUsage()
		}
		return sum
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.of[owner]; s != nil {
		sum = s.DiskUsage()
	}
	return sum
}

func (c *Contents) close() (err error) {
	for _, s := range c.all() {
		err = errs.Also(err, s.Close())
	}
	return err
}

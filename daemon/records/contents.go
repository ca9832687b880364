package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mulligan/daemon/accounts"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/cas"
)

// Contents are the content stores: one for each owner of apps. A store keeps equal contents once. If owners shared a store, its
// sizes and the duration of captures would reveal to one owner whether another has a certain content.
//
// The store of root, and that of a user's own daemon, is in the folder store. Those of other users are in store-UID, and those
// of guests in store-guest- with a hash of the guest's id. An app that an older mulligan stored in the first one stays there.
type Contents struct {
	opt *settings.Options

	mu   sync.Mutex
	main *cas.Store
	of   map[string]*cas.Store // by owner, without the first one
}

func openContents(opt *settings.Options) (*Contents, error) {
	first, err := cas.Open(filepath.Join(opt.StateDir, "store"), cas.Options{Leave: leave, Failpoint: opt.Failpoint})
	if err != nil {
		return nil, err
	}
	return &Contents{opt: opt, main: first, of: map[string]*cas.Store{}}, nil
}

// OfApp returns the store of an app's contents.
func (c *Contents) OfApp(rec store.App) (*cas.Store, error) {
	guest, _ := accounts.GuestOf(rec)
	owner := c.ownerKey(rec.OwnerUID, guest)
	if owner == "" || len(c.main.Roots("files/"+string(rec.ID)+"/")) > 0 {
		return c.main, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open(owner)
}

// open returns the store of an owner, which is not the first one. The caller must have locked mu.
func (c *Contents) open(owner string) (*cas.Store, error) {
	if s := c.of[owner]; s != nil {
		return s, nil
	}
	s, err := cas.Open(filepath.Join(c.opt.StateDir, storeOf+owner), cas.Options{Leave: leave, Failpoint: c.opt.Failpoint})
	if err == nil {
		c.of[owner] = s
	}
	return s, err
}

// openAll opens the stores of the state folder that are not open: those of owners who have no registered app.
func (c *Contents) openAll() error {
	entries, err := os.ReadDir(c.opt.StateDir)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if owner, ok := strings.CutPrefix(e.Name(), storeOf); ok && ownerSyntax.MatchString(owner) {
			_, failed := c.open(owner)
			err = errs.Also(err, failed)
		}
	}
	return err
}

// storeOf begins the names of the stores' folders, without the first one. The key of an owner follows.
const storeOf = "store-"

var ownerSyntax = regexp.MustCompile(`^([1-9][0-9]*|guest-[0-9a-f]{32})$`)

// ownerKey returns the key of an owner's store; "" is the first one.
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

// all returns the open stores.
func (c *Contents) all() []*cas.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*cas.Store{c.main}, slices.Collect(maps.Values(c.of))...)
}

// each calls f for every store and returns the sum of the results, and the first error: a store that fails keeps no other owner's from its turn.
func (c *Contents) each(ctx context.Context, f func(*cas.Store, context.Context) (int64, error)) (sum int64, err error) {
	for _, s := range c.all() {
		n, e := f(s, ctx)
		sum += n
		if err == nil {
			err = e
		}
		if ctx.Err() != nil {
			break
		}
	}
	return sum, err
}

// Visible returns the number of stored bytes that the caller may see: those of all stores, or of the caller's own.
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

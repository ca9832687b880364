package daemon

import (
	"os"
	"regexp"
	"strconv"
	"strings"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Owners. On the socket a caller is the uid that the kernel names; on TCP it is
// the owner of a token or of a page's session, or a guest. An app belongs to a
// uid, or to a guest, whose apps run with the rights of one uid that all guests
// share. Root sees everything; so does, at a user's own daemon, that user.
// To everybody else what they do not own is not there.

// administers reports whether the caller may do what root may. A token keeps
// root's place in this: its scopes are what narrows it.
func (d *Daemon) administers(who ipc.Caller) bool {
	return who.Guest == "" && (d.opt.User || who.UID == 0)
}

const guestPrefix = "guest:"

// guestOf is the guest that an app belongs to; "" where it is a user's.
func guestOf(rec store.App) (id string, ok bool) {
	if id, ok = strings.CutPrefix(rec.Owner, guestPrefix); !ok {
		return "", false
	}
	return id, true
}

var guestSyntax = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Guests says whether there are guests, and what they have to work with.
type Guests struct {
	User string // whose rights their apps run with: not root's
	Dir  string // each guest's folders are below Dir/ID
}

// guest finds the caller that a guest's id stands for.
func (d *Daemon) guest(id string) (ipc.Caller, error) {
	if !guestSyntax.MatchString(id) {
		return ipc.Caller{}, errs.New(errs.Unauthenticated, "admit", "this is not a guest's id").
			WithHint("send as X-Guest-Id up to 128 letters, digits, dots, - and _, too random to be guessed")
	}
	acc, err := d.guestAccount()
	if err != nil {
		return ipc.Caller{}, err
	}
	return ipc.Caller{UID: acc.uid, GID: acc.gid, Guest: id, Via: "guest"}, nil
}

func (d *Daemon) guestAccount() (account, error) {
	if d.opt.User {
		return account{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	if d.opt.Guests == nil {
		return account{}, errs.New(errs.Unsupported, "", "there are no guests here").WithHint("allow them in mulligand.toml: [guests] allow = true")
	}
	acc, err := lookup(d.opt.Guests.User)
	if err == nil && acc.uid == 0 {
		err = errs.New(errs.Denied, "", "guests cannot have root's rights").WithHint("name another user in mulligand.toml: [guests] user")
	}
	return acc, err
}

// ownerOf is who an app will belong to: the caller, or whom root names.
func (d *Daemon) ownerOf(who ipc.Caller, spec ipc.App) (name string, uid int, err error) {
	id, forGuest := strings.CutPrefix(spec.Owner, guestPrefix)
	switch {
	case who.Guest != "" && (spec.Owner == "" || spec.Owner == guestPrefix+who.Guest):
		return guestPrefix + who.Guest, who.UID, nil
	case forGuest && d.administers(who):
		if !guestSyntax.MatchString(id) {
			return "", 0, errs.New(errs.Invalid, "", "%.64q is not a guest's id", id)
		}
		acc, err := d.guestAccount()
		return spec.Owner, acc.uid, err
	case who.Guest != "" || forGuest:
		return "", 0, errs.New(errs.Denied, "", "only root registers apps for others").WithHint("leave out the owner")
	case d.opt.User:
		return userName(os.Getuid()), os.Getuid(), nil
	case spec.Owner == "":
		name, err = accountName(who.UID)
		return name, who.UID, err
	}
	acc, err := lookup(spec.Owner)
	if err != nil {
		return "", 0, err
	}
	if who.UID != 0 && acc.uid != who.UID {
		return "", 0, errs.New(errs.Denied, "", "only root registers apps for others").WithHint("leave out the owner")
	}
	name, err = accountName(acc.uid)
	return name, acc.uid, err
}

// accountOf is whose rights an app's processes have, and its databases are
// reached with.
func (d *Daemon) accountOf(rec store.App) (account, error) {
	if d.opt.User {
		return account{uid: -1, gid: -1}, nil // the daemon's own
	}
	if err := d.checkOwner(rec); err != nil {
		return account{}, err
	}
	if _, guest := guestOf(rec); guest {
		return d.guestAccount()
	}
	if rec.Owner == strconv.Itoa(rec.OwnerUID) { // a uid without an account is a user, too
		return account{uid: rec.OwnerUID, gid: noGroup, home: "/"}, nil
	}
	acc, err := lookup(rec.Owner)
	if err == nil && acc.uid != rec.OwnerUID { // it changed just now, or two accounts have that name
		err = errs.New(errs.Denied, "", "owner %s had uid %d, and now has uid %d", rec.Owner, rec.OwnerUID, acc.uid)
	}
	return acc, err
}

// noGroup is the gid of nobody's group (nogroup on Debian, nobody elsewhere).
const noGroup = 65534

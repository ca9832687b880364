// Package accounts knows users: what accounts the host has, whose apps are, what each
// caller may do and how much of it, and whether a uid still is whose it was.
//
// On the socket a caller is the uid that the kernel names; on TCP it is
// the owner of a token or of a page's session, or a guest. An app belongs to a
// uid, or to a guest, whose apps run with the rights of one uid that all guests
// share. Root sees everything; so does, at a user's own daemon, that user.
// To everybody else what they do not own is not there.
package daemon

import (
	"os"
	"regexp"
	"strconv"
	"strings"

	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Owners knows whose apps are, and what callers may do. Safe for concurrent use.
type Owners struct {
	opt *settings.Options
}

// NewOwners returns the owners of a daemon that runs with opt.
func NewOwners(opt *settings.Options) *Owners { return &Owners{opt} }

// administers reports whether the caller may do what root may. A token keeps
// root's place in this: its scopes are what narrows it.
func (o *Owners) administers(who ipc.Caller) bool {
	return who.Guest == "" && (o.opt.User || who.UID == 0)
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

// guest finds the caller that a guest's id stands for.
func (o *Owners) guest(id string) (ipc.Caller, error) {
	if !guestSyntax.MatchString(id) {
		return ipc.Caller{}, errs.New(errs.Unauthenticated, "admit", "this is not a guest's id").
			WithHint("send as X-Guest-Id up to 128 letters, digits, dots, - and _, too random to be guessed")
	}
	acc, err := o.guestAccount()
	if err != nil {
		return ipc.Caller{}, err
	}
	return ipc.Caller{UID: acc.uid, GID: acc.gid, Guest: id, Via: "guest"}, nil
}

func (o *Owners) guestAccount() (account, error) {
	if o.opt.User {
		return account{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	if o.opt.Guests == nil {
		return account{}, errs.New(errs.Unsupported, "", "there are no guests here").WithHint("allow them in mulligand.toml: [guests] allow = true")
	}
	acc, err := lookup(o.opt.Guests.User)
	if err == nil && acc.uid == 0 {
		err = errs.New(errs.Denied, "", "guests cannot have root's rights").WithHint("name another user in mulligand.toml: [guests] user")
	}
	return acc, err
}

// ownerOf is who an app will belong to: the caller, or whom root names.
func (o *Owners) ownerOf(who ipc.Caller, spec ipc.App) (name string, uid int, err error) {
	id, forGuest := strings.CutPrefix(spec.Owner, guestPrefix)
	switch {
	case who.Guest != "" && (spec.Owner == "" || spec.Owner == guestPrefix+who.Guest):
		return guestPrefix + who.Guest, who.UID, nil
	case forGuest && o.administers(who):
		if !guestSyntax.MatchString(id) {
			return "", 0, errs.New(errs.Invalid, "", "%.64q is not a guest's id", id)
		}
		acc, err := o.guestAccount()
		return spec.Owner, acc.uid, err
	case who.Guest != "" || forGuest:
		return "", 0, errs.New(errs.Denied, "", "only root registers apps for others").WithHint("leave out the owner")
	case o.opt.User:
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
func (o *Owners) accountOf(rec store.App) (account, error) {
	if o.opt.User {
		return account{uid: -1, gid: -1}, nil // the daemon's own
	}
	if err := o.checkOwner(rec); err != nil {
		return account{}, err
	}
	if _, guest := guestOf(rec); guest {
		return o.guestAccount()
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

// Package accounts knows users: which accounts the host has, who owns which app, what each
// caller may do and how much, and whether a uid still belongs to the same account.
//
// On the socket a caller is the uid that the kernel names; on TCP it is
// the owner of a token or of a page's session, or a guest. An app belongs to a
// uid, or to a guest, whose apps run with the rights of one uid that all guests
// share. Root sees everything; at a user's own daemon, that user does.
// For everybody else, an app that they do not own does not exist.
package accounts

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

// Owners decides who owns which app and what callers may do. Safe for concurrent use.
type Owners struct {
	opt *settings.Options
}

// New returns the Owners of a daemon that runs with opt.
func New(opt *settings.Options) *Owners { return &Owners{opt} }

// Administers reports whether the caller may do what root may. A token of root's counts as root;
// its scopes limit it.
func (o *Owners) Administers(who ipc.Caller) bool {
	return who.Guest == "" && (o.opt.User || who.UID == 0)
}

const guestPrefix = "guest:"

// GuestOf returns the id of the guest that owns an app, or "" if a user owns it.
func GuestOf(rec store.App) (id string, ok bool) {
	if id, ok = strings.CutPrefix(rec.Owner, guestPrefix); !ok {
		return "", false
	}
	return id, true
}

var guestSyntax = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Guest returns the caller for a guest's id.
func (o *Owners) Guest(id string) (ipc.Caller, error) {
	if !guestSyntax.MatchString(id) {
		return ipc.Caller{}, errs.New(errs.Unauthenticated, "admit", "this is not a guest's id").
			WithHint("send as X-Guest-Id up to 128 letters, digits, dots, - and _, too random to be guessed")
	}
	acc, err := o.guestAccount()
	if err != nil {
		return ipc.Caller{}, err
	}
	return ipc.Caller{UID: acc.UID, GID: acc.GID, Guest: id, Via: "guest"}, nil
}

func (o *Owners) guestAccount() (Account, error) {
	if o.opt.User {
		return Account{UID: os.Getuid(), GID: os.Getgid()}, nil
	}
	if o.opt.Guests == nil {
		return Account{}, errs.New(errs.Unsupported, "", "this daemon does not allow guests").WithHint("allow them in mulligand.toml: [guests] allow = true")
	}
	acc, err := Lookup(o.opt.Guests.User)
	if err == nil && acc.UID == 0 {
		err = errs.New(errs.Denied, "", "guests cannot have root's rights").WithHint("name another user in mulligand.toml: [guests] user")
	}
	return acc, err
}

// OwnerOf returns the owner of an app to be registered: the caller, or the owner that root names.
func (o *Owners) OwnerOf(who ipc.Caller, spec ipc.App) (name string, uid int, err error) {
	id, forGuest := strings.CutPrefix(spec.Owner, guestPrefix)
	switch {
	case who.Guest != "" && (spec.Owner == "" || spec.Owner == guestPrefix+who.Guest):
		return guestPrefix + who.Guest, who.UID, nil
	case forGuest && o.Administers(who):
		if !guestSyntax.MatchString(id) {
			return "", 0, errs.New(errs.Invalid, "", "%.64q is not a guest's id", id)
		}
		acc, err := o.guestAccount()
		return spec.Owner, acc.UID, err
	case who.Guest != "" || forGuest:
		return "", 0, errs.New(errs.Denied, "", "only root registers apps for others").WithHint("leave out the owner")
	case o.opt.User:
		return UserName(os.Getuid()), os.Getuid(), nil
	case spec.Owner == "":
		name, err = AccountName(who.UID)
		return name, who.UID, err
	}
	acc, err := Lookup(spec.Owner)
	if err != nil {
		return "", 0, err
	}
	if who.UID != 0 && acc.UID != who.UID {
		return "", 0, errs.New(errs.Denied, "", "only root registers apps for others").WithHint("leave out the owner")
	}
	name, err = AccountName(acc.UID)
	return name, acc.UID, err
}

// AccountOf returns the account with whose rights the app's processes run and its databases are
// reached.
func (o *Owners) AccountOf(rec store.App) (Account, error) {
	if o.opt.User {
		return Account{UID: -1, GID: -1}, nil // the daemon's own account
	}
	if err := o.CheckOwner(rec); err != nil {
		return Account{}, err
	}
	if _, guest := GuestOf(rec); guest {
		return o.guestAccount()
	}
	if rec.Owner == strconv.Itoa(rec.OwnerUID) { // a user may be a uid without an account
		return Account{UID: rec.OwnerUID, GID: noGroup, Home: "/"}, nil
	}
	acc, err := Lookup(rec.Owner)
	if err == nil && acc.UID != rec.OwnerUID { // the account changed just now, or two accounts have this name
		err = errs.New(errs.Denied, "", "owner %s had uid %d, and now has uid %d", rec.Owner, rec.OwnerUID, acc.UID)
	}
	return acc, err
}

// noGroup is the gid of nobody's group (nogroup on Debian, nobody elsewhere).
const noGroup = 65534

package accounts

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// A uid may be given to another account (usermod -u; userdel and
// useradd), which must not get at what the daemon keeps for the first. So an app
// records both the uid of its owner and the name that this uid had. Whenever the
// two do not belong together, only root can see the app, and nothing of it
// runs, until root says whose it is. The same holds while the user database
// does not answer.

// AccountName returns the name that a uid has now, or its digits if it has no account.
func AccountName(uid int) (string, error) {
	id := strconv.Itoa(uid)
	u, err := user.LookupId(id)
	var none user.UnknownUserIdError
	switch {
	case err == nil:
		return u.Username, nil
	case errors.As(err, &none):
		return id, nil
	}
	return "", errs.New(errs.Unavailable, "look up user", "the user database does not answer for uid %d: %v", uid, err).
		WithHint("make the host's user database answer (getent passwd %d), and try again", uid)
}

// checkOwnership checks that uid still belongs to the account that had this name. It returns
// errs.Denied if the uid or the name belongs to another account now, and errs.Unavailable if that
// may pass by itself.
func checkOwnership(name string, uid int) error {
	now, err := AccountName(uid)
	if err != nil {
		return err
	}
	if now == name {
		return nil
	}
	if now != strconv.Itoa(uid) {
		return errs.New(errs.Denied, "", "owner %s had uid %d, and now %s has it", name, uid, now)
	}
	if acc, err := Lookup(name); err == nil && acc.UID != uid {
		return errs.New(errs.Denied, "", "owner %s had uid %d, and now has uid %d", name, uid, acc.UID)
	}
	return errs.New(errs.Unavailable, "", "owner %s had uid %d, and now no account has it", name, uid)
}

// CheckOwner returns an error if the account of an app's owner changed since the registration.
func (o *Owners) CheckOwner(rec store.App) error {
	if o.opt.User {
		return nil // at a user's own daemon, all apps are that user's
	}
	if _, guest := GuestOf(rec); guest {
		if o.opt.Guests == nil {
			return nil // guests are switched off
		}
		acc, err := o.guestAccount()
		if err == nil && acc.UID != rec.OwnerUID {
			err = errs.New(errs.Denied, "", "guests' apps had uid %d, and now have uid %d", rec.OwnerUID, acc.UID).
				WithHint("set [guests] user in mulligand.toml back, or remove the app: `mulligan app remove %s`", rec.ID)
		}
		return err
	}
	err := checkOwnership(rec.Owner, rec.OwnerUID)
	if e := (*errs.Error)(nil); errors.As(err, &e) && e.Hint == "" {
		e.Hint = "if the uid still belongs to the same person: `mulligan app set --app " + string(rec.ID) + " owner=NAME`, as root; " +
			"else give the uid back (usermod -u), or remove the app: `mulligan app remove " + string(rec.ID) + "`"
	}
	return err
}

// CallerName returns the name under which a caller owns apps.
func (o *Owners) CallerName(who ipc.Caller) (string, error) {
	switch {
	case who.Guest != "":
		return guestPrefix + who.Guest, nil
	case o.opt.User:
		return UserName(who.UID), nil
	}
	return AccountName(who.UID)
}

// CheckCaller returns errs.Unauthenticated if the caller's token or page session was made for an
// account that had the uid before.
func (o *Owners) CheckCaller(who ipc.Caller) error {
	if o.opt.User || who.Name == "" || checkOwnership(who.Name, who.UID) == nil {
		return nil
	}
	return errs.New(errs.Unauthenticated, "serve", "the account that this token or session was made for no longer exists").
		WithHint("make another token (`mulligan token add`), or open the page again (`mulligan ui`)")
}

// CallerAccount returns the account whose rights a caller has on this host. A process may have a
// uid without an account.
func (o *Owners) CallerAccount(who ipc.Caller) Account {
	if who.Guest != "" || o.opt.User {
		return Account{UID: -1, GID: -1}
	}
	if acc, err := Lookup(UserName(who.UID)); err == nil && acc.UID == who.UID {
		return acc
	}
	return Account{UID: who.UID, GID: noGroup}
}

// Actor describes a caller for people.
func Actor(c ipc.Caller) string {
	name := UserName(c.UID)
	switch {
	case c.Guest != "":
		return "guest " + c.Guest
	case c.Via != "":
		return fmt.Sprintf("%s (%s)", name, c.Via)
	case c.PID == 0:
		return name
	}
	if c.Exe == "" {
		return fmt.Sprintf("%s (pid %d)", name, c.PID)
	}
	return fmt.Sprintf("%s (pid %d, %s)", name, c.PID, filepath.Base(c.Exe))
}

// Self returns the daemon itself as a caller.
func Self() ipc.Caller {
	return ipc.Caller{UID: os.Geteuid(), PID: os.Getpid(), Exe: "mulligand"}
}

// VisibleTo returns a function that reports whether the caller may see an app. VisibleTo may ask
// the host's user database, so the caller must hold no lock that others wait for.
func (o *Owners) VisibleTo(who ipc.Caller) func(store.App) bool {
	all := o.Administers(who)
	name := ""
	if !all {
		name, _ = o.CallerName(who) // on an error the name is "", which owns nothing
	}
	return func(rec store.App) bool {
		if !who.MayTouch(rec.ID) {
			return false
		}
		return all || name != "" && rec.Owner == name && rec.OwnerUID == who.UID
	}
}

package accounts

import (
	"os/user"
	"strconv"

	"mulligan/errs"
	"mulligan/privsep"
)

// UserName returns the name of a uid, or its digits if it has no name.
func UserName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// Account is the user, with groups, that a process runs as.
type Account struct {
	UID, GID int
	Groups   []int
	Home     string
}

// Lookup returns the account of a user, given by name or by uid in digits.
func Lookup(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return Account{}, errs.New(errs.Invalid, "look up user", "no user %.64q on this host", name)
		}
	}
	acc := Account{Home: u.HomeDir}
	if acc.UID, err = strconv.Atoi(u.Uid); err != nil {
		return Account{}, err
	}
	if acc.GID, err = strconv.Atoi(u.Gid); err != nil {
		return Account{}, err
	}
	ids, err := u.GroupIds()
	if err != nil {
		return Account{}, err
	}
	for _, id := range ids {
		if g, err := strconv.Atoi(id); err == nil {
			acc.Groups = append(acc.Groups, g)
		}
	}
	return acc, nil
}

// User returns the account as an identity for package privsep.
func (a Account) User() privsep.User {
	if a.UID < 0 {
		return privsep.Self
	}
	return privsep.User{UID: a.UID, GID: a.GID, Groups: a.Groups}
}

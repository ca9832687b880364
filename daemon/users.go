package daemon

import (
	"os/user"
	"strconv"

	"mulligan/errs"
	"mulligan/privsep"
)

// userName is the name of a uid, or its digits where it has none.
func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// account is what a process that works for a user runs with.
type account struct {
	uid, gid int
	groups   []int
	home     string
}

// lookup finds the account of a user's name, or of a uid in digits.
func lookup(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return account{}, errs.New(errs.Invalid, "look up user", "no user %.64q on this host", name)
		}
	}
	acc := account{home: u.HomeDir}
	if acc.uid, err = strconv.Atoi(u.Uid); err != nil {
		return account{}, err
	}
	if acc.gid, err = strconv.Atoi(u.Gid); err != nil {
		return account{}, err
	}
	ids, err := u.GroupIds()
	if err != nil {
		return account{}, err
	}
	for _, id := range ids {
		if g, err := strconv.Atoi(id); err == nil {
			acc.groups = append(acc.groups, g)
		}
	}
	return acc, nil
}

// user is the account as the identity of processes.
func (a account) user() privsep.User {
	if a.uid < 0 {
		return privsep.Self
	}
	return privsep.User{UID: a.uid, GID: a.gid, Groups: a.groups}
}

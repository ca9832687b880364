package redis

import "mulligan/errs"

// Limits in bytes of the data from a server. Strings, fields of hashes and elements of lists are digested as they arrive, and
// never completely in memory. Data that must be sorted goes to a file if it exceeds the memory limit of package extsort.
const (
	maxReply  = 1 << 20  // an answer and its elements in memory; a snapshot is read in other ways
	maxString = 1 << 30  // a string: twice the servers' default limit
	maxName   = 3 << 20  // a key, a member of a set, or a field of a hash
	maxPacked = 16 << 20 // a list, set or hash in one packed string, which servers limit to some KiB
	perItem   = 64       // cost of an element of an answer besides its bytes
)

func tooLong(what string, most int64) error {
	return errs.New(errs.Unsupported, "", "the server sent %s of more than %d MiB", what, most>>20).
		WithHint("is it the right server? if so, make it smaller")
}

var (
	errTooLong    = tooLong("a string", maxString)
	errLongName   = tooLong("a key, a member or a field", maxName)
	errLongPacked = tooLong("a packed value", maxPacked)
	errLongReply  = tooLong("an answer", maxReply)
)

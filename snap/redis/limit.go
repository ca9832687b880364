package redis

import "mulligan/errs"

// Limits of what a server may send, in bytes. Strings, fields of hashes and elements of lists are digested
// as they arrive, never held whole; data that must be sorted goes to a file if it exceeds package extsort's
// memory.
const (
	maxReply  = 1 << 20  // an answer, with what it takes to hold it; a snapshot is read elsewhere
	maxString = 1 << 30  // twice what a server allows by default
	maxName   = 3 << 20  // a key, a member of a set, a field of a hash
	maxPacked = 16 << 20 // a list, set or hash in one packed string; servers make them of some KiB
	perItem   = 64       // what an element of an answer costs beside its bytes
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

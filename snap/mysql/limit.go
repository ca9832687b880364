package mysql

import (
	"mulligan/errs"
)

// Limits of the data from a server. Rows of tables are digested and stored as they arrive, and never completely in memory.
// Everything else is kept in memory, within these limits.
const (
	maxLogin   = 64 << 10 // bytes of a packet before the login is done
	maxLogins  = 64       // packets before the login is done
	maxHead    = 1 << 20  // bytes of a packet that is not part of a row or of a login
	maxColumns = 4096     // columns of an answer: the servers' own limit for a table
	maxAnswer  = 32 << 20 // bytes of memory for the rows of an answer, except rows of tables
	maxKept    = 32 << 20 // bytes of all definitions of a database together, as they are stored
	maxRow     = 1<<30 + 1<<20
	maxNumber  = 4 << 10 // bytes of a number, as text

	perRow, perField = 24, 24 // bytes of memory for a row and for a field besides their content
	minColumns       = 8      // least columns of an answer in memory: no statement asks for more
)

func tooLong(what string, most int64) *errs.Error {
	size, unit := most>>10, "KiB"
	if size >= 1<<10 {
		size, unit = size>>10, "MiB"
	}
	return errs.New(errs.Unsupported, "", "the server sent %s of more than %d %s", what, size, unit).
		WithHint("is it the right server? if so, divide the database into several")
}

// kept counts the bytes of a database's definitions in the JSON encoding, where some characters take six bytes.
type kept int

func (k *kept) add(texts ...string) error {
	for _, text := range texts {
		*k += 64
		for _, c := range []byte(text) {
			switch {
			case c < ' ', c >= 0x7f, c == '<', c == '>', c == '&':
				*k += 6
			default:
				*k++
			}
		}
	}
	if *k > maxKept {
		return tooLong("definitions", maxKept)
	}
	return nil
}

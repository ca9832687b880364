package mysql

import (
	"mulligan/errs"
)

// Limits of what a server may send. Rows of tables are digested and stored as they arrive, never held
// whole; everything else is held in memory, within these limits.
const (
	maxLogin   = 64 << 10 // bytes of a packet before the login is done
	maxLogins  = 64       // packets before it is done
	maxHead    = 1 << 20  // bytes of a packet that belongs neither to a row nor to a login
	maxColumns = 4096     // of an answer: the servers' own limit for a table
	maxAnswer  = 32 << 20 // memory for the rows of an answer, except tables' rows
	maxKept    = 32 << 20 // bytes of all definitions together, as they are stored
	maxRow     = 1<<30 + 1<<20
	maxNumber  = 4 << 10 // bytes of a number, as text

	perRow, perField = 24, 24 // memory of a row and of a field beside their bytes
	minColumns       = 8      // of an answer held in memory: no statement here asks for more
)

func tooLong(what string, most int64) *errs.Error {
	size, unit := most>>10, "KiB"
	if size >= 1<<10 {
		size, unit = size>>10, "MiB"
	}
	return errs.New(errs.Unsupported, "", "the server sent %s of more than %d %s", what, size, unit).
		WithHint("is it the right server? if so, divide the database into several")
}

// kept counts the bytes of a database's definitions, in the JSON encoding, in which some characters
// take six bytes.
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

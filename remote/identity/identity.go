// Package identity makes and reads identities, with which alone what is sent to a remote can be read.
package identity

import (
	"strings"

	"filippo.io/age"

	"mulligan/errs"
)

// New returns the text of a new identity file, and its recipient.
func New() (file, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", errs.Wrap(errs.Internal, "make an identity", err)
	}
	recipient = id.Recipient().String()
	return "# recipient: " + recipient + "\n" + id.String() + "\n", recipient, nil
}

// Parse returns the identities of an identity file's text.
func Parse(text string) ([]age.Identity, error) {
	list, err := age.ParseIdentities(strings.NewReader(text))
	if err != nil { // the error may repeat the text
		return nil, errs.New(errs.Invalid, "read the identity", "the text is not that of an identity file").
			WithHint("an identity file has a line AGE-SECRET-KEY-1…, as `mulligan remote key new` writes it")
	}
	return list, nil
}

package appfile

import (
	"regexp"
	"sync"
)

// syntax is a regular expression that is compiled when it is first needed: most
// runs of the client, an agent's hooks above all, never need it.
type syntax func() *regexp.Regexp

func newSyntax(expr string) syntax {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// MatchString reports whether s is of the syntax.
func (s syntax) MatchString(text string) bool { return s().MatchString(text) }

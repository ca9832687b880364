package appfile

import (
	"regexp"
	"sync"
)

// syntax is a regular expression that is compiled on first use. Most runs of the client, especially those of hooks, never use
// it.
type syntax func() *regexp.Regexp

func newSyntax(expr string) syntax {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// MatchString reports whether s matches the expression.
func (s syntax) MatchString(text string) bool { return s().MatchString(text) }

package rollback

import "fmt"

// warnings collects what the caller of an operation should know although it is no error. All
// pieces of one operation add to the same list. Not safe for concurrent use.
type warnings struct{ list []string }

// add appends one warning.
func (w *warnings) add(format string, args ...any) {
	w.list = append(w.list, fmt.Sprintf(format, args...))
}

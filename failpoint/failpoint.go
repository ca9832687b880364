// Package failpoint names the steps of an operation, so that a test can make the operation fail, or kill its process, at each step.
package failpoint

// Hook is called with the name of each step of an operation before that step; the step fails with the error that Hook returns. Tests set it. The
// nil Hook, which production code uses, does nothing.
type Hook func(step string) error

// At calls the hook with step and returns its error.
func (h Hook) At(step string) error {
	if h == nil {
		return nil
	}
	return h(step)
}

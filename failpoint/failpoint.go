// Package failpoint names the steps of an operation, so that a test can make the operation fail, or kill its process, at each step.
package failpoint

// Hook is called before each step of an operation, with the name of the step. If the hook returns an error, the step fails with
// this error. Only tests set a hook. The nil Hook does nothing.
type Hook func(step string) error

// At calls the hook with step and returns its error.
func (h Hook) At(step string) error {
	if h == nil {
		return nil
	}
	return h(step)
}

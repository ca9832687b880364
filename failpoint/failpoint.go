// Package failpoint names the steps of an operation, so that a test can fail the operation, or kill its process, at each of them.
package failpoint

// Hook is what a test has called at each step of an operation, with the name of the step. An error of the Hook stands
// for the failure of the step. The nil Hook does nothing: production code runs with it.
type Hook func(step string) error

// At calls the hook ahead of a step, and returns its error.
func (h Hook) At(step string) error {
	if h == nil {
		return nil
	}
	return h(step)
}

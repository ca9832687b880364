package snaptest

import "mulligan/testkit"

// Long says that all is asked for, however long it takes: MULLIGAN_TEST_LONG=1.
func Long() bool { return testkit.Long() }

// EachStep calls killAt with 1, 2, 3, … until it says that there is no such step
// to be killed at, and gives that number. Unless all is asked for it leaves out two
// of three; salt says which.
func EachStep(salt int, killAt func(step int) bool) int {
	step, stride := 1, 1
	if !Long() {
		step, stride = 1+salt%3, 3
	}
	for killAt(step) {
		step += stride
	}
	return step
}

package testkit

import "os"

// Long says that all is asked for, and not a sample: make test-long sets
// MULLIGAN_TEST_LONG=1.
func Long() bool { return os.Getenv("MULLIGAN_TEST_LONG") == "1" }

package main

import (
	"path/filepath"
	"testing"

	"mulligan/testkit"
)

// fromNPM gives the node_modules of a real client of mulligan's, pinned in
// testdata/NAME; size is in MB.
func fromNPM(t *testing.T, name string, size int) string {
	t.Helper()
	return testkit.NPM(t, filepath.Join("testdata", name), size, "--omit=optional")
}

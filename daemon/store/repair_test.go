package store

import (
	"os"
	"slices"
	"testing"

	"mulligan/testkit/sysfault"
)

// TestCopyIsSynced: damaged records are kept whole before they are made anew.
func TestCopyIsSynced(t *testing.T) {
	calls := sysfault.Trace(t, func(dir string) {
		if err := os.WriteFile(dir+"/from", []byte("records"), 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(dir string) error { return copyFile(dir+"/from", dir+"/to") })
	if !slices.Contains(calls, "write to") || !slices.Contains(calls, "sync .") {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}

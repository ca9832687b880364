package remote

import (
	"path/filepath"
	"slices"
	"testing"

	"mulligan/testkit/sysfault"
)

// TestLedgerIsSynced: what a host must know of a remote is on the disk when the ledger has it.
func TestLedgerIsSynced(t *testing.T) {
	calls := sysfault.Trace(t, nil, func(dir string) error {
		l, err := openLedger(filepath.Join(dir, "ledger"), "backup")
		if err != nil {
			return err
		}
		return l.write(frame{Intent: &intent{}})
	})
	if len(calls) == 0 || !slices.Contains(calls, "write ledger") {
		t.Errorf("it did %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}

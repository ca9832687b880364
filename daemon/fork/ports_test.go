package fork

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon/store"
	"mulligan/ipc"
)

// TestAddressesOfForks: a fork that is stopped, where nothing listens, keeps its addresses.
func TestAddressesOfForks(t *testing.T) {
	fork := func(addresses ...string) (rec store.App) {
		rec.Fork = &ipc.Fork{}
		for _, a := range addresses {
			rec.Fork.Ports = append(rec.Fork.Ports, ipc.ForkPort{Port: 80, Address: a})
		}
		return rec
	}
	taken := map[string]bool{"chosen before": true}
	addForkAddresses([]store.App{{}, fork(), fork("a", "b"), fork("c")}, taken)
	if got := strings.Join(slices.Sorted(maps.Keys(taken)), " "); got != "a b c chosen before" {
		t.Errorf("taken are %q", got)
	}
}

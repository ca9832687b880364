package layer

import (
	"strings"
	"testing"

	"mulligan/engine"
	"mulligan/errs"
)

// TestSocketFits has volumes whose folders have longer and longer paths: that of the socket of a server is refused as soon as it would not fit.
func TestSocketFits(t *testing.T) {
	t.Parallel()
	for n := 1; n < 120; n++ {
		v := engine.Volume{Name: strings.Repeat("v", n)}
		v.Dir = "/var/lib/docker/volumes/" + v.Name + "/_data"
		err := socketFits(v)
		socket := "/var/lib/docker/mulligan/" + v.Name + "/sock/.s.PGSQL.5432"
		if fits := len(socket) <= 99; fits != (err == nil) { // the kernel allows 107 bytes, and beside the socket lies its lock
			t.Errorf("%d bytes: %v", len(socket), err)
		}
		if err != nil && (errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), "/var/lib/docker/mulligan/"+v.Name+"/sock") || errs.HintOf(err) == "") {
			t.Errorf("%v", err)
		}
	}
}

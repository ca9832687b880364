package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/engine/enginetest"
	"mulligan/testkit"
)

// otherPostgres returns the /usr of a Debian whose PostgreSQL has another major version than the host's.
func otherPostgres(t *testing.T) (usr, major string) {
	t.Helper()
	for _, r := range [][2]string{{"17", "trixie"}, {"15", "bookworm"}} {
		major, release := r[0], r[1]
		if _, err := os.Stat("/usr/lib/postgresql/" + major); err == nil {
			continue
		}
		root := testkit.Debian(t, release, "postgresql-"+major, "dash", "bash", "coreutils", "util-linux", "grep", "sed")
		return filepath.Join(root, "usr"), major
	}
	t.Fatal("the host has every version of PostgreSQL that the test could take")
	return "", ""
}

// TestLongContainersOtherPostgres takes a compose project back and forward, whose PostgreSQL has a version of which the host has no programs: on each
// engine, and by each way in which a database is captured. Daemons, containers and engines are killed meanwhile.
func TestLongContainersOtherPostgres(t *testing.T) {
	t.Parallel()
	testkit.NeedLong(t)
	usr, major := otherPostgres(t)
	edits := []string{`["/usr:/usr:ro", "rows:/data"]`, `["` + usr + `:/usr:ro", "rows:/data"]`}
	for _, kind := range enginetest.Kinds {
		for _, by := range []string{byFiles, byDumps, byLog} {
			t.Run(fmt.Sprintf("%s by %s", kind, by), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, kind, by, slices.Concat(edits, logged)...)
				if v := s.sql("SHOW server_version"); !strings.HasPrefix(v, major+".") {
					t.Fatalf("the server has version %s, not %s", v, major)
				}
				s.travel(4)
				s.killed(4, s.allSteps())
			})
		}
	}
}

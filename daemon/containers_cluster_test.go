package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mulligan/engine/enginetest"
	"mulligan/ipc"
	"mulligan/testkit"
)

// logged are the edits with which the shop's PostgreSQL can be captured by its log.
var logged = []string{" -E UTF8 -N\n", " -E UTF8 -N\n          echo host all all all trust >>/data/pg/pg_hba.conf\n",
	"unix_socket_directories=/tmp\n", "unix_socket_directories=/tmp -c listen_addresses=*\n"}

// testContainersRemade has a compose tool remove the containers and volumes of an app whose database is captured through its server, or by its log, and
// make new ones.
func testContainersRemade(t *testing.T) {
	t.Parallel()
	ways := []string{byDumps, byLog}
	for _, i := range testkit.Sample(t, "engines and ways", len(ways)*len(enginetest.Kinds), 1) {
		kind, by := enginetest.Kinds[i/len(ways)], ways[i%len(ways)]
		t.Run(fmt.Sprintf("%s by %s", kind, by), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, kind, by, logged...)
			d := s.open(t)
			defer s.close(t, d)
			s.change()
			good := s.state()
			cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
			check(t, err)
			s.states[cp.ID] = good
			s.change()
			s.remade(d, cp.ID)
		})
	}
}

// testContainersCluster captures the PostgreSQL of a compose project by its log: the data folder is a folder in a volume, or a volume. A checkpoint
// copies nothing, and a rollback and its redo exchange the data folder of the same container.
func testContainersCluster(t *testing.T) {
	t.Parallel()
	cases := 2 * len(enginetest.Kinds)
	for _, i := range testkit.Sample(t, "engines and volumes", cases, 1) {
		kind, whole := enginetest.Kinds[i/2], i%2 == 1
		t.Run(fmt.Sprintf("%s %v", kind, whole), func(t *testing.T) {
			t.Parallel()
			edits := logged
			if whole {
				edits = slices.Concat(edits, wholeVolume)
			}
			s := newShop(t, kind, byLog, edits...)
			d := s.open(t)
			a, err := d.App(t.Context(), root, "shop")
			check(t, err)
			at := slices.IndexFunc(a.Containers, func(c ipc.Container) bool { return c.Cluster != nil })
			if at < 0 || a.Databases[0].Chosen != "physical" {
				t.Fatalf("%+v", a)
			}
			cluster := a.Containers[at].Cluster
			if whole != (cluster.Dir == cluster.Folder) || cluster.Volume != "shop_rows" || cluster.DataDir != "/data/pg" {
				t.Errorf("%+v", cluster)
			}
			live := func() ipc.Checkpoint {
				t.Helper()
				cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
				check(t, err)
				return cp
			}
			s.sql("CREATE TABLE load (n int)")
			good, first := s.state(), live()
			s.change()
			var took []time.Duration
			for range 2 {
				s.sql("INSERT INTO goods VALUES ('more')")
				began := time.Now()
				cp := live()
				took = append(took, time.Since(began))
				s.states[cp.ID] = s.state()
			}
			t.Logf("checkpoints took %v", took)
			bad := s.state()
			s.Run(t, string(kind), "exec", "-d", s.web, "/bin/sh", "-c", `while :; do psql -h db -U postgres -qc "INSERT INTO load VALUES (1)"; done`)
			var rows int
			testkit.Eventually(t, "the app writes", func() bool {
				_, err := fmt.Sscan(s.sql("SELECT count(*) FROM load"), &rows)
				return err == nil && rows > 5
			})
			res, err := d.Rollback(t.Context(), root, "shop", first.ID, ipc.RollbackRequest{}, nil)
			if err != nil {
				t.Fatalf("%v\n%+v", err, res)
			}
			for _, st := range res.Stages {
				t.Logf("  %-18s %6d ms  %s", st.Stage, st.DurationMS, st.Notes)
			}
			if now := s.state(); now != good {
				t.Errorf("after the rollback:\n%s", differences(good, now))
			}
			if now := s.ids(); now != s.was {
				t.Errorf("the containers are\n%s\nand were\n%s", now, s.was)
			}
			if _, err := d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil); err != nil {
				t.Fatal(err)
			}
			now := s.state()
			if left := strings.Count(now, "dump: 1\n"); left < rows {
				t.Errorf("after the redo there are %d rows of those that the app wrote, and %d were seen before", left, rows)
			}
			if now = strings.ReplaceAll(now, "dump: 1\n", ""); now != bad {
				t.Errorf("after the redo:\n%s", differences(bad, now))
			}
			if now := s.ids(); now != s.was {
				t.Errorf("the containers are\n%s\nand were\n%s", now, s.was)
			}
			s.close(t, d)
			s.killed(1, s.allSteps())
			if left := strings.TrimSpace(s.Run(t, string(kind), "ps", "-aq", "--filter", "label=mulligan.aside")); left != "" {
				t.Errorf("containers are left: %s", left)
			}
			d = s.open(t)
			defer s.close(t, d)
			store := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(cluster.Folder))), "mulligan", cluster.Volume)
			if _, err := os.Stat(store); err != nil {
				t.Error(err)
			}
			check(t, d.RemoveApp(t.Context(), root, "shop", true))
			if _, err := os.Stat(store); !os.IsNotExist(err) {
				t.Errorf("the store is left: %v", err)
			}
			if slots := s.sql("SELECT count(*) FROM pg_replication_slots"); slots != "0" {
				t.Errorf("%s replication slots are left", slots)
			}
		})
	}
}

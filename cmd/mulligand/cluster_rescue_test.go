package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// clusterVictims are apps with a cluster in the daemon's care, with and without a unit that
// serves it. Their programs do without a database if without says what to say instead.
var clusterVictims = map[string]func(t *testing.T, without string) *victim{"unit": unitsVictim, "no unit": commandsVictim}

var clusterVictimNames = slices.Sorted(maps.Keys(clusterVictims))

// TestServerStoppedOnPurpose: a turn leaves a server down that a person stopped, and its
// checkpoint says what it lacks; so does a checkpoint by hand. A rollback that takes the cluster
// along starts the server.
func testServerStoppedOnPurpose(t *testing.T) {
	for _, i := range testkit.Sample(t, "apps", len(clusterVictims), 1) {
		name := clusterVictimNames[i]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := clusterVictims[name](t, "away")
			v.turn("well", func() { v.put("one") })
			before := v.note()
			cp := ask[ipc.Checkpoint](v.d, "create", "--app", "shop")
			down := func(when string) {
				t.Helper()
				if v.serverUp() {
					t.Fatalf("%s started the server, which a person had stopped", when)
				}
			}
			v.quit()
			v.turn("without the server", func() { v.write("page.html", "two\n") })
			hooks{t, v.d, "claude-code", v.d.dir}.over()
			down("a turn")
			turn := ask[ipc.TurnList](v.d, "turns", "--app", "shop").Turns[0]
			made := ask[ipc.Checkpoint](v.d, "show", string(*turn.CheckpointID), "--app", "shop")
			if said := strings.Join(made.Warnings, "\n"); len(made.DBSnapshots) != 0 || !strings.Contains(said, "db:main is not in it") || !strings.Contains(said, "is down") {
				t.Errorf("the turn's checkpoint has %d databases, and says %q", len(made.DBSnapshots), said)
			}
			_, said, code := v.d.mulligan("create", "--app", "shop")
			if code == 0 || !strings.Contains(said, "is down") || !strings.Contains(said, "start it") {
				t.Errorf("a checkpoint by hand ends with %d and says %q", code, said)
			}
			down("a checkpoint by hand")
			v.d.must("rollback", string(cp.ID), "--app", "shop", "--dry-run")
			down("a dry run")
			v.d.must("rollback", string(cp.ID), "--app", "shop", "--scope", "layer:files")
			down("a rollback of the files")
			v.d.must("redo", "--app", "shop")
			v.rescue("undo")
			down("the turn's undo")
			if got := v.answers(); got != "page one, database away\n" {
				t.Errorf("undone, the app says %q", got)
			}
			v.d.must("rollback", string(cp.ID), "--app", "shop")
			v.is("rolled back with the cluster", before)
			v.sound()
		})
	}
}

// TestRescueAfterRestart: a cluster's data folder is deleted, or emptied, and then the daemon
// starts. It says what is wrong, and one undo brings the app back.
func testRescueAfterRestart(t *testing.T) {
	ways := []struct {
		name   string
		breaks func(*victim)
	}{{"deleted", folderDeleted}, {"deleted under the server", folderDeletedUnder}, {"emptied", folderEmptied}}
	for _, i := range testkit.Sample(t, "apps and ways to break them", len(clusterVictims)*len(ways), 1) {
		name, way := clusterVictimNames[i/len(ways)], ways[i%len(ways)]
		t.Run(name+", "+way.name, func(t *testing.T) {
			t.Parallel()
			v := clusterVictims[name](t, "")
			v.turn("well", func() { v.put("one") })
			before := v.note()
			v.turn("badly", func() { way.breaks(v) })
			cluster := v.clusterFiles()
			v.d.kill()
			v.d.start()
			eventually(t, "the status says what is wrong", func() bool {
				return strings.Contains(strings.Join(ask[ipc.Status](v.d, "status").Problems, "\n"), "db:main")
			})
			v.rescue("undo")
			v.is("undone", before)
			v.sound()
			v.rescue("redo")
			sameListing(t, "redone, the cluster", v.clusterFiles(), cluster)
			v.d.kill()
			v.d.start()
			v.rescue("undo")
			v.is("undone again", before)
			v.sound()
		})
	}
}

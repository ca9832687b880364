package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

// rescues is what agents break, with the app that they break it in.
var rescues = []struct {
	name   string
	app    func(*testing.T) *victim
	breaks func(*victim)
}{
	{"a unit that was given up", unitVictim(givenUp), func(v *victim) {
		v.badCode()
		v.unitBecomes("failed", "restart")
	}},
	{"a unit in a crash loop", unitVictim(looping), func(v *victim) {
		v.badCode()
		v.unitBecomes("activating", "restart", "--no-block")
	}},
	{"a unit that failed once", unitVictim(once), func(v *victim) {
		v.badCode()
		v.unitBecomes("failed", "restart")
	}},
	{"a command that failed", commandVictim, func(v *victim) {
		v.badCode()
		v.killApp()
		eventually(v.t, "the command is given up", func() bool {
			app, err := v.d.client.App(v.t.Context(), "shop")
			return err == nil && app.State == "failed"
		})
	}},
	{"a command in a crash loop", commandVictim, func(v *victim) {
		v.badCode()
		v.killApp()
	}},
	{"text over the SQLite file", commandVictim, func(v *victim) {
		v.shell(`rm -f shop.db-wal shop.db-shm; echo 'SELECT 1; -- oops' >shop.db`)
	}},
	{"text over the SQLite file, its companions left", commandVictim, func(v *victim) {
		v.shell(`echo 'SELECT 1; -- oops' >shop.db`)
		v.killApp()
	}},
	{"zeros in the middle of the SQLite file", commandVictim, func(v *victim) {
		v.sql("PRAGMA wal_checkpoint(TRUNCATE)")
		v.shell(`dd if=/dev/zero of=shop.db bs=4096 seek=1 count=2 conv=notrunc status=none`)
	}},
	{"the SQLite file cut off", commandVictim, func(v *victim) { v.shell(`truncate -s 100 shop.db; rm -f shop.db-*`); v.killApp() }},
	{"the SQLite file cut off while the app uses it", commandVictim, func(v *victim) {
		v.shell(`truncate -s 100 shop.db; rm -f shop.db-*`)
	}},
	{"the SQLite file deleted", commandVictim, func(v *victim) { v.shell(`rm -f shop.db*`); v.killApp() }},
	{"a folder in place of the SQLite file", commandVictim, func(v *victim) {
		v.shell(`rm -f shop.db*; mkdir shop.db; echo '{}' >shop.db/config.json`)
		v.killApp()
	}},
	{"a link in place of the SQLite file", commandVictim, func(v *victim) {
		v.shell(`mv shop.db ../moved.db; rm -f shop.db-*; ln -s ../moved.db shop.db`)
		v.killApp()
	}},
	{"Postgres stopped", physicalVictim, serverStopped},
	{"Postgres killed", physicalVictim, func(v *victim) { v.systemctl("kill", "-s", "KILL", "pg.service") }},
	{"Postgres with a configuration that it does not start with", physicalVictim, badConfiguration},
	{"Postgres without its control file", physicalVictim, noControlFile},
	{"Postgres without its data folder", physicalVictim, folderDeleted},
	{"Postgres whose data folder was deleted under it", physicalVictim, folderDeletedUnder},
	{"Postgres with an empty data folder", physicalVictim, folderEmptied},
	{"Postgres without a unit, stopped", ownedVictim, serverStopped},
	{"Postgres without a unit, with a configuration that it does not start with", ownedVictim, badConfiguration},
	{"Postgres without a unit and its control file", ownedVictim, noControlFile},
	{"Postgres without a unit and its data folder", ownedVictim, folderDeleted},
	{"Postgres without a unit, whose data folder was deleted under it", ownedVictim, folderDeletedUnder},
	{"Postgres without a unit, with an empty data folder", ownedVictim, folderEmptied},
	{"Redis emptied", redisVictim, func(v *victim) { v.quit(); v.begin() }},
	{"the workspace emptied", commandVictim, func(v *victim) { v.shell(`find . -mindepth 1 -delete`) }},
	{"the workspace deleted", commandVictim, func(v *victim) { v.shell(`cd / && rm -r "$1"`, v.ws) }},
	{"the workspace made anew", commandVictim, func(v *victim) { v.shell(`cd / && rm -r "$1" && mkdir "$1"`, v.ws) }},
	{"the workspace of a unit emptied", unitVictim(givenUp), func(v *victim) {
		v.shell(`find . -mindepth 1 -delete`)
		v.unitBecomes("failed", "restart")
	}},
	{".git deleted", commandVictim, func(v *victim) { v.shell(`rm -r .git; echo zwei >page.html`) }},
}

// What agents do to a cluster.
func serverStopped(v *victim) { v.quit() }

func badConfiguration(v *victim) {
	v.shell(`echo 'shared_buffers = lots' >>"$1/postgresql.conf"`, v.c.DataDir)
	v.restartInVain()
}

func noControlFile(v *victim) {
	v.quit()
	v.shell(`rm "$1/global/pg_control"`, v.c.DataDir)
	v.restartInVain()
}

func folderDeleted(v *victim) {
	v.quit()
	v.shell(`rm -r "$1"`, v.c.DataDir)
	v.restartInVain()
}

func folderDeletedUnder(v *victim) { v.shell(`rm -rf "$1"; :`, v.c.DataDir) }

func folderEmptied(v *victim) {
	v.quit()
	v.shell(`rm -r "$1"/*`, v.c.DataDir)
}

// restartInVain has whoever serves the cluster try to start it again, which fails.
func (v *victim) restartInVain() {
	v.t.Helper()
	if v.h != nil {
		v.h.Exec("systemctl", "restart", "pg.service")
	} else {
		_ = v.c.Command("pg_ctl", "restart", "-w", "-s", "-D", v.c.DataDir, "-l", v.c.Log).Run()
	}
	if v.serverUp() {
		v.t.Fatal("the ruined cluster has a server")
	}
}

func (v *victim) shell(script string, args ...string) {
	v.t.Helper()
	shell(v.t, v.ws, script, args...)
}

// badCode makes of the app's program one that ends at once.
func (v *victim) badCode() { v.write("serve.sh", "#!/bin/sh\nexit 3\n") }

// killApp ends the processes of the app.
func (v *victim) killApp() {
	v.shell(`for p in /proc/[0-9]*; do tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -q "serve-shop $1 " && kill -9 "${p#/proc/}"; done; :`, v.addr)
}

// unitBecomes does something to the unit, and waits for what comes of it.
func (v *victim) unitBecomes(active string, do ...string) {
	v.t.Helper()
	v.h.Exec(append(append([]string{"systemctl"}, do...), "shop.service")...) // it may well fail
	eventually(v.t, "the unit is "+active, func() bool {
		out, _ := v.h.Exec("systemctl", "is-active", "shop.service")
		return strings.TrimSpace(string(out)) == active
	})
}

// TestRescue breaks apps as agents do, in four or five ways of all, which rotate. One undo takes the app to what it was before
// that turn, answering; redo takes it to just what the agent left; and another
// undo back.
func TestRescue(t *testing.T) {
	for _, i := range testkit.Sample(t, "ways to break an app", len(rescues), 3) {
		c := rescues[i]
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := c.app(t)
			v.turn("well", func() { v.put("one") })
			before, whole := v.note(), v.ruins()
			v.turn("badly", func() {
				c.breaks(v)
				if got := v.answer(); got == before.answer && slices.Equal(v.ruins(), whole) {
					t.Fatalf("nothing is broken: the app says %q", got)
				}
			})
			ruins := v.ruins()
			var cluster []string // of one that is ruined; else the redo finds a server that is up
			if v.c != nil && !v.serverUp() && !v.startable() {
				cluster = v.clusterFiles()
			}
			v.rescue("undo")
			v.is("undone", before)
			v.sound()
			if c.name != "the SQLite file cut off while the app uses it" { // it would not start, and ran then
				v.rescue("redo")
				sameListing(t, "redone", v.ruins(), ruins)
				if cluster != nil {
					sameListing(t, "redone, the cluster", v.clusterFiles(), cluster)
				} else if v.c != nil && v.dump() != before.data {
					t.Error("redone, the database is not what the agent left")
				}
				v.rescue("undo")
				v.is("undone again", before)
				v.sound()
			}
			said := v.rescue("undo") // of the turn before
			if got := v.answers(); got != "page zero, database zero\n" {
				t.Errorf("two turns undone, the app says %q: %s", got, said)
			}
		})
	}
}

// startable reports whether a server that is down could be started, by a copy of its folder.
func (v *victim) startable() bool {
	v.t.Helper()
	dir := filepath.Join(filepath.Dir(v.c.DataDir), "copy")
	if err := v.c.Command("cp", "-a", "--reflink=auto", v.c.DataDir, dir).Run(); err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	ctl := func(args ...string) error { return v.c.Command("pg_ctl", append(args, "-w", "-s", "-D", dir)...).Run() }
	if ctl("start", "-l", dir+".log") != nil {
		return false
	}
	if err := ctl("stop", "-m", "immediate"); err != nil {
		v.t.Fatal(err)
	}
	return true
}

// TestRescueWithoutServer undoes a turn while a server that mulligan cannot start is
// away: the command that the error names takes back all that can be reached, and what
// was left can be taken back when the server is there again. Each run takes one of the servers.
func TestRescueWithoutServer(t *testing.T) {
	apps := map[string]func(*testing.T) *victim{"Postgres": logicalVictim, "MariaDB": mariaVictim, "Redis": redisVictim}
	names := slices.Sorted(maps.Keys(apps))
	for _, i := range testkit.Sample(t, "servers", len(names), 1) {
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			v := apps[names[i]](t)
			v.turn("well", func() { v.put("one") })
			before := v.note()
			v.turn("badly", func() {
				v.put("two")
				v.shell(`rm -r src`)
				v.quit()
			})
			v.rescue("undo")
			if got := v.answers(); got != "page one, database away\n" {
				t.Errorf("the app says %q", got)
			}
			if _, err := os.Stat(filepath.Join(v.ws, "src/d1/f1")); err != nil {
				t.Error(err)
			}
			v.begin()
			if said, code := v.try("rollback", "2", "--scope", "layer:db:main"); code != 0 { // 1 is the undo's safety checkpoint
				t.Fatal(said)
			}
			v.is("with the server, and its layer gone back to", before)
			v.sound()
		})
	}
}

// smallDisk has all that is the daemon's, and the workspace, on a small disk of its own.
func (d *daemonProcess) smallDisk(megabytes int) {
	d.t.Helper()
	if err := unix.Mount("tmpfs", d.dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=755", megabytes)); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		d.stop()
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			d.t.Error(err)
		}
	})
}

// TestRescueOnFullDisk has an agent fill the disk, in one way a run.
func TestRescueOnFullDisk(t *testing.T) {
	ways := []struct {
		name, fill string
		stopped    bool // it is full before the daemon starts
	}{
		{"in the workspace", `dd if=/dev/urandom of=src/core bs=1M 2>/dev/null || :`, false},
		{"in many files of the workspace", `for i in $(seq 2000); do head -c 100000 /dev/urandom >src/core$i || break; done 2>/dev/null`, false},
		{"elsewhere", `dd if=/dev/urandom of=../log bs=1M 2>/dev/null || :`, false},
		{"elsewhere, before mulligand starts", `cat /dev/zero 2>/dev/null >../log || :`, true},
	}
	for _, i := range testkit.Sample(t, "ways to fill it", len(ways), 1) {
		c := ways[i]
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			d.smallDisk(96)
			d.start()
			v := commandVictimOf(t, d)
			v.turn("well", func() { v.put("one") })
			before := v.note()
			v.turn("badly", func() {
				v.badCode()
				if !c.stopped {
					v.shell(c.fill)
				}
				v.killApp()
			})
			if c.stopped {
				eventually(t, "the ballast is there", func() bool {
					info, err := os.Stat(filepath.Join(d.dir, "state", "ballast"))
					return err == nil && info.Size() > 0
				})
				d.stop()
				v.shell(c.fill)
				d.start()
			}
			v.rescue("undo")
			v.is("undone", before)
			v.sound()
		})
	}
}

// TestUndoThatDiscards deletes for good what a turn made, and undoes the turn: what mulligan itself deletes was not written by others.
func TestUndoThatDiscards(t *testing.T) {
	t.Parallel()
	v := commandVictim(t)
	v.turn("well", func() { v.put("one") })
	before := v.note()
	v.turn("badly", func() {
		v.badCode()
		v.shell(`for i in 1 2 3; do echo $i >src/core$i; done`)
	})
	if said, code := v.try("undo", "--discard", "src"); code != 0 {
		t.Fatalf("%d: %s", code, said)
	}
	v.is("undone", before)
	v.sound()
}

// TestUndoAfterDiscardThatFailed undoes a turn after an undo that deleted one of two files for good and could not delete the other: what mulligan
// deleted was not deleted by others, whichever undo asks.
func TestUndoAfterDiscardThatFailed(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root", "ext4")
	v := commandVictim(t)
	v.turn("well", func() { v.put("one") })
	before := v.note()
	v.turn("badly", func() {
		v.badCode()
		v.shell(`mkdir cores && for i in 1 2; do echo $i >cores/core$i; done`)
	})
	v.shell(`chattr +i cores/core2`)
	t.Cleanup(func() { v.shell(`[ ! -e cores/core2 ] || chattr -i cores/core2`) })
	if said, code := v.try("undo", "--discard", "cores"); code == 0 || !strings.Contains(said, "delete cores/core2") {
		t.Fatalf("%d: %s", code, said)
	}
	v.shell(`test ! -e cores/core1 && chattr -i cores/core2`)
	if said, code := v.try("undo"); code != 0 {
		t.Fatalf("%d: %s", code, said)
	}
	v.is("undone", before)
	v.sound()
}

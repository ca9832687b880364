package physical

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// ruin is a way to make a cluster unstartable, as an agent might.
type ruin struct {
	name string
	down bool // the server is stopped before, else it runs on as long as it can
	do   func(t *testing.T, s *subject)
}

var ruins = []ruin{
	{"bad conf", true, func(t *testing.T, s *subject) { s.put(t, "postgresql.conf", "port = many\n") }},
	{"control file deleted", true, func(t *testing.T, s *subject) { check(t, os.Remove(s.DataDir+"/global/pg_control")) }},
	{"control file garbled", true, func(t *testing.T, s *subject) { s.put(t, "global/pg_control", strings.Repeat("garbage ", 1024)) }},
	{"no PG_VERSION", false, func(t *testing.T, s *subject) { check(t, os.Remove(s.DataDir+"/PG_VERSION")) }},
	{"log removed", true, func(t *testing.T, s *subject) { check(t, os.RemoveAll(s.DataDir+"/pg_wal")) }},
	{"folder emptied", false, func(t *testing.T, s *subject) {
		check(t, os.RemoveAll(s.DataDir))
		s.mkdir(t)
	}},
	{"folder deleted", false, func(t *testing.T, s *subject) { check(t, os.RemoveAll(s.DataDir)) }},
	{"folder moved away", false, func(t *testing.T, s *subject) { check(t, os.Rename(s.DataDir, s.DataDir+".old")) }},
	{"folder locked", true, func(t *testing.T, s *subject) { check(t, os.Chmod(s.DataDir, 0)) }},
	{"link in its place", true, func(t *testing.T, s *subject) {
		check(t, os.RemoveAll(s.DataDir))
		check(t, os.Symlink("/", s.DataDir))
		check(t, os.Lchown(s.DataDir, s.cfg.Owner.UID, s.cfg.Owner.GID))
	}},
	{"file in its place", true, func(t *testing.T, s *subject) {
		check(t, os.RemoveAll(s.DataDir))
		check(t, os.WriteFile(s.DataDir, []byte("oops"), 0o644))
		check(t, os.Lchown(s.DataDir, s.cfg.Owner.UID, s.cfg.Owner.GID))
	}},
	{"another cluster in its place", false, func(t *testing.T, s *subject) {
		check(t, os.RemoveAll(s.DataDir))
		s.initdb(t)
	}},
}

func (s *subject) put(t *testing.T, name, text string) {
	t.Helper()
	check(t, os.WriteFile(filepath.Join(s.DataDir, name), []byte(text), 0o600))
}

func (s *subject) mkdir(t *testing.T) {
	t.Helper()
	check(t, os.Mkdir(s.DataDir, 0o700))
	check(t, os.Chown(s.DataDir, s.cfg.Owner.UID, s.cfg.Owner.GID))
}

func (s *subject) initdb(t *testing.T) {
	t.Helper()
	if out, err := s.Command("initdb", "-D", s.DataDir, "--no-sync", "--wal-segsize=1").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
}

// there describes what lies where the data folder should be, by its own bytes.
func (s *subject) there(t *testing.T) string {
	t.Helper()
	sum, err := asowner.HashOf(t.Context(), s.DataDir) // the test is root
	check(t, err)
	return sum.String()
}

func TestSalvageConformance(t *testing.T) {
	t.Parallel()
	snaptest.RunSalvage(t, func(t *testing.T) snaptest.Breakable {
		s := newSubject(t, options{})
		s.mutate(t, 1000)
		return s
	})
}

// Wrecks are all ruins of which there are several, or one of them.
func (s *subject) Wrecks() (ways []string) {
	for _, how := range ruins {
		if !slices.Contains([]string{"folder deleted", "folder moved away", "no PG_VERSION"}, how.name) {
			ways = append(ways, how.name)
		}
	}
	return ways
}

func (s *subject) Wreck(t *testing.T, way string, seed int64) {
	t.Helper()
	check(t, s.driver.server.Start(t.Context()))
	check(t, s.driver.server.Stop(t.Context()))
	i := slices.IndexFunc(ruins, func(r ruin) bool { return r.name == way })
	ruins[i].do(t, s)
	info, err := os.Lstat(s.DataDir)
	check(t, err)
	switch {
	case info.IsDir():
		check(t, os.WriteFile(s.DataDir+"/seed", fmt.Append(nil, seed), 0o600))
		check(t, os.Chown(s.DataDir+"/seed", s.cfg.Owner.UID, s.cfg.Owner.GID))
	case info.Mode().IsRegular():
		check(t, os.WriteFile(s.DataDir, fmt.Append(nil, seed), 0o600))
	default:
		check(t, os.Remove(s.DataDir))
		check(t, os.Symlink(fmt.Sprintf("/nowhere-%d", seed), s.DataDir))
		check(t, os.Lchown(s.DataDir, s.cfg.Owner.UID, s.cfg.Owner.GID))
	}
}

func (s *subject) Bytes(t *testing.T) string {
	t.Helper()
	if info, err := asowner.At(s.DataDir); err == nil && info == nil {
		return "nothing"
	}
	var lines []string
	check(t, asowner.EachRaw(t.Context(), s.DataDir, ".", func(path, rel string, info fs.FileInfo) error {
		sum := ""
		if info.Mode().IsRegular() {
			sum = s.sum(t, path, info)
		} else if target, err := os.Readlink(path); err == nil {
			sum = target
		}
		st := info.Sys().(*syscall.Stat_t)
		lines = append(lines, fmt.Sprintf("%s %o %d:%d %s", rel, st.Mode, st.Uid, st.Gid, sum))
		return nil
	}))
	return strings.Join(lines, "\n")
}

// summed is the digest of a file's contents, and what the file was like when they were read.
type summed struct {
	ino        uint64
	size       int64
	mtim, ctim syscall.Timespec
	sum        string
}

// sum is the digest of the file's contents. They are read again once the file has changed, or where it
// had been changed so shortly before they were read that a later change may have left the same times.
func (s *subject) sum(t *testing.T, path string, info fs.FileInfo) string {
	t.Helper()
	const tick = 100 * time.Millisecond // more than the clock of any file system that tests run on
	st := info.Sys().(*syscall.Stat_t)
	old, known := s.summed[path]
	is := summed{st.Ino, st.Size, st.Mtim, st.Ctim, old.sum}
	if known && old == is {
		return is.sum
	}
	settled := time.Since(time.Unix(st.Ctim.Unix())) > tick
	f, err := os.Open(path)
	check(t, err)
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	check(t, err)
	check(t, f.Close())
	is.sum = fmt.Sprintf("%x", hash.Sum(nil))
	if settled {
		if s.summed == nil {
			s.summed = map[string]summed{}
		}
		s.summed[path] = is
	}
	return is.sum
}

// damageRaw changes what is stored of a raw snapshot, or of nothing the record.
func (s *subject) damageRaw(t *testing.T, r raw) {
	t.Helper()
	path := s.driver.store.path("raws", r.Dir)
	info, err := os.Lstat(path)
	switch {
	case r.Dir == "":
		check(t, os.WriteFile(filepath.Join(s.cfg.StateDir, "raws", string(r.ID)+".json"), []byte("{"), 0o600))
	case err != nil:
		t.Fatal(err)
	case info.IsDir():
		if file := largest(t, path); file != "" {
			flip(t, file, 0)
		} else {
			check(t, os.WriteFile(path+"/more", nil, 0o600))
		}
	case info.Mode().IsRegular():
		flip(t, path, 0)
	default:
		check(t, os.Remove(path))
		check(t, os.Symlink("elsewhere", path))
	}
}

// ruined is a cluster with rows in the checkpoint "db-good", and ruined after it.
func ruined(t *testing.T, how ruin) *subject {
	t.Helper()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY)")
	s.Psql(t, "app", "INSERT INTO counted SELECT generate_series(1, 21)")
	capture(t, s, "db-good")
	s.Psql(t, "app", "DROP TABLE counted")
	if how.down {
		check(t, s.driver.server.Stop(t.Context()))
	}
	how.do(t, s)
	t.Cleanup(func() { check(t, s.cfg.Server.Stop(context.Background())) })
	return s
}

func testRuinedClustersAreRestored(t *testing.T) {
	t.Parallel()
	for _, i := range testkit.Sample(t, "ruins", len(ruins), 1) {
		how := ruins[i]
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			s := ruined(t, how)
			ctx := t.Context()
			s.reopen(t)
			if _, err := s.driver.Capture(ctx, snap.CaptureRequest{ID: "db-bad", Revive: true}); err == nil {
				t.Fatal("the ruin was captured as if it were well")
			}
			check(t, s.driver.Sweep(ctx, snap.Gone{Snapshots: []snap.SnapshotID{"db-bad"}}))
			check(t, s.driver.Verify(ctx, "db-good", snap.Full))
			if _, err := s.driver.Size(ctx, "db-good"); err != nil {
				t.Error(err)
			}
			raw, err := s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw", Quiesced: true})
			check(t, err)
			if !raw.Raw || len(raw.Warnings) == 0 {
				t.Errorf("the snapshot is %+v", raw)
			}
			was := s.there(t)
			sw := s.goTo(t, "db-good", "db-raw")
			s.counts(t, 21, 21)
			check(t, sw.Undo(ctx))
			if now := s.there(t); now != was {
				t.Errorf("after Undo there is %s, and there was %s", now, was)
			}
			if proof, err := sw.Check(ctx); err != nil || !proof.Match {
				t.Errorf("after Undo the proof is %+v, %v", proof, err)
			}
			check(t, sw.Finish(ctx))
			sw = s.goTo(t, "db-good", "db-raw")
			check(t, sw.Finish(ctx))
			s.counts(t, 21, 21)

			check(t, s.driver.Verify(ctx, "db-raw", snap.Full))
			capture(t, s, "db-well")
			sw = s.goTo(t, "db-raw", "db-well")
			if now := s.there(t); now != was {
				t.Errorf("the way forward leads to %s, and there was %s", now, was)
			}
			check(t, sw.Finish(ctx))
			_, err = s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw2", Quiesced: true})
			check(t, err)
			check(t, s.goTo(t, "db-well", "db-raw2").Finish(ctx))
			s.counts(t, 21, 21)
			for _, id := range []snap.SnapshotID{"db-raw", "db-raw2"} {
				check(t, s.driver.Delete(ctx, id))
			}
			if left, err := os.ReadDir(s.driver.store.path("raws")); err != nil && !asowner.Absent(err) || len(left) > 0 {
				t.Errorf("of deleted snapshots there are %v, %v", left, err)
			}
		})
	}
}

// goTo commits a restore, and proves it.
func (s *subject) goTo(t *testing.T, target, base snap.SnapshotID) snap.Switch {
	t.Helper()
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-raw", Target: target, Base: base})
	check(t, err)
	if stale, err := sw.Stale(t.Context()); err != nil || stale {
		t.Fatalf("Stale is %t, %v", stale, err)
	}
	check(t, sw.Commit(t.Context()))
	if proof, err := sw.Check(t.Context()); err != nil || !proof.Match {
		t.Fatalf("the proof of %s is %+v, %v", target, proof, err)
	}
	return sw
}

// A server that is only down is started for a rollback, and for nothing else.
func testDownServerIsStarted(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	check(t, s.driver.server.Stop(t.Context()))
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-0", Quiesced: true})
	fails(t, "Capture", err, errs.Unavailable, "is down")
	if running, err := pgserver.InUse(s.DataDir); err != nil || running {
		t.Fatalf("a capture started the server: %t, %v", running, err)
	}
	got, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-a", Revive: true})
	check(t, err)
	if !strings.Contains(strings.Join(got.Warnings, " "), "was started") {
		t.Errorf("the warnings are %q", got.Warnings)
	}
	check(t, s.driver.server.Stop(t.Context()))
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-a"})
	check(t, err)
	check(t, sw.Finish(t.Context()))
}

// What a server that does not start says of it is in the error.
func TestWhyAServerDoesNotStart(t *testing.T) {
	t.Parallel()
	s := ruined(t, ruins[0])
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-a", Revive: true})
	fails(t, "Capture", err, errs.Unavailable, "contains errors")
}

// What was written to a broken cluster after it was kept is not lost.
func testRawBaseGrowsStale(t *testing.T) {
	t.Parallel()
	s := ruined(t, ruins[0])
	_, err := s.driver.Salvage(t.Context(), snap.CaptureRequest{ID: "db-raw", Quiesced: true})
	check(t, err)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-raw"})
	check(t, err)
	s.put(t, "postgresql.conf", "port = more\n")
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Errorf("Stale is %t, %v", stale, err)
	}
	if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Conflict {
		t.Errorf("Commit: %v", err)
	}
	if text, err := os.ReadFile(s.DataDir + "/postgresql.conf"); err != nil || string(text) != "port = more\n" {
		t.Errorf("the file is %q, %v", text, err)
	}
	check(t, sw.Finish(t.Context()))
}

// A server that ran before a salvage runs again if no restore follows it.
func testServerRunsAfterGivenUpSalvage(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-good")
	ctx := t.Context()
	salvage := func() {
		t.Helper()
		_, err := s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw", Quiesced: true})
		check(t, err)
		if running, err := pgserver.InUse(s.DataDir); err != nil || running {
			t.Fatalf("after Salvage the server runs: %t, %v", running, err)
		}
	}
	runs := func(after string) {
		t.Helper()
		if status := s.driver.server.Status(context.Background(), s.DataDir); status != "ready" {
			t.Errorf("after %s the server is %q", after, status)
		}
	}
	fail := func(step string, with func()) {
		s.cfg.Failpoint = func(at string) error {
			if at != step {
				return nil
			}
			with()
			return errors.New("broken")
		}
		s.reopen(t)
		check(t, s.driver.server.Start(t.Context()))
	}
	for _, step := range []string{"raw: copy", "salvage: record"} {
		canceled, cancel := context.WithCancel(ctx)
		fail(step, cancel)
		if _, err := s.driver.Salvage(canceled, snap.CaptureRequest{ID: "db-0"}); err == nil {
			t.Fatal("the salvage does not fail at " + step)
		}
		runs("a salvage that fails at " + step)
	}
	fail("", nil)
	req := snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-raw"}
	salvage()
	sw, err := s.driver.Prepare(ctx, req)
	check(t, err)
	check(t, sw.Finish(ctx))
	runs("Finish without a Commit")

	fail("fork: clone", func() {})
	salvage()
	if _, err := s.driver.Prepare(ctx, req); err == nil {
		t.Fatal("the preparation does not fail")
	}
	runs("a preparation that fails")

	fail("", nil)
	salvage()
	check(t, os.Remove(filepath.Join(s.cfg.StateDir, "facts.json")))
	if _, err := s.driver.Prepare(ctx, req); err == nil {
		t.Fatal("nothing is known of the cluster, and a restore is planned")
	}
	runs("a plan that fails")

	fail("", nil)
	salvage()
	check(t, s.driver.Delete(ctx, "db-good"))
	if running, err := pgserver.InUse(s.DataDir); err != nil || running {
		t.Errorf("after another snapshot was deleted the server runs: %t, %v", running, err)
	}
	check(t, s.driver.Delete(ctx, "db-raw"))
	runs("a restore that ends before it is prepared")
}

// A server that ran before a salvage runs again after the daemon was killed, at whatever step before the restore's Commit.
func testServerRunsAfterKilledSalvage(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-good")
	stopped, prepared := 0, false
	for step := 1; !prepared; step++ {
		kept, _ := s.killRescuer(t, 0, step)
		if running, err := pgserver.InUse(s.DataDir); err != nil {
			t.Fatal(err)
		} else if !running {
			stopped++
		}
		s.reopen(t)
		_, err := s.driver.Resume(t.Context(), "op-raw")
		prepared = err == nil
		gone := snap.Gone{Restores: []snap.RestoreID{"op-raw"}}
		if !kept {
			gone.Snapshots = []snap.SnapshotID{"db-raw"}
		}
		check(t, s.driver.Sweep(t.Context(), gone))
		if status := s.driver.server.Status(t.Context(), s.DataDir); status != "ready" {
			t.Fatalf("after a kill at step %d the server is %q", step, status)
		}
		check(t, s.driver.Delete(t.Context(), "db-raw"))
	}
	if stopped == 0 {
		t.Error("the server was stopped at no step")
	}
}

// The log of a marker outlives the data folder, also what the server archived not yet.
func testLogOutlivesTheFolder(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{settings: map[string]string{"archive_mode": "on", "archive_command": "false"}})
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY); SELECT pg_switch_wal(); INSERT INTO counted SELECT generate_series(1, 21)")
	capture(t, s, "db-good")
	check(t, os.RemoveAll(s.DataDir))
	check(t, s.driver.Verify(t.Context(), "db-good", snap.Full))
	_, err := s.driver.Salvage(t.Context(), snap.CaptureRequest{ID: "db-raw"})
	check(t, err)
	check(t, s.goTo(t, "db-good", "db-raw").Finish(t.Context()))
	s.counts(t, 21, 21)
	capture(t, s, "db-after")
	check(t, s.driver.Verify(t.Context(), "db-good", snap.Full))
}

// A folder that vanishes after the exchange keeps no restore from being undone.
func testUndoAfterTheRestoredFolderVanished(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY); INSERT INTO counted SELECT generate_series(1, 21)")
	capture(t, s, "db-a")
	s.Psql(t, "app", "INSERT INTO counted SELECT generate_series(22, 41)")
	capture(t, s, "db-b")
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
	check(t, err)
	check(t, sw.Commit(t.Context()))
	check(t, os.RemoveAll(s.DataDir))
	check(t, sw.Undo(t.Context()))
	s.counts(t, 41, 41)
	check(t, sw.Finish(t.Context()))
}

// rescueSteps are those of a restore from a ruin.
type rescue struct {
	fate
	Nth int
}

// rescuer salvages, restores and, where it is told so, undoes, until it is killed.
func rescuer(arg string) {
	var r rescue
	must(json.Unmarshal([]byte(arg), &r))
	cfg := r.config()
	seen := 0
	cfg.Failpoint = func(string) error {
		if seen++; seen == r.Nth {
			must(unix.Kill(os.Getpid(), unix.SIGKILL))
			select {}
		}
		return nil
	}
	d, err := New(cfg)
	must(err)
	ctx := context.Background()
	_, err = d.Salvage(ctx, snap.CaptureRequest{ID: "db-raw", Quiesced: true})
	must(err)
	fmt.Println("kept")
	sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: "op-raw", Target: r.Target, Base: "db-raw"})
	must(err)
	must(sw.Commit(ctx))
	if r.Round%2 == 1 {
		must(sw.Undo(ctx))
	}
	must(sw.Finish(ctx))
	fmt.Println("finished")
}

// At whatever step the daemon is killed: the cluster is the ruin, byte by byte, or the good one.
func testKilledRescuing(t *testing.T) {
	t.Parallel()
	three := []ruin{ruins[0], ruins[6], ruins[9]} // a conf, no folder, a link
	for _, i := range testkit.Sample(t, "ruins", len(three), 1) {
		how := three[i]
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			s := ruined(t, how)
			check(t, s.cfg.Server.Stop(t.Context()))
			was := s.there(t)
			for round := range 2 { // 1 undoes
				steps := snaptest.EachStep(t, func(step int) bool { return s.rescueKilled(t, round, step, was) })
				t.Logf("round %d: %d steps", round, steps)
			}
			_, err := s.driver.Salvage(t.Context(), snap.CaptureRequest{ID: "db-raw", Quiesced: true})
			check(t, err)
			check(t, s.goTo(t, "db-good", "db-raw").Finish(t.Context()))
			s.counts(t, 21, 21)
		})
	}
}

// killRescuer kills a rescuer at a step. It reports whether the rescuer had made the snapshot, and whether it came to its end before the step.
func (s *subject) killRescuer(t *testing.T, round, step int) (kept, finished bool) {
	t.Helper()
	arg, err := json.Marshal(rescue{Nth: step, fate: fate{Data: s.DataDir, State: s.cfg.StateDir, DSN: s.cfg.DSN, Bin: s.Bin, Log: s.Log,
		Owner: s.cfg.Owner, Round: round, Target: "db-good"}})
	check(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_RESCUER="+string(arg))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	kept, finished = strings.Contains(string(out), "kept"), strings.Contains(string(out), "finished")
	if !finished && (cmd.ProcessState.Sys().(interface{ Signaled() bool }).Signaled() == false) {
		t.Fatalf("round %d, step %d: %v, %s", round, step, err, out)
	}
	return kept, finished
}

// rescueKilled kills a rescuer at a step, recovers as the daemon would, and takes the
// cluster back to the ruin. It reports whether there was such a step.
func (s *subject) rescueKilled(t *testing.T, round, step int, was string) bool {
	t.Helper()
	ctx := t.Context()
	kept, finished := s.killRescuer(t, round, step)
	s.reopen(t)
	good := finished && round == 0
	sw, err := s.driver.Resume(ctx, "op-raw")
	switch {
	case errs.KindOf(err) == errs.NotFound:
		var p plan // it may be at its end
		good = s.driver.plans.Load("", "op-raw", &p) == nil && p.Reached == database.Committed || good
	case err != nil:
		t.Fatal(err)
	case step%2 == 0 && s.phase(t) == database.Committing:
		check(t, sw.Commit(ctx))
		good = true
	default:
		check(t, sw.Undo(ctx))
		if proof, err := sw.Check(ctx); err != nil || !proof.Match && s.phase(t) != database.Prepared {
			t.Fatalf("round %d, step %d: the proof is %+v, %v", round, step, proof, err)
		}
	}
	if good {
		s.counts(t, 21, 21)
	} else if now := s.there(t); now != was {
		t.Fatalf("round %d, step %d: the ruin is %s and was %s", round, step, now, was)
	}
	if err == nil {
		check(t, sw.Finish(ctx))
	}
	gone := snap.Gone{Restores: []snap.RestoreID{"op-raw"}}
	if !kept {
		gone.Snapshots = []snap.SnapshotID{"db-raw"}
	}
	check(t, s.driver.Sweep(ctx, gone))
	check(t, s.driver.Verify(ctx, "db-good", snap.Quick))
	if good {
		capture(t, s, "db-now")
		check(t, s.goTo(t, "db-raw", "db-now").Finish(ctx))
		check(t, s.driver.Delete(ctx, "db-now"))
	}
	if now := s.there(t); now != was {
		t.Fatalf("round %d, step %d: the way forward leads to %s, not %s", round, step, now, was)
	}
	check(t, s.driver.Delete(ctx, "db-raw"))
	return !finished
}

func (s *subject) phase(t *testing.T) database.Phase {
	t.Helper()
	p, err := s.driver.Resumable("", "op-raw")
	check(t, err)
	return p.Phase
}

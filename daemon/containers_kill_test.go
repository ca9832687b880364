package daemon_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// shop is a compose project that daemons protect, one after the other, with the states that its checkpoints hold.
type shop struct {
	*project
	*round
	volumes map[string]string // their folders
	rnd     *rand.Rand
	states  map[ipc.CheckpointID]string
	was     string // the containers
	by      string // the way in which the database is captured
}

// The ways in which the database of a shop is captured.
const (
	byFiles = "files" // those of its volume, while its server is paused
	byDumps = "dumps" // through its server
	byLog   = "log"   // mode physical
)

// wholeVolume are the edits with which the data folder of the shop's PostgreSQL is a whole volume, and not a folder in one.
var wholeVolume = []string{"rows:/data", "rows:/data/pg", "! -e /data/pg ]", "! -e /data/pg/PG_VERSION ]", "chown postgres:postgres /data\n", "chown postgres:postgres /data/pg; chmod 700 /data/pg\n"}

// newShop starts a project, whose PostgreSQL is captured in some way.
func newShop(t *testing.T, kind enginetest.Kind, by string, edits ...string) *shop {
	t.Helper()
	s := &shop{project: startProject(t, kind, edits...), round: &round{world: world{dir: worldDir(t)}, tally: map[string]int{}}, volumes: map[string]string{},
		rnd: testkit.Rand(t, "shop"), states: map[ipc.CheckpointID]string{}, by: by}
	s.at = s.project.ws
	d := s.open(t)
	spec := ipc.App{Slug: "shop", Workspace: s.at, Unit: "compose:shop", Engine: s.Socket, Volumes: []ipc.Volume{{Name: "keys"}, {Name: "uploads"}}}
	main := ipc.Database{Name: "main", Driver: "postgres", DSN: "postgres://postgres@db:5432/postgres"}
	switch by {
	case byFiles:
		spec.Volumes = append(spec.Volumes, ipc.Volume{Name: "rows"})
	case byLog:
		main.Mode = "physical"
		fallthrough
	case byDumps:
		spec.Databases = []ipc.Database{main}
	}
	a, err := d.AddApp(t.Context(), root, spec)
	check(t, err)
	for _, v := range a.Volumes {
		s.volumes[v.Name] = v.Dir
	}
	s.close(t, d)
	s.was = s.ids()
	return s
}

// change changes something in each part of the app, as an agent does.
func (s *shop) change() {
	s.project.t.Helper()
	s.n++
	pick := func(of ...string) string { return strings.ReplaceAll(of[s.rnd.IntN(len(of))], "#", fmt.Sprint(s.n)) }
	write(s.project.t, s.at, pick("www/index.html", "www/page-#.html", "src.py"), fmt.Sprint("state ", s.n))
	s.sql(pick("INSERT INTO goods VALUES ('ware #')", "DELETE FROM goods; INSERT INTO goods SELECT 'n' || g FROM generate_series(1, #) g",
		"CREATE TABLE made_# AS SELECT * FROM goods", "ALTER TABLE goods ADD column_# int DEFAULT #", "CREATE INDEX index_# ON goods (name)"))
	s.in(s.cache, append([]string{"redis-cli"}, strings.Fields(pick("set visits #", "hset basket:# tea 1 salt #", "del visits", "rpush orders #", "flushall"))...)...)
	s.in(s.web, "/bin/sh", "-c", "umask 022; cd /data; "+pick("echo # >file-#; chmod 4751 file-#; chown 70#:80# file-#", "mkdir -p deep/#/er; chmod 2770 deep/#; echo # >deep/#/er/x", "rm -rf deep pictures",
		"for f in file-*; do ln -f \"$f\" twin-#; ln -sf \"$f\" link-#; done", "mkfifo -m 620 pipe-#", "rm -f file-* link-* twin-*")+
		`; echo # >named; python3 -c 'import os; os.setxattr("/data/named", "user.note", b"`+fmt.Sprint(s.n)+`")'`)
	if s.rnd.IntN(2) == 0 {
		s.in(s.cache, "redis-cli", "lpush", "jobs", fmt.Sprint(s.n))
		testkit.Eventually(s.project.t, "the worker does its job", func() bool { return s.try(s.worker, "test", "-s", fmt.Sprint("/data/done-", s.n)) == nil })
	}
}

// state is everything that the app's parts hold, as programs see it that are none of mulligan's: a dump of the database, all keys, and
// listings of the workspace and of each volume.
func (s *shop) state() string {
	t := s.project.t
	t.Helper()
	testkit.Eventually(t, "the database answers", func() bool { return s.try(s.db, "pg_isready", "-h", "/tmp") == nil })
	testkit.Eventually(t, "the page answers", func() bool { return s.try(s.web, "curl", "-sf", "http://127.0.0.1:8080/") == nil })
	testkit.Eventually(t, "Redis answers", func() bool { return s.try(s.cache, "redis-cli", "ping") == nil })
	text := "page: " + s.in(s.web, "curl", "-sf", "http://127.0.0.1:8080/index.html") + "\n" +
		s.in(s.cache, "redis-cli", "--raw", "eval", `local all = redis.call("keys", "*") table.sort(all)
			for i, k in ipairs(all) do all[i] = "key " .. k .. " " .. redis.sha1hex(redis.call("dump", k)) end return all`, "0") + "\n"
	for line := range strings.SplitSeq(s.in(s.db, "pg_dump", "-h", "/tmp", "-U", "postgres", "postgres"), "\n") {
		if line != "" && !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) && !strings.HasPrefix(line, "--") { // whose words are of chance
			text += "dump: " + line + "\n"
		}
	}
	text += listing(t, s.at, "")
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		text += listing(t, s.volumes[name], map[string]string{"rows": "pg", "keys": "appendonlydir"}[name])
	}
	return text
}

// listing returns a line for each file below a folder: its owner, mode, links, times, attributes and contents. Of the files below the folder
// "own", which a server makes and removes at will, it returns which types, owners and modes there are.
func listing(t testing.TB, dir, own string) string {
	t.Helper()
	var lines []string
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if rel, _ := filepath.Rel(dir, path); own != "" && strings.HasPrefix(rel, own) {
				return nil // the server has removed it
			}
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if own != "" && strings.HasPrefix(rel, own+"/") {
			lines = append(lines, fmt.Sprintf("%s/%s: %o %d:%d", filepath.Base(filepath.Dir(dir)), own, st.Mode, st.Uid, st.Gid))
			return nil
		}
		line := fmt.Sprintf("%s/%s: %o %d:%d %d", filepath.Base(filepath.Dir(dir)), rel, st.Mode, st.Uid, st.Gid, st.Nlink)
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err != nil {
			return err
		}
		for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
			if name != "" {
				value := make([]byte, 4096)
				n, err := unix.Lgetxattr(path, name, value)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %s=%q", name, value[:n])
			}
		}
		switch {
		case e.Type().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d.%09d %x", st.Mtim.Sec, st.Mtim.Nsec, sha256.Sum256(text))
		case e.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		lines = append(lines, line)
		return nil
	}))
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// differences names the lines that only one of two states has.
func differences(was, is string) string {
	var all []string
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for _, line := range a {
		if !slices.Contains(b, line) {
			all = append(all, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			all = append(all, "+ "+line)
		}
	}
	return strings.Join(all[:min(len(all), 40)], "\n")
}

// travel makes checkpoints, the half of them while the app runs, and goes to each of them in random order: everything is as it was then, and the
// containers are the same ones.
func (s *shop) travel(checkpoints int) {
	t := s.project.t
	t.Helper()
	d := s.open(t)
	defer s.close(t, d)
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.KeepSafety = 100, 100
	_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep})
	check(t, err)
	for i := range checkpoints {
		s.change()
		req := ipc.CreateRequest{}
		if i%2 == 0 {
			req.Quiesce = ipc.QuiesceNone
		}
		before := s.state()
		cp, err := d.Create(t.Context(), root, "shop", req)
		check(t, err)
		s.states[cp.ID] = before
		if now := s.state(); now != before {
			t.Fatalf("a checkpoint changed\n%s", differences(before, now))
		}
	}
	for _, id := range s.checkpoints() {
		before := s.state()
		res, err := d.Rollback(t.Context(), root, "shop", id, ipc.RollbackRequest{}, nil)
		if err != nil {
			t.Fatalf("%v\n%+v", err, res)
		}
		s.states[res.SafetyCheckpoint.ID] = before
		if now := s.state(); now != s.states[id] {
			t.Fatalf("back to %s:\n%s", id, differences(s.states[id], now))
		}
		if now := s.ids(); now != s.was {
			t.Fatalf("the containers are\n%s\nand were\n%s", now, s.was)
		}
	}
}

// checkpoints returns those whose state is known, in random order.
func (s *shop) checkpoints() []ipc.CheckpointID {
	ids := slices.Sorted(maps.Keys(s.states))
	s.rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

// rollBack has a daemon of its own roll back to a checkpoint. At a step of a kind, counted from 1, it waits while strike is done, which is told the
// names of the steps so far, and may kill the daemon. rollBack returns the names of all steps that the daemon came to, unless it was killed, and what
// the daemon said.
func (s *shop) rollBack(to ipc.CheckpointID, kind string, step int, strike func(names []string, kill func())) (names []string, said string) {
	t := s.project.t
	t.Helper()
	plan, err := json.Marshal(fate{State: s.world.state(), Do: "rollback", Target: to, Kind: kind, Step: step, Waits: true})
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_VICTIM="+string(plan))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, testkit.Start(cmd))
	out, killed := bufio.NewReader(stdout), false
	line, _ := out.ReadString('\n')
	if line != "begins\n" {
		t.Fatalf("%v\n%s", cmd.Wait(), stderr.String())
	}
	for {
		line, err := out.ReadBytes('\n')
		if err != nil {
			break
		}
		names = nil
		check(t, json.Unmarshal(bytes.TrimPrefix(line, []byte("waits ")), &names))
		if bytes.HasPrefix(line, []byte("waits ")) {
			strike(names, func() {
				check(t, cmd.Process.Kill())
				killed = true
			})
			_, _ = stdin.Write([]byte("\n")) // it may be dead
		}
	}
	err = cmd.Wait()
	if signal := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); err != nil && !(killed && signal == syscall.SIGKILL) {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return names, stderr.String()
}

// kill ends the first process of a container, as the kernel does it when memory is short. It reports whether there was one. The engine knows of its
// end then: as long as it takes the container for running, nobody can start it again. One that is paused may end when it goes on.
func (s *shop) kill(name string) bool {
	t := s.project.t
	t.Helper()
	process := func() (pid string, paused bool) {
		out, err := s.Exec(string(s.Kind), "inspect", "-f", "{{.State.Pid}} {{.State.Paused}}", name)
		if err != nil {
			return "0", false
		}
		pid, state, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		return pid, state == "true"
	}
	pid, _ := process()
	if pid == "0" {
		return false
	}
	if _, err := s.Exec("kill", "-9", pid); err != nil {
		return false
	}
	testkit.Eventually(t, "the engine knows that "+name+" was killed", func() bool {
		now, paused := process()
		return now != pid || paused
	})
	return true
}

// A round of kills.
type strike struct {
	daemon, engine bool
	late           int      // how late the engine is started again: 0 at once, 1 after the daemon has ended, 2 after the next one was started
	containers     []string // those that are killed
}

func (s *shop) draw() (k strike) {
	all := []string{s.web, s.worker, s.db, s.cache}
	s.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	switch s.rnd.IntN(5) {
	case 0:
		k.daemon = true
	case 1:
		k.engine, k.late = true, s.rnd.IntN(2)
	case 2:
		k.engine, k.daemon, k.late = true, true, s.rnd.IntN(3)
	case 3:
		k.containers = all[:1+s.rnd.IntN(3)]
	case 4:
		k.daemon, k.containers = true, all[:1+s.rnd.IntN(3)]
	}
	return k
}

// allSteps rolls back without a kill, and returns how many steps of each kind there are.
func (s *shop) allSteps() (steps map[string]int) {
	t := s.project.t
	t.Helper()
	before, to := s.state(), s.checkpoints()[0]
	names, said := s.rollBack(to, "", 0, nil)
	s.look("no kill", before, s.states[to], strike{}, nil)
	if now := s.state(); now != s.states[to] {
		t.Fatalf("the rollback did not get to its checkpoint: %s\n%s", said, differences(s.states[to], now))
	}
	steps = map[string]int{}
	for _, name := range names {
		steps[kind(name)]++
	}
	return steps
}

// killed rolls back again and again, while daemon, engine and containers are killed at steps of these kinds. Each time, all parts of the app are as
// before or as at the checkpoint, and every container runs that ran.
func (s *shop) killed(kills int, steps map[string]int) {
	t := s.project.t
	t.Helper()
	kinds := slices.Sorted(maps.Keys(steps))
	for done := 0; done < kills; {
		s.change()
		before, to, k, name := s.state(), s.checkpoints()[0], s.draw(), kinds[s.rnd.IntN(len(kinds))]
		step := 1 + s.rnd.IntN(steps[name])
		var at, hit []string
		_, said := s.rollBack(to, name, step, func(names []string, kill func()) {
			at = names
			for _, c := range k.containers {
				if s.kill(c) {
					hit = append(hit, c)
				}
			}
			if k.daemon {
				kill()
			}
			if k.engine {
				s.KillEngine(t)
				if k.late == 0 {
					s.StartEngine(t)
				}
			}
		})
		if at == nil { // this time there was less to do
			steps[name] = max(1, steps[name]/2)
			continue
		}
		if k.engine && k.late == 1 {
			s.StartEngine(t)
		}
		k.containers = hit
		s.look(fmt.Sprintf("%+v at step %d of %s; the daemon says %q", k, step, name, said), before, s.states[to], k, at)
		done++
		progress(t, "%d kills: %v; the last one %+v at step %d of %s; the daemon says %q", done, s.tally, k, step, name, said)
	}
	testkit.Tally(t, "kills", kills)
	t.Logf("%v", s.tally)
}

// look opens what a strike at some steps of a rollback left.
func (s *shop) look(what, before, target string, k strike, at []string) {
	t := s.project.t
	t.Helper()
	d := s.open(t)
	defer s.close(t, d)
	defer func() {
		if t.Failed() {
			t.Logf("%s\nthe containers were\n%s\nand are\n%s\nproblems: %q", what, s.was, s.ids(), d.Status(root).Problems)
		}
	}()
	if k.engine && k.late == 2 {
		s.StartEngine(t)
	}
	if s.by != byFiles && s.Kind == enginetest.Podman && slices.Contains(k.containers, s.db) { // which Podman without systemd does not start again
		s.Run(t, string(s.Kind), "start", s.db)
	}
	testkit.Eventually(t, "the app is ready: "+what, func() bool { return len(d.Status(root).Problems) == 0 })
	for _, name := range k.containers { // nobody starts one that was killed before the rollback took note of it, or after its end
		noted, ended := slices.Index(at, "note containers"), slices.Index(at, "give policy back")
		if noted < 0 || noted == len(at)-1 || ended >= 0 {
			s.Run(t, string(s.Kind), "start", name)
		}
	}
	testkit.Eventually(t, "the containers run again: "+what, func() bool { return s.ids() == s.was })
	switch now := s.state(); now {
	case before:
		s.tally["back"]++
	case target:
		s.tally["forward"]++
	default:
		t.Fatalf("the app is neither as it was before:\n%s\nnor as at the checkpoint:\n%s", differences(before, now), differences(target, now))
	}
	for _, cp := range listed(t, d) {
		if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Quick); err != nil || !res.OK {
			t.Fatalf("%s: %v, %+v", cp.ID, err, res)
		}
	}
}

// changed has people change the project's containers between a checkpoint and a rollback to it. What the rollback cannot do is said before anything
// is stopped.
func (s *shop) changed() {
	t := s.project.t
	t.Helper()
	d := s.open(t)
	defer s.close(t, d)
	to := s.checkpoints()[0]
	refused := func(why, words string) {
		t.Helper()
		before := s.started()
		for _, dry := range []bool{true, false} {
			_, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{DryRun: dry}, nil)
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", why, err, words)
			}
		}
		if now := s.started(); now != before {
			t.Errorf("%s: the containers are\n%s\nand were\n%s", why, now, before)
		}
	}
	goes := func(why, remark string) {
		t.Helper()
		before := s.state()
		for _, dry := range []bool{true, false} {
			res, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{DryRun: dry}, nil)
			if err != nil || remark != "" && !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, remark) }) {
				t.Errorf("%s: %v, %q, want %q", why, err, res.Warnings, remark)
			}
		}
		if now := s.state(); now != s.states[to] {
			t.Errorf("%s:\n%s", why, differences(s.states[to], now))
		}
		if _, err := d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil); err != nil {
			t.Errorf("%s: redo: %v", why, err)
		}
		if now := s.state(); now != before {
			t.Errorf("%s: redo:\n%s", why, differences(before, now))
		}
	}
	accept := func() {
		t.Helper()
		unit := "compose:shop"
		_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Unit: &unit})
		check(t, err)
	}
	engine := func(args ...string) { t.Helper(); s.Run(t, append([]string{string(s.Kind)}, args...)...) }

	engine("rename", s.web, "front")
	refused("renamed", s.web+" is called front now")
	engine("rename", "front", s.web)

	second := "shop_worker_2"
	if s.Kind == enginetest.Docker {
		s.compose("up -d --scale worker=2 --no-recreate")
	} else { // its compose tool cannot
		engine("run", "-d", "--name", second, "--label", "com.docker.compose.project=shop", "--label", "com.docker.compose.service=worker",
			"-v", "/usr:/usr:ro", "-v", "shop_uploads:/data", enginetest.Image, "/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait")
	}
	refused("scaled", "volume shop_uploads is also used by containers that are not of the app: "+second)
	accept()
	goes("scaled, and accepted", "")
	engine("rm", "-f", second)
	refused("scaled back", "compose:shop has lost a container: "+second)
	accept()

	engine("run", "-d", "--name", "stranger", "-v", "/usr:/usr:ro", "-v", "shop_uploads:/data", enginetest.Image, "/bin/sh", "-c", "sleep 1000000")
	refused("a stranger's volume", "volume shop_uploads is also used by containers that are not of the app: stranger")
	engine("rm", "-f", "stranger")

	engine("tag", enginetest.Image, "mulligan/host:2")
	file := filepath.Join(s.at, "compose.yml")
	text, err := os.ReadFile(file)
	check(t, err)
	before, rest, _ := strings.Cut(string(text), "  web:\n")
	write(t, s.at, "compose.yml", before+"  web:\n"+strings.Replace(rest, enginetest.Image, "mulligan/host:2", 1))
	s.compose(map[enginetest.Kind]string{enginetest.Docker: "up -d", enginetest.Podman: "up -d --force-recreate"}[s.Kind])
	goes("with another image", "container "+s.web+" is another one than when compose:shop was configured; it is used as it is")
	s.was = s.ids()
}

// remade has the compose tool remove containers and volumes, and make new ones. A rollback says that before it stops anything, and brings what was in the
// volumes into the new ones; redo leads back to what was new.
func (s *shop) remade(d *daemon.Daemon, to ipc.CheckpointID) {
	t := s.project.t
	t.Helper()
	s.compose("down -v")
	for _, dry := range []bool{true, false} {
		_, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{DryRun: dry}, nil)
		if err == nil || errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "compose:shop has lost a container") {
			t.Errorf("after compose down: %v", err)
		}
	}
	s.compose("up -d")
	fresh := s.state()
	words := "container " + s.web + " is another one than when compose:shop was configured; it is used as it is"
	for _, dry := range []bool{true, false} {
		before := s.started()
		res, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{DryRun: dry}, nil)
		if err != nil || !slices.Contains(res.Warnings, words) {
			t.Fatalf("after compose down -v and up: %v, %q", err, res.Warnings)
		}
		if dry && s.started() != before {
			t.Error("a dry run stops something")
		}
	}
	if now := s.state(); now != s.states[to] {
		t.Errorf("after compose down -v, up and a rollback:\n%s", differences(s.states[to], now))
	}
	if _, err := d.Rollback(t.Context(), root, "shop", ipc.Redo, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if now := s.state(); now != fresh {
		t.Errorf("after compose down -v, up, a rollback and redo:\n%s", differences(fresh, now))
	}
	if _, err := d.Rollback(t.Context(), root, "shop", to, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	if now := s.state(); now != s.states[to] {
		t.Errorf("after another rollback:\n%s", differences(s.states[to], now))
	}
	s.was = s.ids()
}

// started returns which containers there are, and when each was started.
func (s *shop) started() string {
	s.project.t.Helper()
	return s.Run(s.project.t, "/bin/sh", "-euc", `$0 inspect -f "{{.Id}} {{.State.StartedAt}}" $($0 ps -q --filter label=com.docker.compose.project=shop) | sort`, string(s.Kind))
}

// TestLongContainers compares a compose project with itself at 10 checkpoints, and kills what may be killed of it, of its engine and of daemons
// during 12 rollbacks, with each engine and each way in which a database is captured. TestProjects/Containers is a sample of it.
func TestLongContainers(t *testing.T) {
	t.Parallel()
	testkit.NeedLong(t)
	for _, kind := range enginetest.Kinds {
		for _, by := range []string{byFiles, byDumps, byLog} {
			t.Run(fmt.Sprintf("%s by %s", kind, by), func(t *testing.T) {
				t.Parallel()
				var edits []string
				if by == byLog && kind == enginetest.Docker {
					edits = wholeVolume
				}
				s := newShop(t, kind, by, edits...)
				s.travel(10)
				s.changed()
				d := s.open(t)
				s.remade(d, s.checkpoints()[0])
				s.close(t, d)
				s.killed(12, s.allSteps())
			})
		}
	}
}

// TestLongLeftBehind kills daemon and engine while the daemon has a transaction in the database: while it reads, and while it exchanges names. The
// server in its container does not see that the daemon is gone. It ends the transaction by itself, and then the app can change its tables.
func TestLongLeftBehind(t *testing.T) {
	t.Parallel()
	testkit.NeedLong(t)
	s := newShop(t, enginetest.Docker, byDumps)
	s.travel(1)
	for i, step := range []string{"read: rows", "exchange: commit"} {
		s.change()
		before, to := s.state(), s.checkpoints()[0]
		k := strike{daemon: true, engine: true, late: 2}
		var at []string
		_, said := s.rollBack(to, step, 1, func(names []string, kill func()) {
			at = names
			kill()
			s.KillEngine(t)
		})
		if at == nil {
			t.Fatalf("the rollback did not come to %q: %s", step, said)
		}
		s.look(fmt.Sprintf("%s, %+v: %s", step, k, said), before, s.states[to], k, at)
		s.sql(fmt.Sprintf("ALTER TABLE goods ADD left_behind_%d int", i))
	}
}

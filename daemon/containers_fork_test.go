package daemon_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// composeTool returns the command of an engine's compose tool outside of the engine's namespaces. Docker's needs its socket alone; Podman's
// works through the program podman, which must be inside.
func composeTool(t *testing.T, h *enginetest.Host) []string {
	t.Helper()
	if h.Kind == enginetest.Docker {
		return nil
	}
	c := h.Command(t.Context(), "/bin/sh", "-c", `cd "$1" && shift && exec podman-compose "$@"`, "sh")
	var text strings.Builder
	text.WriteString("#!/bin/sh\n")
	for _, v := range c.Env {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "CONTAINERS_") {
			fmt.Fprintf(&text, "export %s='%s'\n", name, value)
		}
	}
	text.WriteString("exec")
	for _, word := range c.Args {
		fmt.Fprintf(&text, " '%s'", word)
	}
	text.WriteString(" \"$PWD\" \"$@\"\n")
	file := filepath.Join(h.Dir, "compose-tool")
	check(t, testkit.WriteProgram(file, []byte(text.String())))
	return []string{file}
}

// testForkedProject makes forks of a compose project: second projects with volumes, networks, ports and databases of their own.
func testForkedProject(t *testing.T) {
	t.Parallel()
	ways := []string{byFiles, byDumps}
	for _, i := range testkit.Sample(t, "engines and ways", len(enginetest.Kinds)*len(ways), 1) {
		kind, by := enginetest.Kinds[i/len(ways)], ways[i%len(ways)]
		t.Run(fmt.Sprintf("%s by %s", kind, by), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, kind, by, forkable...)
			d := s.open(t)
			defer s.close(t, d)
			if tool := composeTool(t, s.Host); tool != nil {
				_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Forking: &ipc.Forking{Compose: tool}})
				check(t, err)
			}
			good := s.state()
			cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
			check(t, err)
			s.change()
			changed := s.state()
			list, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{CheckpointID: cp.ID, Name: "a"})
			if err != nil {
				ps, _ := s.Exec(string(kind), "ps", "-a")
				t.Fatalf("%v\n%s", err, ps)
			}
			f := list.Forks[0]
			if f.Unit != "compose:shop-fork-a" || f.State != "running" || len(f.Containers) != 4 || f.Fork.Isolation != ipc.IsolationPorts {
				t.Errorf("%+v\n%+v", f, f.Fork)
			}
			if now := s.state(); now != changed {
				t.Errorf("the app has changed:\n%s", differences(changed, now))
			}
			if now := s.ids(); now != s.was {
				t.Errorf("the containers are\n%s\nand were\n%s", now, s.was)
			}
			fork := s.fork(f)
			if now := fork.plain(); now != good {
				t.Errorf("the fork:\n%s", differences(good, now))
			}
			if len(f.Fork.Ports) != 1 || f.Fork.Ports[0].Port != 18080 {
				t.Fatalf("%+v", f.Fork.Ports)
			}
			_, port, err := net.SplitHostPort(f.Fork.Ports[0].Address)
			check(t, err)
			for at, want := range map[string]string{"18080": s.in(s.web, "cat", "/www/index.html"), port: "good"} {
				if got := s.Run(t, "curl", "-sf", "http://127.0.0.1:"+at+"/index.html"); got != want {
					t.Errorf("at port %s the page says %q, want %q", at, got, want)
				}
			}
			left, err := filepath.Glob(filepath.Join(f.Workspace, ".mulligan*"))
			if err != nil || len(left) > 0 {
				t.Errorf("%q, %v", left, err)
			}

			// Each goes its own way.
			fork.change()
			tried := fork.plain()
			if now := s.state(); now != changed {
				t.Errorf("the fork changed the app:\n%s", differences(changed, now))
			}
			own, err := d.Create(t.Context(), root, "shop-a", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
			check(t, err)
			fork.change()
			if _, err := d.Rollback(t.Context(), root, "shop-a", own.ID, ipc.RollbackRequest{}, nil); err != nil {
				t.Fatal(err)
			}
			if now := fork.plain(); now != tried {
				t.Errorf("after a rollback of the fork:\n%s", differences(tried, now))
			}

			s.close(t, d)
			d = s.open(t) // it knows the fork, which runs
			forks, err := d.Forks(t.Context(), root, "shop")
			if err != nil || len(forks.Forks) != 1 || forks.Forks[0].State != "running" {
				t.Fatalf("%v, %+v", err, forks)
			}
			if _, err := d.KeepFork(t.Context(), root, "shop", "a", ipc.KeepRequest{}); err != nil {
				t.Fatal(err)
			}
			if now := s.state(); now != tried {
				t.Errorf("after keep:\n%s", differences(tried, now))
			}
			if now := s.ids(); now != s.was {
				t.Errorf("the containers are\n%s\nand were\n%s", now, s.was)
			}
			s.nothingOfForks()

			// A project of that name is somebody else's.
			s.Run(t, string(kind), "run", "-d", "--name", "theirs", "--label", "com.docker.compose.project=shop-fork-b", "-v", "/usr:/usr:ro", enginetest.Image, "/bin/sh", "-c", "sleep 1000")
			_, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{CheckpointID: cp.ID, Name: "b"})
			if errs.KindOf(err) != errs.Conflict || !strings.Contains(fmt.Sprint(err), "there is a compose project shop-fork-b already: container theirs") {
				t.Errorf("%v", err)
			}
			s.Run(t, string(kind), "rm", "-f", "theirs")
		})
	}
}

// testForkOfUsersProject forks the compose project of a user who may use the engine. The daemon is root's, so whatever touches the fork's folder is done by
// a process that is the user.
func testForkOfUsersProject(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	around := workspace(t)
	check(t, os.Chmod(around, 0o755))
	ws := filepath.Join(around, "shop")
	check(t, os.Mkdir(ws, 0o755))
	const uid = 65534
	for _, folder := range []string{around, ws} {
		check(t, os.Chown(folder, uid, uid))
	}
	h := newContainersOfApp(t, enginetest.Docker, ws)
	check(t, os.Chmod(h.Socket, 0o666))
	d := openForks(t, daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), StopTimeout: 10 * time.Second, Steady: steady})
	defer func() { check(t, d.Close(context.Background())) }()
	who := ipc.Caller{UID: uid, GID: uid, PID: 2}
	_, err := d.AddApp(t.Context(), who, ipc.App{Slug: "shop", Workspace: ws, Unit: "compose:shop", Engine: h.Socket})
	check(t, err)
	list, err := d.Fork(t.Context(), who, "shop", ipc.ForkRequest{Name: "a"})
	check(t, err)
	f := list.Forks[0]
	if f.State != "running" || len(f.Containers) != 1 {
		t.Errorf("%+v", f)
	}
	left, err := filepath.Glob(filepath.Join(f.Workspace, ".mulligan*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%q, %v", left, err)
	}
	check(t, d.DropFork(t.Context(), who, "shop", "a"))
	h.checkLeft(t)
}

// forkable are the edits with which the web server of the shop has a port of the host.
var forkable = []string{`volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]`, `volumes: ["/usr:/usr:ro", "./www:/www", "uploads:/data"]` + "\n" + `    ports: ["127.0.0.1:18080:8080"]`}

// fork returns a fork of the shop as a shop.
func (s *shop) fork(f ipc.App) *shop {
	t := s.project.t
	t.Helper()
	p := *s.project
	p.ws = f.Workspace
	names := map[string]string{}
	for _, c := range f.Containers {
		for _, name := range []string{"web", "worker", "db", "cache"} {
			if strings.Contains(c.Name, "_"+name+"_") {
				names[name] = c.Name
			}
		}
	}
	p.web, p.worker, p.db, p.cache = names["web"], names["worker"], names["db"], names["cache"]
	fork := &shop{project: &p, round: &round{world: world{dir: s.dir, at: f.Workspace}, n: s.n + 1000, tally: map[string]int{}}, volumes: map[string]string{}, rnd: s.rnd,
		states: map[ipc.CheckpointID]string{}, by: s.by}
	for _, v := range f.Volumes {
		fork.volumes[v.Name] = v.Dir
	}
	return fork
}

// plain is the state of a fork, in the words in which that of the app is described.
func (s *shop) plain() string {
	s.project.t.Helper()
	return strings.NewReplacer("shop-forks/", "files/", "shop-fork-a_", "shop_").Replace(s.state())
}

// nothingOfForks checks that the engine has nothing of any fork.
func (s *shop) nothingOfForks() {
	t := s.project.t
	t.Helper()
	for _, what := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q"}} {
		for _, label := range []string{"mulligan.fork", "com.docker.compose.project=shop-fork-a"} {
			if left := s.Run(t, append(append([]string{string(s.Kind)}, what...), "--filter", "label="+label)...); left != "" {
				t.Errorf("%v with label %s: %s", what, label, left)
			}
		}
	}
	if left, err := os.ReadDir(s.project.ws + "-forks"); err == nil && len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// testForkOfHostileProject has a compose file that says more than the app's containers do: what a tool made of it is refused before anything of it
// runs, and nothing is left. What is of others stays as it is.
func testForkOfHostileProject(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	for _, i := range testkit.Sample(t, "kinds of engines", len(enginetest.Kinds), 1) {
		kind := enginetest.Kinds[i]
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := newForkRound(t, string(kind))
			h := r.inside
			text, err := os.ReadFile(filepath.Join(r.ws(), "compose.yml"))
			check(t, err)
			d := r.open(t)
			defer func() { r.close(t, d) }()
			type attempt struct{ name, old, by, words string }
			attempts := []attempt{
				{"a folder of the host", `".:/files"`, `".:/files", "/etc:/etc-of-host"`, "would mount /etc"},
				{"the app's folder", `".:/files"`, `".:/files", "` + r.dir + `/./ws:/other"`, "would mount "},
				{"what was read only", `"/usr:/usr:ro"`, `"/usr:/usr"`, "would mount /usr"},
				{"rights", "    restart: always\n", "    restart: always\n    privileged: true\n", "would have other rights"},
				{"a capability", "    restart: always\n", "    restart: always\n    cap_add: [SYS_ADMIN]\n", "would have other rights"},
				{"one more service", "volumes: {words: {}}", "  more: {image: " + enginetest.Image + ", command: [sleep, '9']}\nvolumes: {words: {}}", ""},
				{"a needed service", "    restart: always\n", "    restart: always\n    depends_on: [more]\n", "the service more has no container in the app"},
				{"none of the services", "keeper:", "other:", "the service keeper is in none of the compose files"},
			}
			if kind == enginetest.Docker { // Podman's tool takes no notice of these
				attempts = append(attempts, attempt{"the host's processes", "    restart: always\n", "    restart: always\n    pid: host\n", "would have other rights"},
					attempt{"a volume that is a folder", "{words: {}}", "{words: {driver_opts: {type: none, o: bind, device: /etc}}}", "are not kept by the engine"})
			}
			for n, a := range attempts {
				next := strings.Replace(string(text), a.old, a.by, 1)
				if strings.Contains(next, "depends_on") {
					next = strings.Replace(next, "volumes: {words", "  more: {image: "+enginetest.Image+", command: [sleep, '9']}\nvolumes: {words", 1)
				}
				if next == string(text) {
					t.Fatalf("%s: no such text", a.name)
				}
				write(t, r.ws(), "compose.yml", next)
				before := h.Run(t, string(kind), "ps", "-aq")
				list, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Name: fmt.Sprint("try", n)})
				if a.words == "" { // it is not made
					if err != nil || len(list.Forks[0].Containers) != 1 {
						t.Errorf("%s: %v, %+v", a.name, err, list)
					}
					check(t, d.DropFork(t.Context(), root, "shop", fmt.Sprint("try", n)))
				} else if err == nil || !strings.Contains(err.Error(), a.words) {
					t.Errorf("%s: %v, want %q", a.name, err, a.words)
				}
				if now := h.Run(t, string(kind), "ps", "-aq"); now != before {
					t.Errorf("%s: the containers are\n%s\nand were\n%s", a.name, now, before)
				}
				r.nothingLeft(t, d)
			}
			write(t, r.ws(), "compose.yml", string(text))

			// A name that is another's, and labels that say that others are the fork's.
			h.Run(t, string(kind), "volume", "create", "theirs")
			made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Name: "tried"})
			check(t, err)
			f := made.Forks[0]
			label := "mulligan.fork=" + string(f.ID)
			h.Run(t, string(kind), "run", "-d", "--name", "stranger", "--label", label, "--label", "com.docker.compose.project=shop-fork-tried",
				"-v", "/usr:/usr:ro", "-v", "theirs:/data", enginetest.Image, "/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait")
			h.Run(t, string(kind), "volume", "create", "--label", label, "forged")
			h.Run(t, string(kind), "network", "create", "--label", label, "forged")
			r.close(t, d)
			d = r.open(t)
			check(t, d.DropFork(t.Context(), root, "shop", "tried"))
			if up := h.Run(t, string(kind), "inspect", "-f", "{{.State.Running}}", "stranger"); up != "true" {
				t.Errorf("the stranger runs: %s", up)
			}
			h.Run(t, string(kind), "rm", "-f", "stranger")
			for _, what := range []string{"volume", "network"} {
				h.Run(t, string(kind), what, "rm", "forged")
			}
			h.Run(t, string(kind), "volume", "rm", "theirs")
			r.nothingLeft(t, d)
			if list, err := d.Forks(t.Context(), root, "shop"); err != nil || len(list.Forks) > 0 {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}

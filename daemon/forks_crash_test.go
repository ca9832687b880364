package daemon_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/engine/enginetest"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/systemd"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// forkRound is a round in which an app is forked. Its world is where a fork sees it: not in a temporary folder.
type forkRound struct {
	*round
	forked  string // the fork's state when the victim began; "": there was no fork
	cluster string // the data folder of the app's PostgreSQL cluster, if it has one
	ports   bool   // its forks run on the host
	// reflinks: the cluster's file system can share blocks, so the data that a fork begins with are kept until something needs a dump
	reflinks bool
	redis    bool // the app has a Redis server, whose key word is "zero"
	guest    *guestOfApp
	mounted  bool // its forks are made three at a time, and mounted over one copy
	inside   *containersOfApp
}

// containersOfApp are those of an app that is a compose project with one service, which keeps a word in a volume.
type containersOfApp struct {
	*enginetest.Host
	volume string // the folder of the app's volume
	was    string // the app's containers
}

// newContainersOfApp starts the project in the folder.
func newContainersOfApp(t *testing.T, kind enginetest.Kind, folder string) *containersOfApp {
	t.Helper()
	c := &containersOfApp{Host: enginetest.Boot(t, kind)}
	write(t, folder, "compose.yml", `version: "3.7"
services:
  keeper:
    image: `+enginetest.Image+`
    restart: always
    command: ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
    volumes: ["/usr:/usr:ro", ".:/files", "words:/data"]
    ports: ["127.0.0.1:18080:8080"]
volumes: {words: {}}
`)
	tool := map[enginetest.Kind]string{enginetest.Docker: "docker-compose", enginetest.Podman: "podman-compose"}[kind]
	c.Run(t, "/bin/sh", "-c", fmt.Sprintf("cd %s && %s -p shop up -d 2>&1", folder, tool))
	c.was = c.all(t)
	return c
}

// all lists the containers that there are, except those of forks.
func (c *containersOfApp) all(t *testing.T) string {
	t.Helper()
	return c.Run(t, string(c.Kind), "ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}}", "--filter", "name=shop_keeper")
}

// checkLeft checks that the engine has what is the app's, and nothing of a fork.
func (c *containersOfApp) checkLeft(t *testing.T) {
	t.Helper()
	if now := c.all(t); now != c.was {
		t.Fatalf("the app's containers are\n%s\nand were\n%s", now, c.was)
	}
	for _, what := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q"}} {
		if left := c.Run(t, append(append([]string{string(c.Kind)}, what...), "--filter", "label=mulligan.fork")...); left != "" {
			t.Fatalf("of a fork, %v lists %s", what, left)
		}
	}
	if list := strings.Fields(c.Run(t, string(c.Kind), "volume", "ls", "-q")); len(list) != 1 {
		t.Fatalf("there are the volumes %q", list)
	}
}

// newForkRound makes an app of a kind: "command", "unit", or a command with a server: "redis", or "cluster" for a PostgreSQL cluster whose
// files the daemon manages, or "reflinks" for one on a file system that can share blocks; or a command with a domain: "guest"; or "ports" for forks on the host, or "mounted" for
// forks that are mounted over one copy; or "docker" or "podman" for a compose project.
func newForkRound(t *testing.T, kind string) *forkRound {
	t.Helper()
	w := forkWorld(t)
	app := ipc.App{Slug: "shop", Workspace: w.ws(), Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}}}
	switch kind {
	case "cluster":
		_, main := w.cluster(t, nil)
		app.Databases = append(app.Databases, main)
	case "reflinks":
		app.Databases = append(app.Databases, w.ownCluster(t, reflinks(t)))
	}
	w.set(t, "zero")
	if kind == "redis" {
		app.Databases = append(app.Databases, ipc.Database{Name: "cache", Driver: "redis", DSN: "redis:///?socket=" + startRedis(t)})
	}
	if kind == "unit" {
		h := systemdtest.Boot(t)
		w.bus, w.busRoot, app.Unit = h.Address, h.Root(), "shop.service"
		h.WriteUnit(t, app.Unit, "[Service]\nExecStart=sleep 100000\nWorkingDirectory="+w.ws()+"\n")
		if out, err := h.Exec("systemctl", "start", app.Unit); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	} else {
		app.Run = []string{"sh", "-c", "echo up; exec sleep 100000"}
	}
	var g *guestOfApp
	if kind == "guest" {
		g = newGuestOfApp(t)
		app.Domain, app.URI, app.Shutdown = g.Name, g.host.URI, "destroy"
		g.write(t, g.Name, "zero")
	}
	var inside *containersOfApp
	if slices.Contains(enginetest.Kinds, enginetest.Kind(kind)) {
		inside = newContainersOfApp(t, enginetest.Kind(kind), w.ws())
		app.Run, app.Unit, app.Engine, app.Volumes = nil, "compose:shop", inside.Socket, []ipc.Volume{{Name: "words"}}
		app.Forking.Compose = composeTool(t, inside.Host)
	}
	if kind == "ports" {
		app.Forking = ipc.Forking{Isolation: ipc.IsolationPorts, Ports: []string{"PORT"}, Dotenv: []string{".env"}}
		check(t, os.WriteFile(filepath.Join(w.ws(), ".env"), []byte(parentsEnv), 0o600))
	}
	d := w.open(t)
	added, err := d.AddApp(t.Context(), root, app)
	check(t, err)
	w.close(t, d)
	if inside != nil {
		inside.volume = added.Volumes[0].Dir
		write(t, inside.volume, "word", "zero")
	}
	return &forkRound{round: newRound(t, w), inside: inside, reflinks: kind == "reflinks", ports: kind == "ports", mounted: kind == "mounted", redis: kind == "redis", cluster: app.Databases[len(app.Databases)-1].DataDir, guest: g}
}

// reflinks returns a folder on a file system that can share blocks, where a fork sees it.
func reflinks(t *testing.T) string {
	t.Helper()
	mounted := testkit.Loop(t, 3000, "mkfs.xfs", "-q", "-f")
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	check(t, unix.Mount(mounted, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { check(t, errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))) })
	check(t, os.Chmod(dir, 0o755))
	return dir
}

// guestOfApp is a domain that is off, as is each fork of it when its disk is written to or read.
type guestOfApp struct {
	*disktest.Guest
	host *disktest.Host
}

func newGuestOfApp(t *testing.T) *guestOfApp {
	t.Helper()
	h := disktest.Running(t)
	g := &guestOfApp{h.NewGuest(t, "shop", disktest.GuestOptions{KeepBare: true}), h}
	file := filepath.Join(t.TempDir(), "shop.xml")
	check(t, os.WriteFile(file, []byte(g.XML), 0o600))
	g.virsh(t, "define", file)
	return g
}

func (g *guestOfApp) virsh(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("virsh", append([]string{"-q", "-c", g.host.URI}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("virsh %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// image is the image that a domain writes to.
func (g *guestOfApp) image(t *testing.T, domain string) string {
	t.Helper()
	return strings.Fields(g.virsh(t, "domblklist", domain))[1]
}

// mark is the byte that stands for a state on a disk.
func mark(word string) string { return fmt.Sprintf("0x%02x", crc32.ChecksumIEEE([]byte(word))%251+1) }

// write brings the disk of a domain that is off into a state.
func (g *guestOfApp) write(t *testing.T, domain, word string) {
	t.Helper()
	out, err := g.qemuIO(t, domain, "-c", "write -P "+mark(word)+" 0 64k")
	if err != nil || strings.Contains(out, "failed") {
		t.Fatalf("qemu-io: %v: %s\nthe image is open in %q", err, out, openIn(g.image(t, domain)))
	}
}

// qemuIO opens the disk of a domain that is off.
func (g *guestOfApp) qemuIO(t *testing.T, domain string, args ...string) (out string, err error) {
	t.Helper()
	return besideMerges(t, func() ([]byte, error) {
		return exec.Command("qemu-io", append(append([]string{"-f", "qcow2"}, args...), g.image(t, domain))...).CombinedOutput()
	})
}

// besideMerges calls run, which has a program of QEMU open a disk's images beside the daemon, and returns its output. It calls run again if an
// image was gone: the daemon merges images meanwhile, and may remove one whose name the program has read just before.
func besideMerges(t *testing.T, run func() ([]byte, error)) (out string, err error) {
	t.Helper()
	testkit.Eventually(t, "the images of the disk are there", func() bool {
		var b []byte
		b, err = run()
		out = string(b)
		gone := strings.Contains(out, "No such file or directory")
		if gone {
			t.Logf("an image was gone: %s", out)
		}
		return !gone
	})
	return out, err
}

// openIn returns the command lines of the processes that have the file open.
func openIn(path string) (commands []string) {
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, fd := range open {
		if at, err := os.Readlink(fd); err == nil && at == path {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(fd)), "cmdline")) // the process may have ended
			commands = append(commands, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return commands
}

// has reports whether the disk of a domain is in a state.
func (g *guestOfApp) has(t *testing.T, domain, word string) bool {
	t.Helper()
	out, err := g.qemuIO(t, domain, "-r", "-U", "-c", "read -P "+mark(word)+" 0 64k")
	if err == nil && strings.Contains(out, "read 65536/65536") {
		return !strings.Contains(out, "verification failed")
	}
	if !strings.Contains(out, "verification failed") {
		t.Fatalf("qemu-io: %v: %s", err, out)
	}
	return false
}

// parentsEnv is the .env of an app whose forks run on the host.
const parentsEnv = "SECRET=x\nPORT=4711\n"

// checkEnv checks that the app has its own .env, and a fork that runs has the fork's.
func (r *forkRound) checkEnv(t *testing.T, forks []ipc.App) {
	t.Helper()
	want := map[string]string{r.ws(): parentsEnv}
	for _, f := range forks {
		_, port, err := net.SplitHostPort(f.Fork.Ports[0].Address)
		check(t, err)
		if f.State == "running" {
			want[f.Workspace] = strings.Replace(parentsEnv, "4711", port, 1)
		}
	}
	for ws, text := range want {
		if got, err := os.ReadFile(filepath.Join(ws, ".env")); err != nil || string(got) != text {
			t.Fatalf("in %s, .env is %q, %v, want %q", ws, got, err, text)
		}
	}
}

// startRedis starts a Redis server that ends with the test, and returns its socket.
func startRedis(t *testing.T) (socket string) {
	t.Helper()
	testkit.Need(t, "redis")
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "redis.sock")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "")
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	testkit.Eventually(t, "redis-server is up", func() bool {
		out, err := exec.Command("redis-cli", "-s", socket, "SET", "word", "zero").Output()
		return err == nil && strings.TrimSpace(string(out)) == "OK"
	})
	return socket
}

// fork is the world of the fork, of which only the workspace and the database on a PostgreSQL server count.
func (r *forkRound) fork(f ipc.App) world {
	w := world{dir: r.forks(), at: f.Workspace}
	if r.pg != "" {
		u, err := url.Parse(r.pg)
		if err != nil {
			panic(err) // it is the test's own
		}
		q := u.Query()
		q.Set("host", filepath.Join(r.state(), "apps", string(f.ID), "srv-main", "at"))
		u.RawQuery = q.Encode()
		w.pg = u.String()
	}
	return w
}

// forks is the folder with the fork's.
func (r *forkRound) forks() string { return filepath.Join(r.dir, "shop-forks") }

// prepareFork brings the app into a new state, with a fork in a state of its own where the operation needs one, and without where not.
func (r *forkRound) prepareFork(t *testing.T, do string) {
	t.Helper()
	r.prepare(t, do)
	r.plan.Word = r.before
	if r.guest != nil {
		r.guest.write(t, r.guest.Name, r.before)
	}
	if r.inside != nil {
		write(t, r.inside.volume, "word", r.before)
	}
	d := r.open(t)
	defer r.close(t, d)
	old, err := d.Forks(t.Context(), root, "shop")
	check(t, err)
	for _, f := range old.Forks {
		check(t, d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	}
	// Rollbacks that were cut short delete no checkpoints: their copies of a cluster would fill the file system.
	_, err = d.Prune(t.Context(), root, "shop", false)
	check(t, err)
	r.plan.Name = "tried"
	if r.mounted {
		r.plan.Name, r.plan.Count, r.plan.Jobs = "", 3, 2
	}
	if r.forked = ""; do == "fork" || do == "bisect" {
		return
	}
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{CheckpointID: r.first, Name: r.plan.Name, Count: r.plan.Count})
	check(t, err)
	if r.mounted { // the first is the last that the copy stays for
		r.plan.Name = made.Forks[0].Fork.Name
		for _, f := range made.Forks[1:] {
			check(t, d.DropFork(t.Context(), root, "shop", f.Fork.Name))
		}
	}
	r.forked = r.before + "-forked"
	r.fork(made.Forks[0]).set(t, r.forked)
	if r.guest != nil {
		r.guest.virsh(t, "destroy", made.Forks[0].Domain)
		r.guest.write(t, made.Forks[0].Domain, r.forked)
	}
	if r.inside != nil {
		write(t, made.Forks[0].Volumes[0].Dir, "word", r.forked)
	}
}

// checkFork opens what a dead daemon left: the app and its fork are each whole, and a fork that is not there has left nothing.
func (r *forkRound) checkFork(t *testing.T, what string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(what)
		}
	}()
	d := r.open(t)
	defer r.close(t, d)
	word := r.word(t)
	if word != r.before && (r.plan.Do != "keep" || word != r.forked) {
		t.Fatalf("the app is in state %q, before it was %q", word, r.before)
	}
	if r.guest != nil && !r.guest.has(t, r.guest.Name, word) {
		t.Fatalf("the app is in state %q, and its domain's disk is not", word)
	}
	if r.guest != nil {
		if state := r.guest.virsh(t, "domstate", r.guest.Name); state != "shut off" {
			t.Fatalf("the app's domain is %q, and was off before", state)
		}
	}
	if r.inside != nil {
		if got, err := os.ReadFile(filepath.Join(r.inside.volume, "word")); err != nil || string(got) != word {
			t.Fatalf("the app is in state %q, and its volume in %q, %v", word, got, err)
		}
		testkit.Eventually(t, "the app runs", func() bool { a, err := d.App(t.Context(), root, "shop"); return err == nil && a.State == "running" })
	}
	r.tally[map[bool]string{true: "back", false: "forward"}[word == r.before]]++
	var list ipc.ForkList
	testkit.Eventually(t, "forks that are not whole are dropped", func() bool { // the daemon's start does, unless something is in its way
		var err error
		list, err = d.Forks(t.Context(), root, "shop")
		check(t, err)
		incomplete := slices.IndexFunc(list.Forks, func(f ipc.App) bool { return f.Fork.Making })
		if incomplete < 0 {
			return true
		}
		problems := list.Forks[incomplete].Problems
		t.Logf("%s: the daemon's start did not drop the fork: %q", what, problems)
		if len(problems) == 0 {
			t.Fatal("and nothing says why")
		}
		d.Expire(t.Context(), time.Now())
		return false
	})
	if r.ports {
		r.checkEnv(t, list.Forks)
	}
	if len(list.Forks) == 0 {
		r.tally["no fork"]++
		r.nothingLeft(t, d)
		return
	}
	r.tally["fork"]++
	if r.mounted {
		r.checkMounts(t, list.Forks)
	}
	for _, f := range list.Forks {
		r.checkWhole(t, d, f)
	}
}

// checkMounts checks that each fork is mounted, over one copy, and nothing else is.
func (r *forkRound) checkMounts(t *testing.T, forks []ipc.App) {
	t.Helper()
	var want []string
	for _, f := range forks {
		want = append(want, f.Workspace)
	}
	slices.Sort(want)
	if got := mountsIn(t, r.dir); !slices.Equal(got, want) {
		t.Fatalf("there are the mounts %q, want %q", got, want)
	}
	copies, err := filepath.Glob(filepath.Join(r.forks(), ".pinned-*"))
	check(t, err)
	known, err := os.ReadDir(filepath.Join(r.state(), "pinned"))
	check(t, err)
	if len(copies) != 1 || len(known) != 1 || copies[0] != forks[0].Fork.Pinned {
		t.Fatalf("there are the copies %q, known are %v", copies, known)
	}
}

// checkWhole checks that a fork is in its state.
func (r *forkRound) checkWhole(t *testing.T, d *daemon.Daemon, f ipc.App) {
	t.Helper()
	want := r.forked
	if want == "" {
		want = r.holds[r.first]
	}
	if got := r.fork(f).word(t); got != want || f.State != "running" || len(f.Problems) > 0 {
		t.Fatalf("the fork is in state %q and %s, want %q: %+v", got, f.State, want, f)
	}
	if r.guest != nil && !r.guest.has(t, f.Domain, want) {
		t.Fatalf("the fork is in state %q, and its domain's disk is not", want)
	}
	if r.inside != nil {
		if got, err := os.ReadFile(filepath.Join(f.Volumes[0].Dir, "word")); err != nil || string(got) != want {
			t.Fatalf("the fork is in state %q, and its volume in %q, %v", want, got, err)
		}
	}
	if r.redis {
		socket := filepath.Join(r.state(), "apps", string(f.ID), "srv-cache", "at", "redis.sock")
		out, err := exec.Command("redis-cli", "-s", socket, "GET", "word").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "zero" {
			t.Fatalf("the fork's Redis server says %q, %v", out, err)
		}
	}
	cps, err := d.Checkpoints(t.Context(), root, string(f.ID), ipc.CheckpointQuery{})
	check(t, err)
	for _, cp := range cps.Checkpoints {
		if res, err := d.Verify(t.Context(), root, string(f.ID), cp.ID, snap.Full); err != nil || !res.OK {
			t.Fatalf("%s of the fork: %v, %+v", cp.ID, err, res)
		}
	}
	if served, err := filepath.Glob(r.cluster + ".mulligan/served/*"); r.cluster != "" && (err != nil || len(served) != 1) {
		t.Fatalf("the cluster's copies are %q, %v", served, err)
	}
}

// nothingLeft checks that there is no trace of a fork: no folder, no state, no process.
func (r *forkRound) nothingLeft(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	if _, err := os.Lstat(r.forks()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a folder is left: %v", err)
	}
	apps, err := os.ReadDir(filepath.Join(r.state(), "apps"))
	check(t, err)
	if len(apps) != 1 || len(d.Apps(t.Context(), root)) != 1 {
		t.Fatalf("left are %v and %+v", apps, d.Apps(t.Context(), root))
	}
	if r.guest != nil {
		pools, err := filepath.Glob(filepath.Join(filepath.Dir(r.guest.Disks[0]), "mulligan", "*"))
		if check(t, err); len(pools) > 1 {
			t.Fatalf("images of forks are left: %q", pools)
		}
		if names := r.guest.virsh(t, "list", "--all", "--name"); names != r.guest.Name {
			t.Fatalf("there are the domains %q", names)
		}
	}
	if r.inside != nil {
		r.inside.checkLeft(t)
	}
	if r.cluster != "" {
		served, err := filepath.Glob(r.cluster + ".mulligan/served/*")
		if check(t, err); len(served) > 0 {
			t.Fatalf("copies of the cluster are left: %q", served)
		}
	}
	if units, _ := filepath.Glob(r.busRoot + "/run/systemd/system/" + systemd.CopyPrefix + "*"); len(units) > 0 {
		t.Fatalf("units are left: %q", units)
	}
	mounts, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	check(t, err)
	for _, file := range mounts {
		b, _ := os.ReadFile(file) // the process may have ended
		for line := range strings.Lines(string(b)) {
			// Other processes of this host got the mounts of forks when their namespaces were made, and nobody takes them away there.
			// The app's own containers have its folder mounted.
			if strings.Contains(line, r.dir) && (r.inside == nil || strings.Contains(line, r.forks())) && (!r.mounted || !strings.Contains(line, " "+r.forks()+"/")) {
				t.Fatalf("a process in a fork's namespaces is left: %s: %s", file, line)
			}
		}
	}
	if list := mountsIn(t, r.dir); len(list) > 0 {
		t.Fatalf("mounted are %q", list)
	}
	if known, err := os.ReadDir(filepath.Join(r.state(), "pinned")); err == nil && len(known) > 0 {
		t.Fatalf("copies are known: %v", known)
	}
}

// testForkKilledAtEveryStep kills a daemon at the steps of making, keeping and dropping a fork, and of a bisect: at a sample of them, which rotates,
// and in a long run at one of each kind, in one of the kinds of apps that come to it. Afterwards the app is whole, and the fork is whole or absent.
func testForkKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	kinds := []string{"command", "unit", "redis", "cluster", "guest", "ports", "reflinks", "mounted", "docker", "podman"}
	apps := testkit.Sample(t, "kinds of apps", len(kinds), 1)
	testkit.Rand(t, "order").Shuffle(len(apps), func(i, j int) { apps[i], apps[j] = apps[j], apps[i] })
	slices.SortStableFunc(apps, func(a, b int) int { return slow(kinds[a]) - slow(kinds[b]) })
	died := map[string]bool{}
	for _, i := range apps {
		t.Run(kinds[i], func(t *testing.T) { killForks(t, newForkRound(t, kinds[i]), died) })
	}
}

// slow orders the kinds of apps: those whose rounds take longest come last, when other kinds have come to most of the steps.
func slow(app string) int { return slices.Index([]string{"docker", "podman", "guest"}, app) }

// killForks does so for an app. died are the kinds of steps of operations at which another app has died.
func killForks(t *testing.T, r *forkRound, died map[string]bool) {
	deeds := []string{"fork", "keep", "drop", "bisect"}
	operations := 2
	if r.reflinks {
		deeds = append(deeds, "look")
	}
	if r.guest != nil {
		operations = 1 // each round starts and ends guests
	}
	for _, i := range testkit.Sample(t, "operations", len(deeds), operations) {
		do := deeds[i]
		t.Run(do, func(t *testing.T) {
			clear(r.tally)
			r.prepareFork(t, do)
			names, _, killed := r.victim(t, 0, 0)
			if killed || len(names) < 2 {
				t.Fatalf("steps %q, killed %v", names, killed)
			}
			r.checkFork(t, do)
			steps := r.steps(t, names)
			if long() && !testkit.Every() {
				steps = slices.DeleteFunc(steps, func(i int) bool {
					step := do + " " + kind(names[i])
					before := died[step]
					died[step] = true
					return before
				})
			}
			for _, i := range steps {
				where := fmt.Sprintf("step %d of %d (%s)", i+1, len(names), names[i])
				a := aimAt(names, i)
				for !a.hit && !a.over() {
					r.prepareFork(t, do)
					r.fire(t, a)
					r.checkFork(t, fmt.Sprintf("%s killed at %s: %v", do, where, a.hit))
				}
				if !a.hit {
					t.Errorf("%s never came to %s again", do, where)
				}
				progress(t, "%s: %s: %v", do, where, r.tally)
			}
			testkit.Tally(t, "kills", len(steps))
			t.Logf("%d of %d steps, which are of %d kinds: %v", len(steps), len(names), kinds(names), r.tally)
		})
	}
}

// steps chooses the steps to die at, counted from 0: as pick does, and two where each round starts and ends guests.
func (r *forkRound) steps(t *testing.T, names []string) []int {
	t.Helper()
	if r.guest == nil {
		return pick(t, names)
	}
	return pickOf(t, names, 2)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

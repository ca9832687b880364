package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/engine/enginetest"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// containerRound is a round of an app in containers: files, and a volume.
type containerRound struct {
	*round
	h      *enginetest.Host
	volume string // the folder of the volume
	was    string // the containers
}

// newContainerRound has two containers that run, of which one has a restart policy, and one that was stopped.
func newContainerRound(t *testing.T, kind enginetest.Kind) *containerRound {
	t.Helper()
	h := enginetest.Boot(t, kind)
	c := &containerRound{round: &round{world: world{dir: worldDir(t)}, holds: map[ipc.CheckpointID]string{}, tally: map[string]int{}}, h: h}
	make := func(do, name string, more ...string) {
		args := []string{string(kind), do, "--name", "shop-" + name, "--label", "com.docker.compose.project=shop", "--label", "com.docker.compose.service=" + name, "-v", "/usr:/usr:ro"}
		if do == "run" {
			args = append(args, "-d")
		}
		h.Run(t, append(append(args, more...), enginetest.Image, "/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait")...)
	}
	make("run", "db", "-v", "words:/data", "--restart", "always")
	make("run", "web", "-v", "words:/data")
	make("create", "job")
	d := c.open(t)
	a, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: c.ws(), Unit: "compose:shop", Engine: h.Socket, Volumes: []ipc.Volume{{Name: "words"}}})
	check(t, err)
	c.volume = a.Volumes[0].Dir
	c.setContainers(t, "zero")
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
	check(t, err)
	c.first, c.holds[cp.ID] = cp.ID, "zero"
	c.close(t, d)
	c.was = c.containers(t)
	return c
}

// setContainers brings files and volume into a state.
func (c *containerRound) setContainers(t *testing.T, word string) {
	t.Helper()
	for _, dir := range []string{c.ws(), c.volume} {
		for i := range 3 {
			check(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", i)), []byte(word), 0o640))
		}
		sh(t, `cd "$1" && rm -rf made-* && mkdir "made-$2"`, dir, word)
	}
}

// says returns the state that files and volume agree on.
func (c *containerRound) says(t *testing.T) string {
	t.Helper()
	words := map[string]bool{}
	for _, dir := range []string{c.ws(), c.volume} {
		list, err := os.ReadDir(dir)
		check(t, err)
		for _, e := range list {
			word, made := strings.CutPrefix(e.Name(), "made-")
			if !made {
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				check(t, err)
				word = string(text)
			}
			words[word] = true
		}
		if len(list) != 4 || len(words) != 1 {
			t.Fatalf("%s: %v: the layers say %v", dir, list, words)
		}
	}
	for word := range words {
		return word
	}
	return ""
}

// containers returns which containers there are, what they do, and their restart policies.
func (c *containerRound) containers(t *testing.T) string {
	t.Helper()
	return c.h.Run(t, string(c.h.Kind), "inspect", "-f", "{{.Name}} {{.Id}} {{.State.Running}} {{.State.Paused}} {{.HostConfig.RestartPolicy.Name}}", "shop-db", "shop-web", "shop-job")
}

func (c *containerRound) prepareContainers(t *testing.T, do string) {
	t.Helper()
	c.plan = fate{State: c.state(), Do: do, Target: c.first}
	c.n++
	c.before = fmt.Sprintf("w%d", c.n)
	c.setContainers(t, c.before)
}

// checkContainers opens what a dead daemon left: files and volume are at the same point, before or after; the containers are the same ones,
// those that ran run, and none is paused.
func (c *containerRound) checkContainers(t *testing.T, what string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(what)
		}
	}()
	d := c.open(t)
	defer c.close(t, d)
	switch word := c.says(t); {
	case word == c.before:
		c.tally["back"]++
	case c.plan.Do == "rollback" && word == "zero":
		c.tally["forward"]++
	default:
		t.Fatalf("the app is in state %q, before it was %q", word, c.before)
	}
	if now := c.containers(t); now != c.was {
		t.Fatalf("the containers are\n%s\nand were\n%s", now, c.was)
	}
	if s := d.Status(root); len(s.Problems) > 0 {
		t.Fatalf("problems: %v", s.Problems)
	}
	for _, cp := range listed(t, d) {
		if res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full); err != nil || !res.OK {
			t.Fatalf("%s: %v, %+v", cp.ID, err, res)
		}
	}
}

// killedWithEngine kills a daemon and the engine while a rollback starts the containers. The next daemon, which is there before the engine is, finishes
// the rollback as soon as it can.
func (c *containerRound) killedWithEngine(t *testing.T) {
	c.prepareContainers(t, "rollback")
	c.plan.Kind = "start container"
	if _, _, killed := c.victim(t, 1, 0); !killed {
		t.Fatal("no container is started")
	}
	c.h.KillEngine(t)
	d := c.open(t)
	defer c.close(t, d)
	if len(d.Status(root).Problems) == 0 {
		t.Error("without the engine nothing is unfinished")
	}
	c.h.StartEngine(t)
	testkit.Eventually(t, "the rollback is finished", func() bool { return len(d.Status(root).Problems) == 0 })
	if word := c.says(t); word != "zero" {
		t.Errorf("the app is in state %q", word)
	}
	if now := c.containers(t); now != c.was {
		t.Errorf("the containers are\n%s\nand were\n%s", now, c.was)
	}
}

// abandonedWithoutEngine kills the engine after a rollback has stopped the containers, which then cannot be started again, and ends the daemon before
// the engine is back. The next daemon starts them.
func (c *containerRound) abandonedWithoutEngine(t *testing.T) {
	c.prepareContainers(t, "rollback")
	opt, killed := c.options(), false
	opt.Failpoint = func(step string) error {
		if step != "plan switching" {
			return nil
		}
		killed = true
		c.h.KillEngine(t)
		return errors.New("the test kills the engine here")
	}
	d := c.openAs(t, opt)
	_, err := d.Rollback(t.Context(), root, "shop", c.first, ipc.RollbackRequest{}, nil)
	if !killed || err == nil {
		t.Errorf("the engine was killed: %v, and the rollback says: %v", killed, err)
	}
	c.close(t, d)
	c.h.StartEngine(t)
	d = c.open(t)
	defer c.close(t, d)
	testkit.Eventually(t, "the containers run again", func() bool { return c.containers(t) == c.was })
	testkit.Eventually(t, "nothing is unfinished", func() bool { return len(d.Status(root).Problems) == 0 })
	if word := c.says(t); word != c.before {
		t.Errorf("the app is in state %q, before it was %q", word, c.before)
	}
}

// stopped rolls back an app that somebody has stopped. It stays down, and its containers keep their restart policies.
func (c *containerRound) stopped(t *testing.T) {
	c.prepareContainers(t, "rollback")
	c.h.Run(t, string(c.h.Kind), "stop", "-t", "5", "shop-db", "shop-web")
	was := c.containers(t)
	d := c.open(t)
	defer c.close(t, d)
	_, err := d.Rollback(t.Context(), root, "shop", c.first, ipc.RollbackRequest{}, nil)
	check(t, err)
	if word := c.says(t); word != "zero" {
		t.Errorf("the app is in state %q", word)
	}
	if now := c.containers(t); now != was {
		t.Errorf("the containers are\n%s\nand were\n%s", now, was)
	}
	c.h.Run(t, string(c.h.Kind), "start", "shop-db", "shop-web")
	c.was = c.containers(t)
}

// testContainersKilled kills a daemon at the steps of what it does to an app in containers: at a sample of them, which rotates, and in a long
// run at one of each kind.
func testContainersKilled(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	for _, i := range testkit.Sample(t, "kinds of engines", len(enginetest.Kinds), 1) {
		kind := enginetest.Kinds[i]
		t.Run(string(kind), func(t *testing.T) {
			c := newContainerRound(t, kind)
			t.Run("engine down meanwhile", c.killedWithEngine)
			t.Run("engine down at the end", c.abandonedWithoutEngine)
			t.Run("stopped before", c.stopped)
			for _, do := range []string{"rollback", "create-live", "create"} {
				t.Run(do, func(t *testing.T) {
					clear(c.tally)
					c.prepareContainers(t, do)
					names, _, killed := c.victim(t, 0, 0)
					if killed || len(names) < 2 {
						t.Fatalf("steps %q, killed %v", names, killed)
					}
					c.checkContainers(t, do)
					steps := pickOf(t, names, 1)
					for _, i := range steps {
						where := fmt.Sprintf("step %d of %d (%s)", i+1, len(names), names[i])
						a := aimAt(names, i)
						for !a.hit && !a.over() {
							c.prepareContainers(t, do)
							c.fire(t, a)
							c.checkContainers(t, fmt.Sprintf("%s killed at %s: %v", do, where, a.hit))
						}
						if !a.hit {
							t.Errorf("%s never came to %s again", do, where)
						}
						progress(t, "%s: %s: %v", do, where, c.tally)
					}
					testkit.Tally(t, "kills", len(steps))
					t.Logf("%d of %d steps, which are of %d kinds: %v", len(steps), len(names), kinds(names), c.tally)
				})
			}
		})
	}
}

package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mulligan/durable"
	"mulligan/engine"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/systemd"
	"mulligan/testkit"
)

// shared has an instance of each kind, for one test after the other.
var shared = map[enginetest.Kind]*instance{enginetest.Docker: {}, enginetest.Podman: {}}

type instance struct {
	sync.Mutex
	h *enginetest.Host // nil: none runs
}

func TestMain(m *testing.M) {
	code := m.Run()
	for kind, i := range shared {
		if err := i.end(); err != nil {
			fmt.Fprintf(os.Stderr, "end %s: %v\n", kind, err)
			code = 1
		}
	}
	os.Exit(code)
}

func (i *instance) end() error {
	if i.h == nil {
		return nil
	}
	h := i.h
	i.h = nil
	return h.End()
}

// take returns the instance for the test alone, without containers and volumes. What a test that failed leaves is ended.
func (i *instance) take(t *testing.T, kind enginetest.Kind) *enginetest.Host {
	t.Helper()
	i.Lock()
	t.Cleanup(i.Unlock)
	if i.h == nil {
		i.h = enginetest.BootShared(t, kind)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			i.h.Clear(t)
		}
		if t.Failed() {
			must(t, i.end())
		}
	})
	return i.h
}

// onEach runs a test with each kind of engine.
func onEach(t *testing.T, test func(t *testing.T, s *stage)) {
	for _, kind := range enginetest.Kinds {
		onKind(t, kind, test)
	}
}

func onKind(t *testing.T, kind enginetest.Kind, test func(t *testing.T, s *stage)) {
	t.Run(string(kind), func(t *testing.T) {
		t.Parallel()
		h := shared[kind].take(t, kind)
		api, err := client.New(client.WithHost("unix://" + h.Socket))
		must(t, err)
		t.Cleanup(func() { api.Close() })
		e, err := engine.New(engine.Config{Socket: h.Socket})
		must(t, err)
		t.Cleanup(func() { e.Close() })
		test(t, &stage{t, h, api, e})
	})
}

// stage is an engine, and what the tests do to it beside the code under test.
type stage struct {
	t   *testing.T
	h   *enginetest.Host
	api *client.Client
	e   *engine.Engine
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spec describes a container.
type spec struct {
	name, service, project, depends string
	command                         string // for a shell
	volume                          string // at /data
	mounts                          []mount.Mount
	restart                         container.RestartPolicyMode
	health                          []string
	rm                              bool
}

// run makes a container and starts it.
func (s *stage) run(c spec) (id string) {
	s.t.Helper()
	id = s.make(c)
	s.start(id)
	return id
}

func (s *stage) make(c spec) (id string) {
	s.t.Helper()
	labels := map[string]string{}
	if c.project != "" {
		labels["com.docker.compose.project"], labels["com.docker.compose.service"] = c.project, c.service
		labels["com.docker.compose.depends_on"] = c.depends
	}
	host := &container.HostConfig{Binds: []string{"/usr:/usr:ro"}, RestartPolicy: container.RestartPolicy{Name: c.restart}, AutoRemove: c.rm}
	if c.volume != "" {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Source: c.volume, Target: "/data"})
	}
	host.Mounts = append(host.Mounts, c.mounts...)
	cfg := &container.Config{Image: enginetest.Image, Cmd: []string{"/bin/sh", "-c", c.command}, Labels: labels, StopSignal: "SIGTERM"}
	if c.health != nil {
		cfg.Healthcheck = &container.HealthConfig{Test: c.health}
	}
	made, err := s.api.ContainerCreate(context.Background(), client.ContainerCreateOptions{Name: c.name, Config: cfg, HostConfig: host})
	must(s.t, err)
	return made.ID
}

func (s *stage) start(id string) {
	s.t.Helper()
	_, err := s.api.ContainerStart(context.Background(), id, client.ContainerStartOptions{})
	must(s.t, err)
}

func (s *stage) inspect(name string) container.InspectResponse {
	s.t.Helper()
	in, err := s.api.ContainerInspect(context.Background(), name, client.ContainerInspectOptions{})
	must(s.t, err)
	return in.Container
}

// wait is a command for a shell that ends at once when it is asked to.
const wait = "trap 'exit 0' TERM; sleep 1000000 & wait"

// shop makes a project of three containers, of which one was never started.
func (s *stage) shop() *engine.Project {
	s.t.Helper()
	s.run(spec{name: "shop-db-1", service: "db", project: "shop", volume: "shop_rows", restart: "always",
		command: "echo up >/data/up; trap 'rm /data/up; exit 0' TERM; sleep 1000000 & wait", health: []string{"CMD", "test", "-e", "/data/up"}})
	testkit.Eventually(s.t, "the database is up", func() bool {
		v, err := s.api.VolumeInspect(context.Background(), "shop_rows", client.VolumeInspectOptions{})
		must(s.t, err)
		_, err = os.Stat(filepath.Join(v.Volume.Mountpoint, "up"))
		return err == nil
	})
	s.run(spec{name: "shop-web-1", service: "web", project: "shop", depends: "db:service_healthy:false", command: "test -e /data/up || exit 3; " + wait, volume: "shop_rows"})
	s.make(spec{name: "shop-job-1", service: "job", project: "shop", command: wait})
	return s.project("compose:shop")
}

func (s *stage) project(unit string) *engine.Project {
	s.t.Helper()
	members, err := s.e.Members(s.t.Context(), unit)
	must(s.t, err)
	return s.e.Project(engine.ProjectConfig{Unit: unit, Members: members, StateDir: s.t.TempDir()})
}

func (s *stage) state(u systemd.Unit) systemd.Status {
	s.t.Helper()
	now, err := u.State(s.t.Context())
	must(s.t, err)
	return now
}

func (s *stage) runs(names ...string) {
	s.t.Helper()
	for _, name := range []string{"shop-db-1", "shop-web-1", "shop-job-1"} {
		if now, want := s.inspect(name).State.Running, slices.Contains(names, name); now != want {
			s.t.Errorf("%s runs: %v, want %v", name, now, want)
		}
	}
}

// TestProject stops and starts a project: in order, the containers that ran and no others, with their restart policies as before.
func TestProject(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		ids := []string{s.inspect("shop-db-1").ID, s.inspect("shop-web-1").ID, s.inspect("shop-job-1").ID}
		must(t, p.Start(ctx)) // it runs already
		s.runs("shop-db-1", "shop-web-1")
		if now := s.state(p); !now.Running() || now.MainPID == 0 || now.Since.IsZero() {
			t.Errorf("%+v", now)
		}
		for range 2 { // twice, as a daemon does that was killed in between
			must(t, p.Stop(ctx))
			s.runs()
		}
		if now := s.state(p); !now.Down() || now.Intent() != systemd.Stopped {
			t.Errorf("%+v", now)
		}
		if policy := s.inspect("shop-db-1").HostConfig.RestartPolicy.Name; s.h.Kind == enginetest.Docker && policy != "no" {
			t.Errorf("the engine may start it again: restart policy %s", policy)
		}
		must(t, p.StartAgain(ctx))
		s.runs("shop-db-1", "shop-web-1")
		must(t, p.StartAgain(ctx)) // nothing is left to be started
		if policy := s.inspect("shop-db-1").HostConfig.RestartPolicy.Name; policy != "always" {
			t.Errorf("restart policy %s", policy)
		}
		for i, name := range []string{"shop-db-1", "shop-web-1", "shop-job-1"} {
			if s.inspect(name).ID != ids[i] {
				t.Errorf("%s was made anew", name)
			}
		}
		must(t, p.Stop(ctx))
		must(t, p.StayDown(ctx))
		s.runs()
		if policy := s.inspect("shop-db-1").HostConfig.RestartPolicy.Name; policy != "always" {
			t.Errorf("after a stop for good: restart policy %s", policy)
		}
		must(t, p.Start(ctx))
		s.runs("shop-db-1", "shop-web-1")
		must(t, p.Stop(ctx))
		must(t, p.StayDown(ctx))
		_, err := s.api.ContainerStart(ctx, "shop-db-1", client.ContainerStartOptions{}) // by somebody else
		must(t, err)
		must(t, p.Stop(ctx))
		must(t, p.StartAgain(ctx))
		s.runs("shop-db-1")

		// A damaged note says that there was a stop: everything may have run.
		must(t, p.Stop(ctx))
		testkit.Damage(t, filepath.Join(stateOf(p), "containers.json"))
		must(t, p.Stop(ctx))
		testkit.Damage(t, filepath.Join(stateOf(p), "containers.json"))
		must(t, p.StartAgain(ctx))
		s.runs("shop-db-1", "shop-web-1", "shop-job-1")
		must(t, p.StartAgain(ctx))
	})
}

// testUnhealthyInTime starts a container whose health check does not pass any more while there is time. The engine is not away, and so the error does not
// say that.
func testUnhealthyInTime(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.run(spec{name: "slow", service: "slow", project: "slow", restart: "always", command: wait, health: []string{"CMD", "sleep", "1000"}})
		p := s.project("compose:slow")
		must(t, p.Stop(t.Context()))
		file := filepath.Join(stateOf(p), "containers.json")
		var noted map[string]any
		must(t, durable.ReadJSON(file, &noted))
		noted["healthy"] = []string{"slow"}
		must(t, durable.WriteJSON(file, noted))
		s.start("slow")                                                 // which may take longer
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // a tenth of it is left when the wait is over
		defer cancel()
		wantErr(t, p.StartAgain(ctx), errs.Failed, "start container slow: it is not healthy")
		if policy := s.inspect("slow").HostConfig.RestartPolicy.Name; policy != "always" {
			t.Errorf("restart policy %s", policy)
		}
	})
}

// testStays leaves a container up that something else needs, and starts it if it has failed.
func testStays(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.shop()
		members, err := s.e.Members(ctx, "compose:shop")
		must(t, err)
		for i := range members {
			members[i].Stays = members[i].Name == "shop-db-1"
		}
		p := s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: members, StateDir: t.TempDir()})
		must(t, p.Stop(ctx))
		s.runs("shop-db-1")
		if now := s.state(p); !now.Down() {
			t.Errorf("%+v", now)
		}
		if policy := s.inspect("shop-db-1").HostConfig.RestartPolicy.Name; policy != "always" {
			t.Errorf("restart policy %s", policy)
		}
		must(t, p.StartAgain(ctx))
		s.runs("shop-db-1", "shop-web-1")
	})
}

// testFailed has a container that ended with an error: the project is not well, and a stop and start brings it up again.
func testFailed(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.run(spec{name: "p-a", service: "a", project: "p", command: wait})
		id := s.run(spec{name: "p-b", service: "b", project: "p", volume: "bad", command: "test -e /data/bad && exit 4; touch /data/fine; " + wait})
		p := s.project("compose:p")
		v, err := p.Volume(ctx, "bad")
		must(t, err)
		testkit.Eventually(t, "the container has found nothing bad", func() bool {
			_, err := os.Stat(v.Dir + "/fine")
			return err == nil
		})
		must(t, os.WriteFile(v.Dir+"/bad", nil, 0o644))
		s.stop(id)
		err = p.Start(ctx) // b was stopped on purpose, as it seems, and stays so
		must(t, err)
		s.start(id)
		s.ended(id)
		if now := s.state(p); now.Running() || now.Down() || now.Result != "p-b ended with 4" {
			t.Errorf("%+v", now)
		}
		must(t, p.Stop(ctx))
		if err := p.Start(ctx); err != nil { // unless it looks before the container has ended
			wantErr(t, err, errs.Failed, "ended with 4")
		}
		s.ended(id)
		must(t, p.Stop(ctx))
		must(t, os.Remove(v.Dir+"/bad"))
		must(t, p.StartAgain(ctx))
		if now := s.state(p); !now.Running() {
			t.Errorf("%+v", now)
		}
	})
}

func (s *stage) stop(id string) {
	s.t.Helper()
	soon := 5
	_, err := s.api.ContainerStop(context.Background(), id, client.ContainerStopOptions{Timeout: &soon})
	must(s.t, err)
}

// ended waits until a container has ended. Podman's own waiting takes much longer.
func (s *stage) ended(id string) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.inspect(id).State.Running {
		select {
		case <-tick.C:
		case <-s.t.Context().Done():
			s.t.Fatal("it did not end")
		}
	}
}

func wantErr(t testing.TB, err error, kind errs.Kind, words string) {
	t.Helper()
	if errs.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), words) {
		t.Errorf("error %v (%s), want %q (%s)", err, errs.KindOf(err), words, kind)
	}
}

// TestOthers has containers that are not those that the project was configured with: made anew, gone, or labelled as its own.
func TestOthers(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		forged := s.run(spec{name: "stranger", service: "web", project: "shop", command: wait})
		must(t, p.Stop(ctx))
		if !s.inspect(forged).State.Running {
			t.Error("a container was stopped because of its labels")
		}
		must(t, p.StartAgain(ctx))
		_, words, err := p.Ready(ctx)
		if err != nil || len(words) != 1 || !strings.Contains(words[0], "container stranger says that it is of compose:shop") {
			t.Errorf("%q, %v", words, err)
		}
		s.remove(forged)

		rename := func(from, to string) {
			_, err := s.api.ContainerRename(ctx, from, client.ContainerRenameOptions{NewName: to})
			must(t, err)
		}
		rename("shop-web-1", "front")
		_, _, err = p.Ready(ctx)
		wantErr(t, err, errs.Conflict, "container shop-web-1 is called front now")
		wantErr(t, p.Stop(ctx), errs.Conflict, "container shop-web-1 is called front now")
		s.runs2("shop-db-1", true)
		if now := s.state(p); now.Result != "shop-web-1 is called front now" {
			t.Errorf("%+v", now)
		}
		rename("front", "shop-web-1")

		policy := func() container.RestartPolicyMode { return s.inspect("shop-db-1").HostConfig.RestartPolicy.Name }
		must(t, p.Stop(ctx))
		s.remove("shop-web-1")
		p.Expect(nil, true) // as a rollback does that puts back what it has switched
		must(t, p.Stop(ctx))
		wantErr(t, p.StartAgain(ctx), errs.NotFound, "compose:shop has lost a container: shop-web-1")
		s.runs2("shop-db-1", false)
		if got := policy(); got != "always" {
			t.Errorf("a start that failed leaves the restart policy %s", got)
		}
		s.start("shop-db-1")
		for _, do := range []func(context.Context) error{p.Stop, p.Start, func(ctx context.Context) error { _, _, err := p.Ready(ctx); return err }} {
			wantErr(t, do(ctx), errs.NotFound, "compose:shop has lost a container: shop-web-1")
		}
		s.runs2("shop-db-1", true)
		if now := s.state(p); now.Running() || now.Down() || now.Result != "shop-web-1 is gone" {
			t.Errorf("%+v", now)
		}
		p.Expect(nil, true)
		must(t, p.Stop(ctx))
		s.runs2("shop-db-1", false)
		must(t, p.StartAgain(ctx)) // it was gone before that stop
		s.runs2("shop-db-1", true)
		if got := policy(); got != "always" {
			t.Errorf("restart policy %s", got)
		}
		s.run(spec{name: "shop-web-1", service: "web", project: "shop", command: wait})
		must(t, p.Stop(ctx))
		must(t, p.StartAgain(ctx))
		s.runs2("shop-web-1", true)
		_, words, err = p.Ready(ctx)
		if err != nil || len(words) != 1 || !strings.Contains(words[0], "container shop-web-1 is another one") {
			t.Errorf("%q, %v", words, err)
		}

		s.run(spec{name: "brief", rm: true, command: wait})
		wantErr(t, s.project("container:brief").Stop(ctx), errs.Unsupported, "--rm")
		s.runs2("brief", true)
	})
}

func (s *stage) runs2(name string, want bool) {
	s.t.Helper()
	if now := s.inspect(name).State.Running; now != want {
		s.t.Errorf("%s runs: %v, want %v", name, now, want)
	}
}

func (s *stage) remove(name string) {
	s.t.Helper()
	_, err := s.api.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true})
	must(s.t, err)
}

// TestVolumes refuses volumes whose files are not in a folder of the engine's.
func TestVolumes(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		v, err := p.Volume(ctx, "rows")
		must(t, err)
		if _, err := os.Stat(filepath.Join(v.Dir, "up")); err != nil || v.Name != "shop_rows" {
			t.Errorf("%+v: %v", v, err)
		}
		_, err = s.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: "trick", Driver: "local",
			DriverOpts: map[string]string{"type": "none", "o": "bind", "device": "/etc"}})
		must(t, err)
		_, err = p.Volume(ctx, "trick")
		wantErr(t, err, errs.Unsupported, "not kept by the engine")
		_, err = p.Volume(ctx, "none")
		wantErr(t, err, errs.NotFound, "no volume shop_none or none")
		made, at, err := p.VolumeAt(ctx, "shop-db-1", "/data/cluster")
		if err != nil || made != v || at != v.Dir+"/cluster" {
			t.Errorf("the folder is in %+v at %s: %v", made, at, err)
		}
		_, _, err = p.VolumeAt(ctx, "shop-db-1", "/usr/lib")
		wantErr(t, err, errs.Unsupported, "not in a volume")
		s.make(spec{name: "parted", command: wait, volume: "shop_rows", mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: "wal", Target: "/data/cluster/pg_wal"},
			{Type: mount.TypeBind, Source: "/etc/hostname", Target: "/data/other/postgresql.conf"},
		}})
		_, _, err = p.VolumeAt(ctx, "parted", "/data/cluster")
		wantErr(t, err, errs.Unsupported, "/data/cluster/pg_wal in container parted is not in the same volume")
		if _, at, err := p.VolumeAt(ctx, "parted", "/data/other"); err != nil || at != v.Dir+"/other" {
			t.Errorf("a folder with a file from elsewhere is at %q: %v", at, err)
		}
		_, err = p.Volume(ctx, "../../etc")
		wantErr(t, err, errs.Invalid, "not a volume's name")
	})
}

// testEngineKilled kills the engine between a stop and a start.
func testEngineKilled(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		about, err := s.e.About(ctx)
		if err != nil || !strings.EqualFold(about.Name, string(s.h.Kind)) || about.UID != 0 {
			t.Errorf("%+v, %v", about, err)
		}
		must(t, p.Stop(ctx))
		s.h.KillEngine(t)
		wantErr(t, p.StartAgain(ctx), errs.Unavailable, "no container engine answers at "+s.h.Socket)
		_, err = p.State(ctx)
		wantErr(t, err, errs.Unavailable, "no container engine")
		s.h.StartEngine(t)
		s.runs() // with a restart policy of always too
		must(t, p.StartAgain(ctx))
		s.runs("shop-db-1", "shop-web-1")
	})
}

func TestNames(t *testing.T) {
	for _, bad := range []string{"", "shop", "compose:", "container:-x", "compose:a/b", "compose:../x", "container:a b", "compose:a\n"} {
		if _, _, err := engine.ParseName(bad); errs.KindOf(err) != errs.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if p, c, err := engine.ParseName("compose:shop"); p != "shop" || c != "" || err != nil {
		t.Error(p, c, err)
	}
	if p, c, err := engine.ParseName("container:shop-web-1"); p != "" || c != "shop-web-1" || err != nil {
		t.Error(p, c, err)
	}
	if _, err := json.Marshal(engine.Member{}); err != nil {
		t.Error(err)
	}
}

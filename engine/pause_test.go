package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mulligan/engine"
	"mulligan/engine/enginetest"
	"mulligan/errs"
	"mulligan/testkit"
	"mulligan/testkit/box"
)

// testFreeze pauses the containers that use a volume, and no others, and lets them go on: also in another process.
func testFreeze(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		s.run(spec{name: "other", command: wait, volume: "shop_rows"})
		own, strangers, err := p.Users(ctx, "shop_rows")
		if err != nil || fmt.Sprint(own, strangers) != "[shop-db-1 shop-web-1] [other]" {
			t.Errorf("%v, %v, %v", own, strangers, err)
		}
		_, err = s.api.ContainerPause(ctx, "shop-web-1", client.ContainerPauseOptions{}) // by somebody else
		must(t, err)
		paused := func(want string) {
			t.Helper()
			testkit.Eventually(t, "paused: "+want, func() bool { // Docker may say something else for some milliseconds
				var names []string
				for _, name := range []string{"shop-db-1", "shop-web-1", "other"} {
					if s.inspect(name).State.Paused {
						names = append(names, name)
					}
				}
				return strings.Join(names, " ") == want
			})
		}
		thaw, err := p.Freeze(ctx, "shop_rows")
		must(t, err)
		paused("shop-db-1 shop-web-1")
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if err := p.Thaw(short); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("let go on while they are to be paused: %v", err)
		}
		paused("shop-db-1 shop-web-1")
		letGo(t, thaw)
		paused("shop-web-1")

		_, err = p.Freeze(ctx, "shop_rows") // by a process that dies now
		must(t, err)
		next := s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: s.members(), StateDir: stateOf(p)})
		must(t, next.Thaw(ctx))
		paused("shop-web-1")

		_, err = next.Freeze(ctx, "shop_rows") // by a process that dies now, and leaves a note that is damaged then
		must(t, err)
		testkit.Damage(t, filepath.Join(stateOf(p), "paused.json"))
		next = s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: s.members(), StateDir: stateOf(p)})
		must(t, next.Thaw(ctx))
		paused("")

		_, err = s.api.ContainerPause(ctx, "shop-web-1", client.ContainerPauseOptions{})
		must(t, err)
		must(t, next.Stop(ctx)) // a paused container too
		s.runs()
	})
}

// letGo lets containers go on, of which none was started meanwhile.
func letGo(t *testing.T, thaw func() ([]string, error)) {
	t.Helper()
	if started, err := thaw(); err != nil || len(started) > 0 {
		t.Errorf("started meanwhile: %q; %v", started, err)
	}
}

// testFreezeEnded has two containers end when they are about to be paused: one that Docker starts again, and one that somebody else starts before the others go on.
func testFreezeEnded(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		const ends = "until test -e /data/end; do sleep 0.01; done; rm /data/end; exit 1"
		s.run(spec{name: "shop-db-1", project: "shop", command: ends, volume: "shop_rows", restart: "always"})
		s.run(spec{name: "shop-web-1", project: "shop", command: strings.ReplaceAll(ends, "end", "stop"), volume: "shop_rows"})
		v, err := s.project("compose:shop").Volume(ctx, "rows")
		must(t, err)
		both := []string{"shop-db-1", "shop-web-1"}
		var once sync.Once
		end := func(step string) error {
			if step != "pause container" {
				return nil
			}
			once.Do(func() {
				ran := map[string]string{}
				for _, name := range both {
					ran[name] = s.inspect(name).State.StartedAt
				}
				must(t, os.WriteFile(v.Dir+"/end", nil, 0o600))
				must(t, os.WriteFile(v.Dir+"/stop", nil, 0o600))
				for _, name := range both {
					testkit.Eventually(t, name+" has ended", func() bool {
						now := s.inspect(name).State
						return !now.Running || now.Restarting || now.StartedAt != ran[name]
					})
				}
			})
			return nil
		}
		p := s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: s.members(), StateDir: t.TempDir(), Failpoint: end})
		thaw, err := p.Freeze(ctx, "shop_rows")
		must(t, err)
		s.start("shop-web-1")
		if started, err := thaw(); err != nil || !slices.Contains(started, "shop-web-1") {
			t.Errorf("started meanwhile: %q; %v", started, err)
		}
		if s.h.Kind == enginetest.Podman { // which restarts nothing by itself here
			s.start("shop-db-1")
		}
		testkit.Eventually(t, "both run", func() bool {
			return !slices.ContainsFunc(both, func(name string) bool { return s.inspect(name).State.Status != "running" })
		})
		thaw, err = p.Freeze(ctx, "shop_rows")
		must(t, err)
		for _, name := range both {
			testkit.Eventually(t, name+" is paused", func() bool { return s.inspect(name).State.Paused })
		}
		letGo(t, thaw)
	})
}

// stateOf returns the state folder that a project was given.
func stateOf(p *engine.Project) string { return engine.StateDir(p) }

// testFrozenUnawares has the kernel freeze a container that its engine takes for running: so an engine leaves it that ended in the middle of a pause. It goes on
// all the same, and then stops at once.
func testFrozenUnawares(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		for _, end := range []func(*engine.Project) error{
			func(p *engine.Project) error { return p.Thaw(ctx) },
			func(p *engine.Project) error { return p.Stop(ctx) },
		} {
			_, err := p.Freeze(ctx, "shop_rows") // by a process that dies now
			must(t, err)
			_, err = s.api.ContainerUnpause(ctx, "shop-web-1", client.ContainerUnpauseOptions{})
			must(t, err)
			group := s.group("shop-web-1")
			must(t, os.WriteFile(group+"/cgroup.freeze", []byte("1"), 0))
			testkit.Eventually(t, "the kernel has frozen it", func() bool { return s.isFrozen(group) })
			p = s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: s.members(), StateDir: stateOf(p)})
			must(t, end(p))
			if s.inspect("shop-web-1").State.Running && s.isFrozen(group) {
				t.Error("the container stands still")
			}
		}
		s.runs()
		if code := s.inspect("shop-web-1").State.ExitCode; code != 0 {
			t.Errorf("the container ended with %d, not by its own will", code)
		}
	})
}

// testThawedUnawares has the kernel let a container go on that its engine takes for paused: so an engine leaves it that ended in the middle of the end of a pause.
// The engine takes it for running afterwards, and it stops at once.
func testThawedUnawares(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		p := s.shop()
		for _, end := range []func(*engine.Project) error{
			func(p *engine.Project) error { return p.Thaw(ctx) },
			func(p *engine.Project) error { return p.Stop(ctx) },
		} {
			_, err := p.Freeze(ctx, "shop_rows") // by a process that dies now
			must(t, err)
			group := s.group("shop-web-1")
			must(t, os.WriteFile(group+"/cgroup.freeze", []byte("0"), 0))
			testkit.Eventually(t, "the kernel lets it go on", func() bool { return !s.isFrozen(group) })
			if _, err = s.api.ContainerUnpause(ctx, "shop-web-1", client.ContainerUnpauseOptions{}); err == nil {
				t.Error("the engine lets a container go on that is not frozen")
			}
			p = s.e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: s.members(), StateDir: stateOf(p)})
			must(t, end(p))
			if state := s.inspect("shop-web-1").State; state.Paused || state.Running && s.isFrozen(group) {
				t.Errorf("the container is left paused: %+v", state)
			}
		}
		s.runs()
		if code := s.inspect("shop-web-1").State.ExitCode; code != 0 {
			t.Errorf("the container ended with %d, not by its own will", code)
		}
	})
}

func (s *stage) members() []engine.Member {
	s.t.Helper()
	all, err := s.e.Members(s.t.Context(), "compose:shop")
	must(s.t, err)
	return all
}

// group returns a container's control group.
func (s *stage) group(name string) (dir string) {
	s.t.Helper()
	id := s.inspect(name).ID
	root, _ := box.Hierarchy()
	must(s.t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if base := filepath.Base(path); err == nil && e.IsDir() && strings.Contains(base, id) && !strings.Contains(base, "conmon") {
			dir = path
			return fs.SkipAll
		}
		return nil // other groups come and go
	}))
	if dir == "" {
		s.t.Fatalf("no control group of container %s below %s", id, root)
	}
	return dir
}

func (s *stage) isFrozen(group string) bool {
	s.t.Helper()
	events, err := os.ReadFile(group + "/cgroup.events")
	must(s.t, err)
	return strings.Contains(string(events), "frozen 1")
}

// TestLateEvents has Docker hear of pauses and of their ends late, as on a busy machine: for a few answers it is wrong about whether a container is paused, and
// refuses what does not fit. A capture pauses the container all the same, lets it go on, and a stop stops it.
func TestLateEvents(t *testing.T) {
	onKind(t, enginetest.Docker, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.shop()
		late := &lateEngine{t: t, wrong: map[string]int{}, until: map[string]time.Time{}, claim: map[string]bool{}}
		e, err := engine.New(engine.Config{Socket: late.serve(s.h.Socket)})
		must(t, err)
		t.Cleanup(func() { e.Close() })
		members, err := e.Members(ctx, "compose:shop")
		must(t, err)
		p := e.Project(engine.ProjectConfig{Unit: "compose:shop", Members: members, StateDir: t.TempDir()})
		really := func(want bool) {
			t.Helper()
			for _, name := range []string{"shop-db-1", "shop-web-1"} {
				testkit.Eventually(t, fmt.Sprint(name, " is paused: ", want), func() bool { return s.inspect(name).State.Paused == want })
			}
		}
		for range 3 { // one right after the other, as with several volumes
			thaw, err := p.Freeze(ctx, "shop_rows")
			must(t, err)
			really(true)
			letGo(t, thaw)
			really(false)
		}
		_, err = p.Freeze(ctx, "shop_rows")
		must(t, err)
		must(t, p.Stop(ctx))
		s.runs()
		if late.refused["pause"]+late.refused["unpause"] == 0 || late.lied == 0 {
			t.Errorf("nothing was late: refused %v, %d wrong answers", late.refused, late.lied)
		}
	})
}

// lateEngine stands before a Docker. For the first answers after a pause or its end, and for a second at most, it says what was before.
type lateEngine struct {
	t       *testing.T
	mu      sync.Mutex
	wrong   map[string]int // for how many answers it goes on to be wrong, by container
	until   map[string]time.Time
	claim   map[string]bool // what it says meanwhile: is it paused?
	refused map[string]int  // how often, by what was asked for
	lied    int             // wrong answers
}

// serve returns the socket at which the late engine answers for the one at another socket.
func (l *lateEngine) serve(behind string) (socket string) {
	l.refused = map[string]int{}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", behind)
	}}
	proxy.ModifyResponse = l.answer
	socket = filepath.Join(l.t.TempDir(), "late.sock")
	listener, err := net.Listen("unix", socket)
	must(l.t, err)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, deed := l.asked(r); deed != "json" && l.refuses(name, deed) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"message": "it does not fit what I know"}`) // the client sees what comes of it
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	srv.Listener.Close()
	srv.Listener = listener
	srv.Start()
	l.t.Cleanup(srv.Close)
	return socket
}

// asked returns which container a request is about, and what it asks for: "pause", "unpause" or "json"; "" for any other.
func (l *lateEngine) asked(r *http.Request) (name, deed string) {
	parts := strings.Split(r.URL.Path, "/containers/")
	if len(parts) != 2 {
		return "", ""
	}
	name, deed, _ = strings.Cut(parts[1], "/")
	switch {
	case r.Method == http.MethodPost && (deed == "pause" || deed == "unpause"), r.Method == http.MethodGet && deed == "json":
		return name, deed
	}
	return name, ""
}

// late reports whether it is wrong about a container. The caller must hold l.mu.
func (l *lateEngine) late(name string) bool {
	return l.wrong[name] > 0 && time.Now().Before(l.until[name])
}

// refuses tells whether a request does not fit what the late engine takes for true.
func (l *lateEngine) refuses(name, deed string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if deed == "" || !l.late(name) || l.claim[name] == (deed == "unpause") {
		return false
	}
	l.refused[deed]++
	return true
}

// answer changes an engine's answer while the late engine is wrong.
func (l *lateEngine) answer(r *http.Response) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, deed := l.asked(r.Request)
	if deed == "pause" || deed == "unpause" {
		if r.StatusCode < 300 {
			l.wrong[name], l.until[name], l.claim[name] = 3, time.Now().Add(time.Second), deed == "unpause"
		}
		return nil
	}
	if deed != "json" || r.StatusCode != http.StatusOK || !l.late(name) {
		return nil
	}
	l.wrong[name]--
	l.lied++
	var all map[string]any
	err := json.NewDecoder(r.Body).Decode(&all)
	if err != nil {
		return err
	}
	all["State"].(map[string]any)["Paused"] = l.claim[name]
	data, err := json.Marshal(all)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", fmt.Sprint(len(data)))
	return err
}
